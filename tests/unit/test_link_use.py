"""The use of links: time at a link's rate, at all levels; and an MMR over the links of switches that carry ranks."""

from __future__ import annotations

from dataclasses import replace

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.shapes import build
from heddle.fabric.wiring import ports_above
from heddle.proof.linkuse import LinkUse, Mmr, UplinkSet, links_of, nics_of
from heddle.proof.verdict import prove
from heddle.spec.shapes.clos import ClosSpec
from heddle.traffic.flow import Flow, Sent
from heddle.views.pathstext import paths_text
from tests.unit.test_paths_report import FABRIC, SENT, evidence

FOUR = build(ClosSpec(name="four", racks=4, ctsw=2, hosts_per_rack=2))


def flow_between(src: int, dst: int) -> Flow:
    """From the first host of one rack to the first of another, racks from 1."""
    ends = [next(host for host in FOUR.hosts if host.group("rack") == rack).ports[0] for rack in (src, dst)]
    one, other = ends
    assert one.address is not None and other.address is not None
    return Flow(one.node, other.node, str(one.address.ip), str(other.address.ip), 50_000, 7, one.peer_ref)


def test_use_is_the_time_of_the_bytes_over_the_time_of_the_run() -> None:
    link = LinkUse("rtsw1:eth1", True, 10, 1_000_000, 1, rate_bps=10_000_000, run_s=2.0)
    assert (link.seconds, link.utilisation) == (0.8, 0.4)
    row = link.to_json()
    assert (row["seconds"], row["utilisation"], row["rate_bps"], row["bytes"]) == (0.8, 0.4, 10_000_000, 1_000_000)
    assert replace(link, run_s=None).to_json()["utilisation"] is None


def test_links_of_all_levels_have_a_row_with_direction_and_use() -> None:
    found = replace(evidence(SENT), seconds=0.5)
    links = {link.port: link for link in links_of(FABRIC, found)}
    assert {link.direction for link in links.values()} == {"RTSW to CTSW", "CTSW to RTSW", "RTSW to hosts"}
    path = found.oracle[0]
    for ref in path:
        rate = FABRIC.by_name[ref.partition(":")[0]].port(ref.partition(":")[2]).rate_bps
        assert links[ref].utilisation == 1000 * 8 / rate / 0.5
    text = paths_text(prove(FABRIC, found))
    assert all(f"\n{ref} " in text for ref in path), "uplinks are not the only level in the text"
    assert "\nCTSW to RTSW " in text and "\nRTSW to hosts " in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_busiest_link_needs_most_time_and_sets_of_links_are_named() -> None:
    """Half the bytes on a quarter of the rate: the bar of the slow link is the longest."""
    result = prove(FABRIC, evidence(SENT))
    fast = LinkUse("rtsw1:eth1", True, 1, 4_000_000, 1, direction="RTSW to CTSW", rate_bps=100_000_000)
    slow = LinkUse("rtsw1:eth2", True, 1, 2_000_000, 1, direction="RTSW to CTSW", rate_bps=25_000_000)
    lines = paths_text(replace(result, links=(fast, slow))).splitlines()
    bars = {line.split()[0]: line.count("█") for line in lines if line.startswith("rtsw1:eth") and "█" in line}
    assert bars["rtsw1:eth2"] == 2 * bars["rtsw1:eth1"] > 0
    # The set of links is named in text and json.
    assert result.to_json()["mmr"]["over"] == {"links": 4, "switches": ["rtsw1", "rtsw2"]}
    assert "MMR (max/mean over 4 uplinks of 2 RTSWs with ranks): flows" in paths_text(result)


def test_links_above_some_nics_are_those_that_lead_up_from_them() -> None:
    nics = {"host1:eth1"}
    assert FOUR.hosts[0].ports[0].ref == "host1:eth1"
    above = ports_above(FOUR, nics)
    assert {ref for ref in above if ref.startswith("host")} == nics
    assert {ref for ref in above if ref.startswith("rtsw")} == {"rtsw1:eth1", "rtsw1:eth2", "rtsw1:eth3"}
    assert {ref for ref in above if ref.startswith("ctsw")} == {"ctsw1:eth1", "ctsw2:eth1"}
    dc = load_fabric("dc").fabric
    above = ports_above(dc, {host.ports[0].ref for host in dc.hosts if host.group("zone") == 1})
    tops = {ref.partition(":")[0] for ref in above if ref.startswith("atsw")}
    assert tops == {node.name for node in dc.switches if node.level == 3}
    zones = {dc.by_name[ref.partition(":")[0]].group("zone") for ref in above if ref.startswith("ctsw")}
    assert zones == {1}


def test_the_mmr_leaves_out_uplinks_of_racks_without_ranks() -> None:
    """Two racks of four run: an even spread over their uplinks is even, whatever the idle racks are."""
    sent = [Sent(flow_between(1, 2), 10, 1000), Sent(flow_between(2, 1), 10, 1000)]
    assert nics_of(FOUR, [each.flow for each in sent]) == {"host1:eth1", "host3:eth1"}
    above = ports_above(FOUR, nics_of(FOUR, [each.flow for each in sent]))
    uplinks = [(s, p) for s in FOUR.switches if s.level == 1 for p in s.ports if not FOUR.leads_to_host(p)]
    links = [LinkUse(p.ref, True, 1, 500 if p.ref in above else 0, 1, ranked=p.ref in above) for s, p in uplinks]
    over = UplinkSet.of(links)
    assert over.switches == ("rtsw1", "rtsw2") and len(over.links) == 4 and over.left_out == 4
    assert Mmr.of(over.links).bytes == 1.0
    assert Mmr.of(links).bytes == 2.0, "over all uplinks the idle racks would double it"
