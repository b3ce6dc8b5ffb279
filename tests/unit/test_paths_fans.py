"""Proofs of queue pairs that go several ways, the use of links, and which QPs `./inv paths` shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.cli.paths_verb import Shown
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric, NicNames
from heddle.fabric.shapes import build
from heddle.fabric.wiring import ports_above
from heddle.lab.rehash import RuleChange, with_exact
from heddle.lab.snapshot import Snapshot
from heddle.offline.wires import wires_of
from heddle.predict import selftest
from heddle.predict.predict import predict, predict_under
from heddle.predict.selftest import SelfTest, remember, verdict
from heddle.predict.walk import ports_of
from heddle.proof.evidence import Evidence
from heddle.proof.linkuse import LinkUse, Mmr, UplinkSet, links_of, nics_of
from heddle.proof.measure import Count, Measured
from heddle.proof.selection import QpSelection, read_selection
from heddle.proof.verdict import FlowProof, PathsResult, prove
from heddle.runs.moved import moved_of
from heddle.spec.routingpolicy import HashOptions
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.switch.hashing.maps import Exact
from heddle.traffic.flow import Flow, Sent
from heddle.views.linkloads import link_loads, spreads
from heddle.views.pathstext import paths_text
from tests.answers import Answers
from tests.unit.test_paths_report import FABRIC, FIRST, SENT, evidence, fibs, flow, snapshot
from tests.unit.test_paths_report import judge as judge_run

SPRAY = {s.name: SwitchHashing(s.name, "spray", s.hash_seed or 1, 1, 0x37) for s in FABRIC.switches}
FLOW = SENT[0].flow


def with_hashing(state: Snapshot, hashing: Mapping[str, SwitchHashing], epoch: int) -> Snapshot:
    """A snapshot with other rules, of which that of rtsw1 has this epoch."""
    nodes = {
        name: replace(node, hashing=hashing.get(name), epoch=epoch if name == "rtsw1" else 1)
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


Counts = dict[str, tuple[tuple[str, int], ...]]
WHOLE: Counts = {
    "rtsw1": (("eth1", 6), ("eth2", 4)),
    "ctsw1": (("eth2", 6),),
    "ctsw2": (("eth2", 4),),
    "rtsw2": (("eth3", 10),),
}


def sprayed(counts: Counts, drops: dict[str, int] | None = None) -> Evidence:
    """Ten packets of one QP, spread over both CTSWs."""
    tables = {}
    for name in (switch.name for switch in FABRIC.switches):
        rows = tuple(FlowCount(port, *FLOW.key, n, n * 100) for port, n in counts[name])
        tables[name] = SwitchCounters(name, rows, (), 0)
    path = predict(FABRIC, fibs(), SPRAY, [FLOW])[0]
    return Evidence(snapshot(fibs(), SPRAY), snapshot(fibs(), SPRAY, tables, drops), tuple(SENT), (path,))


def judge(found: Evidence) -> PathsResult:
    return prove(FABRIC, found)


def test_spread_packets_within_the_next_hops_are_a_proof() -> None:
    result = judge(sprayed(WHOLE))
    assert result.agree, paths_text(result)
    proof = result.flows[0]
    assert proof.predicted == ("rtsw1:{eth1,eth2}", "{ctsw1:eth2,ctsw2:eth2}", "rtsw2:eth3")
    row = proof.to_json()
    assert row["spread"] and row["counted"] == [10, 10, 10]
    assert row["by_port"] == {"rtsw1:eth1": 6, "rtsw1:eth2": 4, "ctsw1:eth2": 6, "ctsw2:eth2": 4, "rtsw2:eth3": 10}
    assert "1 QP is spread" in paths_text(result) and max(map(len, paths_text(result).splitlines())) <= 100
    # A fan with a single used port is a proof.
    one: Counts = {"rtsw1": (("eth2", 10),), "ctsw1": (), "ctsw2": (("eth2", 10),), "rtsw2": (("eth3", 10),)}
    result = judge(sprayed(one))
    assert result.agree and result.flows[0].measured == ("rtsw1:eth2", "ctsw2:eth2", "rtsw2:eth3")


def test_packets_outside_the_next_hops_or_wrong_sums_are_no_proof(answers: Answers) -> None:
    def why(changed: Counts) -> str:
        result = judge(sprayed({**WHOLE, **changed}))
        assert not result.agree
        return result.flows[0].why

    answers(why)


def test_a_loss_after_two_ports_is_attributed_to_the_queue_that_counted_it() -> None:
    counts = {**WHOLE, "rtsw2": (("eth3", 8),)}
    result = judge(sprayed(counts, {"ctsw2:eth2": 2}))
    assert result.agree, paths_text(result)
    assert result.lost == {"ctsw2:eth2": 2}
    assert not judge(sprayed(counts, {"ctsw2:eth2": 1})).agree


def engineered(*tables: Exact) -> list[dict[str, SwitchHashing]]:
    """The hashing of all switches with each of these tables on rtsw1."""
    rows = {s.name: hashing_of(FABRIC, s, "exact-match") for s in FABRIC.switches}
    return [{**rows, "rtsw1": with_exact(rows["rtsw1"], each)} for each in tables]


def test_a_run_during_which_entries_changed_is_proven_over_all_of_them_or_not_at_all() -> None:
    (prefix,) = [prefix for prefix, owner in FABRIC.edge_prefixes.items() if owner == "rtsw2"]
    first, second = engineered({(FLOW.sport, prefix): ("eth1",)}, {(FLOW.sport, prefix): ("eth2", "eth1")})
    found = sprayed(WHOLE)
    states = [with_hashing(found.before, first, 5), with_hashing(found.after, second, 6)]
    change = RuleChange(0.0, "te watch", {"rtsw1": (6, second["rtsw1"])})
    oracle = (predict(FABRIC, fibs(), second, [FLOW])[0],)
    run = replace(found, before=states[0], after=states[1], oracle=oracle, rules=(change,))
    result = judge(run)
    assert result.agree, paths_text(result)
    assert result.flows[0].predicted == ("rtsw1:{eth1,eth2}", "{ctsw1:eth2,ctsw2:eth2}", "rtsw2:eth3")
    assert result.notes[0].startswith(
        "entries were changed 1 time during the run (te watch at 00:00:00.000 UTC): 1 QP had"
    )
    assert Evidence.from_json(json.loads(json.dumps(run.to_json()))).rules == (change,)
    outside = judge(replace(run, before=with_hashing(states[0], second, 5)))
    assert not outside.agree and "seen at" in outside.flows[0].why
    for missing in (replace(run, rules=()), replace(run, after=with_hashing(states[1], second, 7))):
        result = judge(missing)
        assert not result.agree and "so no path follows one rule: rtsw1" in result.notes[0]


def test_packets_may_meet_the_old_rule_at_one_switch_and_the_new_one_at_the_next() -> None:
    dc = load_fabric("dc").fabric
    a, b = dc.hosts[0].ports[0], dc.hosts[-1].ports[0]
    assert a.address is not None and b.address is not None
    ips = str(a.address.ip), str(b.address.ip)
    flows = [Flow(dc.hosts[0].name, dc.hosts[-1].name, *ips, 50_000 + at, at, a.peer_ref) for at in range(40)]
    old, new = ({s.name: hashing_of(dc, s, "e-ecmp", seed=n + at) for at, s in enumerate(dc.switches)} for n in (1, 99))
    either = predict_under(dc, fibs(dc), [old, new], flows)
    edges = {node.name for node in dc.edges}
    for at_edge, above in ((old, old), (old, new), (new, old), (new, new)):
        mixed = {name: (at_edge if name in edges else above)[name] for name in old}
        for path, every in zip(predict(dc, fibs(dc), mixed, flows), either, strict=True):
            assert len(path) == len(every) == 5
            assert all(port in ports_of(word) for port, word in zip(path, every, strict=True))
    assert predict_under(dc, fibs(dc), [old], flows) == predict(dc, fibs(dc), old, flows)


@pytest.fixture
def another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SelfTest]:
    """A machine on which the self-test has found that the kernel chooses differently."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    verdict.cache_clear()
    found = SelfTest("differs", "7.99", 16, "14 of 16 flows under IPv4, policy 3")
    remember(found)
    yield found
    verdict.cache_clear()


