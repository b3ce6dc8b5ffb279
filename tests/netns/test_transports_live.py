"""Collectives by every transport, recovery and source-port mode: right data, proven paths, the use of links."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import CheckError
from heddle.lab import outages
from heddle.lab.lab import Lab
from heddle.runs.parts.queues import QueueUse
from heddle.runs.store import load, paths_of
from heddle.spec.impairments import LinkFault
from heddle.views.linkloads import usage_of
from heddle.views.pathstext import paths_text
from tests.conftest import FabricLab
from tests.machine import rc_timeout
from tests.netns.collectives import proven, ran, total
from tests.netns.static_fabric import dropping
from tests.typed import typed


@pytest.fixture
def lossy(tiny: Lab) -> Iterator[Callable[[float], object]]:
    """Sets the share of packets that the port to host3 loses; none when the test has ended."""
    yield lambda share: outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(loss=share))
    outages.clear_faults(tiny)


@pytest.mark.deep
def test_each_recovery_delivers_all_data_and_selective_repeat_sends_least_again(
    tiny: Lab, lossy: Callable[[float], object]
) -> None:
    again = {}
    incast: dict[str, Any] = {"collective": "incast", "placement": "host3,host1", "sizes": (1 << 22,), "iters": 1}
    lossy(1 / 64)
    for recovery in ("go-back-0", "go-back-n", "selective-repeat"):
        result = ran(tiny, own={"recovery": recovery}, chunk=1 << 19, timeout=rc_timeout(14), **incast)
        lost = result[QueueUse].drops["fault"] if result.part(QueueUse) is not None else 0
        assert lost > 0
        assert result.nic_loop == "python" or recovery == "go-back-n"
        proven(tiny)
        again[recovery] = total(result, "retransmitted") / lost
    assert again["selective-repeat"] < 2 < again["go-back-n"] < again["go-back-0"]


@pytest.mark.deep
def test_scapy_delivers_all_data_and_sends_it_again_after_losses(tiny: Lab, lossy: Callable[[float], object]) -> None:
    result = ran(tiny, sizes=(1 << 14,), transport="scapy", iters=1)
    assert (result.nic_loop, total(result, "retransmitted"), result.icrc_errors, result.stray) == ("python", 0, 0, 0)
    proven(tiny)
    lossy(1 / 8)
    result = ran(tiny, sizes=(1 << 17,), transport="scapy", iters=1)  # some 100 packets: one run in 10^5 loses none
    assert total(result, "retransmitted") > 0
    proven(tiny)


def test_uc_delivers_all_data_where_nothing_is_lost(tiny: Lab) -> None:
    result = ran(tiny, sizes=(1 << 19,), transport="uc", qps=2, iters=2)
    assert {key: total(result, key) for key in ("lost", "dropped_messages", "late")} == {
        "lost": 0, "dropped_messages": 0, "late": 0,
    }  # fmt: skip
    proven(tiny)
    assert all(flow.received == flow.sent.packets for flow in result.flows)


def test_a_lost_packet_ends_a_run_of_uc_and_is_named(tiny: Lab, lossy: Callable[[float], object]) -> None:
    lossy(1 / 16)
    with pytest.raises(
        CheckError,
        match=r"rank \d on host3:eth1: QP 0x\w+ from rank \d on host\d:eth1: .* lost \(last good PSN 0x\w+\), and uc",
    ) as caught:
        ran(tiny, transport="uc", sizes=(1 << 21,))
    assert caught.value.problems[0].hint.startswith("use --transport rc")


@pytest.mark.deep
def test_a_run_of_uc_ends_also_when_no_later_packet_reveals_the_loss(
    tiny: Lab, lossy: Callable[[float], object]
) -> None:
    lossy(1.0)
    with pytest.raises(CheckError) as caught:
        ran(tiny, sizes=(1 << 19,), transport="uc", timeout=16)
    said = str(caught.value)
    assert said.count("waits for") <= 2, "one rank of each worker"
    assert "on host3:eth1: waits for" in said
    assert "last good PSN 0x" in said and "no packet moves any more" in said


def test_srd_sends_the_lost_packets_again_and_all_data_arrive(tiny: Lab, lossy: Callable[[float], object]) -> None:
    lossy(1 / 32)
    result = ran(tiny, sizes=(1 << 19,), transport="srd", own={"entropy": 4}, timeout=rc_timeout(14), iters=2)
    lost = result[QueueUse].drops["fault"] if result.part(QueueUse) is not None else 0
    assert lost > 0
    assert total(result, "retransmitted") > 0
    proven(tiny)


def test_srd_sprays_over_source_ports_and_every_path_is_counted(tiny: Lab) -> None:
    qps = 2
    result = ran(tiny, sizes=(1 << 19,), transport="srd", own={"entropy": 8}, qps=qps, placement="cyclic")
    paths = proven(tiny)
    assert len(result.flows) == len(paths.flows) == 8 * 4 * qps
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.predicted == proof.oracle == proof.measured
        assert proof.counted == (flow.sent.packets,) * len(proof.measured)
        assert flow.received == flow.sent.packets > 0
    crossing = [proof.measured[0] for proof in paths.flows if len(proof.measured) > 1]
    assert len(set(crossing)) == 4, "both uplinks of both racks"
    assert total(result, "retransmitted") == 0
    assert f"agree on the paths of all {32 * qps} source ports of {4 * qps} QPs" in paths_text(paths)
    assert "each QP uses one path" not in result.table()
    assert all(len(values) == 4 * qps for _, values in result.counted("order"))


ROOT = Path(__file__).resolve().parents[2]
SLOW = 20_000_000


@pytest.fixture
def four_racks(fabric_lab: FabricLab) -> Lab:
    """Four racks; rtsw1:eth2 is slow."""
    link = {"host": "50mbit", "fabric": "50mbit", "exceptions": {"rtsw1:eth2": f"{SLOW}bit"}}
    return fabric_lab(racks=4, ctsw=2, hosts_per_rack=2, link=link, routing={"ecmp": "e-ecmp"})


def test_ranks_in_two_racks_of_four(four_racks: Lab, tmp_path: Path) -> None:
    lab = four_racks
    assert usage_of(lab) is None
    done = typed("graph", lab.name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"wrote {lab.name}.svg: no run yet, so links have no load\n")
    result = ran(lab, qps=8, placement="host1,host3,host2,host4", ranks=4)
    paths = paths_of(lab)
    text = paths_text(paths)
    assert paths.agree, text

    # MMR: the uplinks of racks 1 and 2 only.
    assert paths.uplinks.switches == ("rtsw1", "rtsw2") and paths.uplinks.left_out == 4
    carried = [link.bytes for link in paths.links if link.uplink and link.port.startswith(("rtsw1:", "rtsw2:"))]
    assert paths.mmr.bytes == pytest.approx(max(carried) * 4 / sum(carried), abs=1e-4)
    assert "uplinks of 2 RTSWs with ranks; 4 without ranks are left out" in text

    # Use: bytes / rate / seconds of the run, at all levels; no port sends for longer than the run takes.
    seconds = load(lab).evidence.seconds
    assert seconds is not None and 0 < seconds < 60
    for link in paths.links:
        rate = SLOW if link.port == "rtsw1:eth2" else 50_000_000
        assert link.rate_bps == rate or link.port == "ctsw2:eth1"
        assert link.utilisation == pytest.approx(link.bytes * 8 / link.rate_bps / seconds)
        assert 0 <= (link.utilisation or 0) <= 1.02
    used = {link.direction for link in paths.links if link.bytes}
    assert used == {"RTSW to CTSW", "CTSW to RTSW", "RTSW to hosts"}

    # NICs: what they took is what the last ports counted, for each QP.
    for proof, flow in zip(paths.flows, result.flows, strict=True):
        assert proof.seen.received == flow.received == proof.counted[-1] > 0
    assert paths.delivery is not None and paths.delivery.received == paths.delivery.counted
    assert f"the receiving NICs got {paths.delivery.counted:,} of the {paths.delivery.counted:,} packets" in text

    # The picture goes by the same measure, and what came into a switch left it again.
    usage = usage_of(lab)
    assert usage is not None
    by_port = {load.a: load for load in usage.loads}
    links = {link.port: link for link in paths.links}
    assert by_port["rtsw1:eth2"].seconds[0] == pytest.approx(links["rtsw1:eth2"].seconds)
    assert not by_port["rtsw4:eth1"].ranked and by_port["rtsw1:eth1"].ranked
    balance = dict.fromkeys(("rtsw1", "rtsw2"), 0)
    for each in usage.loads:
        assert (each.b_packets, each.b_bytes) == (links[each.b].packets, links[each.b].bytes)
        for ref, change in ((each.a, each.b_bytes - each.a_bytes), (each.b, each.a_bytes - each.b_bytes)):
            if (switch := ref.partition(":")[0]) in balance:
                balance[switch] += change
    assert set(balance.values()) == {0}
    drawn = json.loads(typed("graph", lab.name, "--format", "json", cwd=tmp_path).stdout)
    assert (drawn["run_id"], drawn["links"]) == (usage.run_id, [each.to_json() for each in usage.loads])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / f"{lab.name}.svg").read_text())
    assert usage.caption in texts
    mmr = f"max/mean {paths.mmr.bytes:.2f},"
    assert any(words.startswith("RTSW to CTSW: ") and mmr in words for words in texts)

    done = typed("paths", "--lab", lab.name, "--format", "json")
    data = json.loads(done.stdout)
    assert data["mmr"]["over"] == {"links": 4, "switches": ["rtsw1", "rtsw2"], "left_out": {}}
    assert data["delivery"]["received"] == paths.delivery.received
    assert all({"utilisation", "seconds", "direction", "rate_bps"} <= set(row) for row in data["links"])


@pytest.mark.deep
def test_drops_of_the_last_queue_are_behind_the_last_counter_and_explained(fabric_lab: FabricLab) -> None:
    """An incast overfills the port to its receiver: packets that its counter saw, and no NIC."""
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, queues=dropping("40KB"))
    ran(lab, collective="incast", qps=4, iters=1)
    past = load(lab)
    paths = past.needed(past.proof)
    assert paths.delivery is not None and paths.delivery.received is not None
    last = {proof.measured[-1] for proof in paths.flows if proof.measured}
    missing = paths.delivery.counted - paths.delivery.received
    assert missing == sum(past.evidence.class_drops(port, 3) or 0 for port in last) > 0
    assert missing == sum(paths.lost.get(port, 0) for port in last)
    assert paths.agree, paths_text(paths)


@pytest.mark.deep
@pytest.mark.containers
def test_sizes_from_one_element_to_many_messages(tiny: Lab) -> None:
    sizes = (4, 8, 20, 4096, 100_000, 1 << 20)
    result = ran(tiny, sizes=sizes, qps=2)
    assert [row.size for row in result.rows] == list(sizes)
    proven(tiny)


@pytest.mark.deep
def test_the_table_has_the_size_that_was_sent(tiny: Lab) -> None:
    """Of 300,001 bytes, chunks of four ranks with whole 16 bytes: 18,748 of 18,750 elements."""
    sent = 4 * 74_992
    result = ran(tiny, collective="all-to-all", sizes=(300_001,))
    (row,) = result.rows
    assert (row.size, row.wrong) == (sent, 0)
    assert f"{sent:12d}  {sent // 16:12d}     float" in result.table()
    proven(tiny)


@pytest.mark.deep
def test_two_nics_a_host_are_two_ranks(fabric_lab: FabricLab) -> None:
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=1, nics_per_host=2)
    result = ran(lab, qps=2)
    assert [(e.host, e.port) for e in result.ranks] == [
        ("host1", "eth1"), ("host1", "eth2"), ("host2", "eth1"), ("host2", "eth2"),
    ]  # fmt: skip
    assert result.wrong == 0
    proven(lab)


@pytest.mark.deep
def test_drops_of_a_small_buffer_are_retransmitted_and_named(fabric_lab: FabricLab) -> None:
    keys = {"link": {"host": "100mbit", "fabric": "20mbit"}, "queues": dropping("20KB")}
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=2, **keys)
    result = ran(lab, placement="cyclic", sizes=(1 << 17,), timeout=15, retries=100)
    assert total(result, "retransmitted") > 0
    assert result.wrong == 0
    paths = paths_of(lab)
    assert paths.lost
    assert paths.agree, paths_text(paths)
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.counted[0] == flow.sent.packets