def test_where_the_kernel_differs_the_oracle_replaces_the_prediction_and_no_third_source_is_claimed(
    another_kernel: SelfTest,
) -> None:
    assert verdict() == another_kernel
    found = evidence(SENT)
    result = judge(found)
    assert result.agree and result.sources == ("oracle", "counters")
    assert paths_text(result).splitlines()[0] == "kernel lookup and counters agree on the paths of all 1 QPs"
    assert "kernel 7.99 chooses differently from the prediction" in " ".join(paths_text(result).split())
    data = result.to_json()
    assert data["flows"][0]["predicted"] is None and data["selftest"]["state"] == "differs"
    other = replace(found, oracle=(("rtsw1:eth9", *found.oracle[0][1:]),))
    assert not judge(other).agree, "the oracle is still held against the counters"


def test_a_verdict_holds_for_one_boot_one_kernel_and_one_version(
    another_kernel: SelfTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_CODE", ("hashes.py",))
    verdict.cache_clear()
    assert verdict(keep=False).state != "differs", "other arithmetic is compared again"
    monkeypatch.undo()
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    (tmp_path / "selftest.json").write_text("[1, 2")
    verdict.cache_clear()
    assert verdict(keep=False).state != "differs", "a damaged file is no verdict"


def test_spread_flows_have_no_single_path_that_could_move() -> None:
    result = judge(sprayed(WHOLE))
    routing = snapshot(fibs(), SPRAY)
    moved = moved_of(FABRIC, routing, routing, [FLOW], ([result.flows[0].expected], result))
    assert (moved.flows, moved.spread, moved.moved, moved.gone) == (0, 1, 0, 0)
    assert moved.share(moved.moved) == 0.0 and "1 more are spread" in moved.text()
    mixed = {**SPRAY, "rtsw2": replace(SPRAY["rtsw2"], options=HashOptions(resilient=True))}
    assert moved_of(FABRIC, routing, snapshot(fibs(), mixed), [FLOW], ([()], result)).in_force == "mixed"


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
    assert result.to_json()["mmr"]["over"] == {"links": 4, "switches": ["rtsw1", "rtsw2"], "left_out": {}}
    assert "MMR (max/mean over 4 uplinks of 2 RTSWs with ranks): flows" in paths_text(result)


def test_links_above_nics_are_those_that_the_mmr_counts() -> None:
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
    wires = wires_of(dc)
    ids = np.array([wires.id_of[host.ports[0].ref] for host in dc.hosts if host.group("zone") == 1], dtype=np.int32)
    assert {wires.ports[at] for at in np.flatnonzero(wires.above(ids))} == above
    # The mmr leaves out uplinks of racks without ranks: Two racks of four run: an even spread over their uplinks is
    # even, whatever the idle racks are.
    sent = [Sent(flow_between(1, 2), 10, 1000), Sent(flow_between(2, 1), 10, 1000)]
    assert nics_of(FOUR, [each.flow for each in sent]) == {"host1:eth1", "host3:eth1"}
    above = ports_above(FOUR, nics_of(FOUR, [each.flow for each in sent]))
    uplinks = [(s, p) for s in FOUR.switches if s.level == 1 for p in s.ports if not FOUR.leads_to_host(p)]
    links = [LinkUse(p.ref, True, 1, 500 if p.ref in above else 0, 1, ranked=p.ref in above) for s, p in uplinks]
    over = UplinkSet.of(links)
    assert over.switches == ("rtsw1", "rtsw2") and len(over.links) == 4 and over.left_out == 4
    assert Mmr.of(over.links).bytes == 1.0
    assert Mmr.of(links).bytes == 2.0, "over all uplinks the idle racks would double it"


@pytest.mark.parametrize(
    ("spine", "how", "mmr", "left_out"),
    [
        ("ctsw2", "down", 2.0, ("rtsw1:eth2", "rtsw2:eth2")),
        ("ctsw2", "drained", 2.0, ("rtsw1:eth2", "rtsw2:eth2")),
        ("ctsw1", "drained", 3.0, ("rtsw2:eth1",)),  # rtsw1:eth1 carried the flow all the same
    ],
)
def test_the_mmr_leaves_out_uplinks_that_were_down_or_drained(
    spine: str, how: str, mmr: float, left_out: tuple[str, ...]
) -> None:
    """One flow on one of four uplinks, as in a prediction with --down and --drain."""
    assert FIRST == "rtsw1:eth1"
    found = evidence(SENT)
    state = {"down": {"eth1": True, "eth2": False}} if how == "down" else {"drained": True}
    nodes = {name: replace(node, **state) if name == spine else node for name, node in found.before.nodes.items()}
    found = replace(found, before=replace(found.before, nodes=nodes))
    assert Evidence.from_json(json.loads(json.dumps(found.to_json()))).before == found.before
    result = prove(FABRIC, found)
    assert prove(FABRIC, evidence(SENT)).mmr == Mmr(4.0, 4.0)
    assert result.mmr == Mmr(mmr, mmr)
    assert result.to_json()["mmr"]["over"]["left_out"] == dict.fromkeys(left_out, how)
    named = ", ".join(f"{port} ({how})" for port in left_out)
    assert f"{4 - len(left_out)} uplinks of 2 RTSWs with ranks; {named} " in " ".join(paths_text(result).split())
    (up, *_) = spreads(FABRIC, link_loads(FABRIC, SENT, result.links))[1:]
    assert (up.what, up.ports, up.unusable) == ("RTSW to CTSW", 4 - len(left_out), len(left_out))


RAIL = load_fabric("rail").fabric
MANY = [Sent(flow(50_000 + i, 256 + i), 10, 1000) for i in range(40)]


def result() -> PathsResult:
    return judge_run(MANY, evidence(MANY))


def select(fabric: Fabric = FABRIC, qp: str = "", host: str = "", port: str = "") -> QpSelection:
    return read_selection(fabric, [qp] if qp else [], [host] if host else [], [port] if port else [])


def numbers(found: PathsResult, selection: QpSelection) -> list[int]:
    return [proof.flow.qpn for proof in selection.shown(found)]


def rail_result(*ends: tuple[str, str]) -> PathsResult:
    """Proven QPs between NICs (`host1:eth2`) of one leaf of the preset rail."""
    ports = {port.ref: port for host in RAIL.hosts for port in host.ports}
    proofs = []
    for number, (src, dst) in enumerate(ends, 17):
        a, b = ports[src], ports[dst]
        assert a.address is not None and b.address is not None
        made = Flow(a.node, b.node, str(a.address.ip), str(b.address.ip), 50_000, number, a.peer_ref)
        path = (b.peer_ref,)
        proofs.append(FlowProof(Sent(made, 5, 500), path, path, Measured(((Count(path[0], 5, 500),),)), ""))
    return PathsResult(True, tuple(proofs), (), Mmr(None, None), {}, "leaf", {}, (), nics=NicNames.of(RAIL))


def test_some_of_many_are_shown_and_a_selection_shows_all_that_match() -> None:
    text = paths_text(result())
    assert "16 of 40 QPs are shown; --all shows all, and --qp, --host, --port select some" in text
    assert sum(line.startswith("host1 ") for line in text.splitlines()) == 16
    everything = paths_text(result(), rows=None)
    assert sum(line.startswith("host1 ") for line in everything.splitlines()) == 40
    assert "are shown" not in everything
    # A selection shows all that match and leaves the use of links out.
    found = result()
    text = paths_text(found, select(qp="257-280,0x121"))
    assert "25 of 40 QPs match --qp 257-280 --qp 0x121" in text
    assert sum(line.startswith("host1 ") for line in text.splitlines()) == 25
    assert text.splitlines()[0] == "prediction, kernel lookup and counters agree on the paths of all 40 QPs"
    assert "uplink" not in text and "5-tuples" not in text


@pytest.mark.parametrize(
    ("word", "chosen"), [("256", [256]), ("0x100-0x102", [256, 257, 258]), ("257,290-400", [257, *range(290, 296)])]
)
def test_qps_are_chosen_by_number_and_by_range(word: str, chosen: list[int]) -> None:
    assert numbers(result(), select(qp=word)) == chosen


def test_a_port_chooses_what_crosses_its_link_either_way() -> None:
    found = result()
    first = {proof.flow.qpn for proof in found.flows if proof.measured[0] == "rtsw1:eth1"}
    assert 0 < len(first) < 40
    for word in ("rtsw1:eth1", "ctsw1:eth1", "ctsw1"):  # ctsw1 leads from rtsw1 to rtsw2
        assert set(numbers(found, select(port=word))) == first, word
    for word in ("host1:eth1", "rtsw1:eth3", "rtsw2:eth3", "rtsw1", "host2"):  # all come in here, and leave there
        assert len(numbers(found, select(port=word))) == 40, word


def test_filters_choose_what_all_of_them_match_and_exclude_all() -> None:
    found = result()
    crossing = numbers(found, select(port="rtsw1:eth1"))
    assert numbers(found, select(port="rtsw1:eth1", qp=f"{crossing[0]}-{crossing[1]}", host="host2")) == crossing[:2]
    # All and a filter exclude each other.
    with pytest.raises(InputError, match="--all and --port exclude each other"):
        Shown(True, port=["rtsw1"]).selection(FABRIC)
    assert not Shown(True).selection(FABRIC)


def test_nics_of_hosts_with_several_are_named_everywhere() -> None:
    found = rail_result(("host1:eth2", "host3:eth2"), ("host1:eth1", "host2:eth1"))
    text = paths_text(found)
    assert "host1:eth2 host3:eth2       17" in text
    row = found.to_json()["flows"][0]
    assert (row["src"], row["src_nic"], row["dst_nic"]) == ("host1", "host1:eth2", "host3:eth2")
    assert numbers(found, select(RAIL, host="host1:eth2")) == [17]
    assert numbers(found, select(RAIL, host="host1")) == [17, 18]
    assert numbers(found, select(RAIL, host="host[23]:eth1")) == [18]
    single = result()
    assert paths_text(single).splitlines()[-2].startswith("host1     host2")
    assert single.to_json()["flows"][0]["src_nic"] == "host1:eth1"


def test_words_that_match_nothing_are_refused(answers: Answers) -> None:
    def read(flag: str, word: str) -> object:
        return read_selection(FABRIC, *([word] if flag == each else [] for each in ("qp", "host", "port")))

    answers(read)


def test_qps_that_are_not_proven_and_spread_ones_are_not_hidden() -> None:
    found = evidence(MANY, (9, 9, 9))  # the first flow's path, for all
    judged = judge_run(MANY, found)
    wrong = [proof for proof in judged.flows if proof.why]
    assert len(wrong) == 40
    text = paths_text(judged, select(qp="256"))
    assert "39 QPs that are not proven are not shown" in text
    assert "10 packets were sent, the first hop counted 9" in text
    # A spread qp crosses the ports that counted it.
    fan = ("rtsw1:{eth1,eth2}", "{ctsw1:eth2,ctsw2:eth2}", "rtsw2:eth3")
    steps = tuple((Count(port, 10, 1000),) for port in ("rtsw1:eth1", "ctsw1:eth2", "rtsw2:eth3"))
    proof = FlowProof(MANY[0], fan, fan, Measured(steps), "")
    for spread, ports in ((proof, {"rtsw1:eth1"}), (replace(proof, seen=Measured(())), {"rtsw1:eth1", "rtsw1:eth2"})):
        shown = replace(result(), flows=(spread,))
        crossed = {port for port in ("rtsw1:eth1", "rtsw1:eth2") if numbers(shown, select(port=port))}
        assert crossed == ports
