"""Faults of links as values and as keys of the file: what may be typed, what is printed, what netem gets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.units import format_share, parse_share
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.policydata import dump_policy, load_policy
from heddle.lab import runfaults
from heddle.lab.faults import orders
from heddle.lab.faults.record import SetFault
from heddle.lab.faults.registry import KINDS
from heddle.lab.impairments import PortFault, Requested
from heddle.lab.runfaults import FaultClock, PlannedFault, RunFaultSpan, delays_of, faults_on
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.part import TimeSpan
from heddle.runs.run import plan_run, plan_workload
from heddle.spec.faultsettings import SETTINGS
from heddle.spec.faulttimes import Times
from heddle.spec.impairments import COUNTS, NETEM_KINDS, NO_FAULT, LinkFault, RunFault, parse_run_fault
from heddle.spec.linkspec import delay_of_length, format_length, read_length
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.switch.links import delaylines
from heddle.switch.links.delaylines import DelayLine
from heddle.switch.links.portfaults import file_faults, line_of
from heddle.switch.queues.portids import port_ids
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.workload import Workload
from heddle.views.labtext import faults_text

TINY: Final = load_fabric("tiny").fabric
WRONG: Final = (
    ["loss=1/256"],
    ["rtsw1:eth3"],
    [""],
    ["rtsw1:eth3,los=1/256"],
    ["rtsw1:eth3,loss"],
    ["rtsw1:eth3,loss=1/256,loss=1%"],
    ["rtsw1:eth3,loss=2,corrupt=often,delay=5,jitter=2ms"],
    ["rtsw1:eth3,loss=0"],
    ["rtsw1:eth3,reorder=1%"],
    ["rtsw1:eth3,delay=1us,jitter=5us"],
    ["rtsw1:eth3,loss=2", "rtsw1:eth4"],
    ["rtsw1:eth1,down,loss=1%"],
    ["rtsw1,drain,from=1s"],
    ["rtsw1:eth1,down,from=4s,to=2s"],
    ["rtsw1:eth1,down,to=0"],
    ["rtsw1:eth1,down,from=2,to=often"],
    ["rtsw1:eth1,down,form=2s"],
    ["rtsw1:eth1,from=2s,to=4s"],
    ["rtsw1:eth1,down,every=5s"],
    ["rtsw1:eth1,down,from=2s,to=4s,every=2s"],
    ["rtsw1:eth1,down,to=10ms,every=50ms"],
    ["rtsw1:eth1,down,from=2s,to=4s", "ctsw1:eth1,down,from=3s,to=5s"],
    ["rtsw1,loss=1%", "rtsw1:eth3,corrupt=1%,from=1s,to=2s"],
    ["rtsw1:eth9,ctws1,loss=1%", "rtsw1:eth3,loss=1%", "leaf1:eth1,loss=1%"],
    ["rtsw1:eth1,slow-link"],
    ["rtsw1:eth1,slow-link,rate=2"],
    ["rtsw1:eth1,slow-link,rate=100%,duty=1/2"],
    ["rtsw1:eth1,slow-link,loss=1%"],
    ["rtsw1:eth1,down,bgp-down"],
    ["rtsw1:eth1,slow-lnk,rate=10%"],
    ["rtsw1:eth3,bgp-down"],
    ["host1,frozen"],
    ["ctsw9,node-down"],
    ["rtsw1,pfc-storm"],
    ["host1,pfc-storm,time=20ms,class=9"],
    ["frozen"],
    ["rtsw1:eth1,flap,period=1h"],
    ["rtsw1:eth1,misroute"],
    ["rtsw1:eth1,slow-link,rate=10%", "rtsw1,slow-link,rate=20%,from=1s"],
)


@pytest.mark.parametrize(
    ("text", "share"), [("1/256", 1 / 256), ("0.5%", 0.005), ("0.005", 0.005), ("1", 1.0), ("100%", 1.0), ("0", 0.0)]
)
def test_shares_are_fractions_percent_or_numbers(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2", "is more than all packets"),
        ("1/0", "divides by 0"),
        ("-0.1", "is not a share"),
        ("often", "is not a share"),
        ("1e-12", "is less than 1 packet in 1,000,000,000"),
    ],
)
def test_other_shares_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_share(text)


def test_a_fault_in_words_has_both_times_and_shares_as_usually_written() -> None:
    fault = LinkFault(delay_ns=10_000, jitter_ns=1_000, loss=1 / 256, reorder=0.02)
    assert fault.text(4000) == "1/256 lost, 1/50 reordered, delay 10us (40ms here), jitter 1us (4ms here)"
    assert NO_FAULT.text(4000) == "none"
    assert not NO_FAULT and fault
    # A share is printed as it is usually written.
    assert [format_share(each) for each in (1 / 256, 0.01, 0.3, 1.0, 0.5)] == ["1/256", "1/100", "30%", "100%", "50%"]


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        (LinkFault(reorder=0.1), "reorder"),
        (LinkFault(jitter_ns=1), "jitter"),
        (LinkFault(delay_ns=5, jitter_ns=6), "jitter"),
        (LinkFault(delay_ns=5, jitter_ns=5, reorder=1.0, loss=1.0), ""),
    ],
)
def test_values_that_do_not_fit_together_are_named(fault: LinkFault, key: str) -> None:
    assert fault.complaint()[0] == key


def test_only_a_delay_needs_netem_which_keeps_the_order_by_a_rate_above_any_link() -> None:
    assert LinkFault(delay_ns=1).needs_netem
    assert not LinkFault(loss=1.0, corrupt=1.0, duplicate=1.0).needs_netem
    # Netem keeps the order by a rate far above any link.
    line = DelayLine("eth1", 7, {"delay": 40_000_000, "jitter": 4_000_000, "reorder": 0.25})
    assert (line.inlet, line.outlet) == ("line7", "back7")
    assert line.netem() == "netem limit 1000000 delay 40000000ns 4000000ns reorder 25.0000000% rate 100gbit"
    assert DelayLine("eth1", 7, {"delay": 1}).netem() == "netem limit 1000000 delay 1ns rate 100gbit"


def test_the_record_has_ports_that_are_down_and_faults_side_by_side(tmp_path: Path) -> None:
    links = {"rtsw1:eth2": LinkFault(loss=0.25), "rtsw1:eth3": NO_FAULT}
    before = {"rtsw1:eth2": LinkFault(corrupt=0.1), "rtsw1:eth3": None, "rtsw1:eth4": NO_FAULT}
    for each in (
        Requested(),
        Requested(down=frozenset({"rtsw1:eth1", "rtsw2:eth1"})),
        Requested(frozenset({"rtsw1:eth1"}), links),
        Requested(frozenset({"rtsw1:eth1"}), links, before, frozenset({"rtsw1:eth2"})),
        Requested(more=(SetFault("slow-link", "rtsw1:eth1", {"rate": 0.5}, (7, 9)), SetFault("flap", "a", run=True))),
    ):
        each.write(tmp_path)
        assert Requested.read(tmp_path) == each


@pytest.mark.parametrize("faults", ["x", [1], {"a": 1}, {"a": {"loss": "1"}}, {"a": {"colour": 1}}])
def test_a_damaged_part_of_the_record_counts_as_no_fault(tmp_path: Path, faults: object) -> None:
    (tmp_path / "faults.json").write_text(
        json.dumps({"down": ["rtsw1:eth1"], "links": faults, "run": faults, "more": faults})
    )
    assert Requested.read(tmp_path) == Requested(down=frozenset({"rtsw1:eth1"}))


def test_the_table_names_the_fault_its_source_and_its_counts() -> None:
    counts = {**dict.fromkeys(COUNTS, 0), "packets": 1024, "lost": 4, "delayed": 1020, "waiting": 3}
    rows = [
        PortFault("rtsw1:eth1", "ctsw1:eth1", LinkFault(delay_ns=1000, loss=1 / 256), "fault", counts),
        PortFault("rtsw1:eth2", "ctsw2:eth1", LinkFault(loss=1 / 256), "file", None),
    ]
    text = faults_text(rows, 4000, "rtsw1:eth3")
    first, second = (line.split("  ") for line in text.splitlines()[1:3])
    assert [cell.strip() for cell in first if cell.strip()] == [
        "rtsw1:eth1", "ctsw1:eth1", "1/256 lost, delay 1us (4ms here)", "1,024", "4", "-", "-", "1,020", "3",
    ]  # fmt: skip
    assert "1/256 lost (file): missing, ./inv up --repair sets it again" in "  ".join(second)
    assert "k = 4000" in text
    assert "./inv fault rtsw1:eth3 --loss 1/256" in faults_text([], 4000, "rtsw1:eth3")


@pytest.mark.parametrize(
    ("text", "ports", "fault"),
    [
        ("rtsw1:eth3,loss=1/256", ("rtsw1:eth3",), LinkFault(loss=1 / 256)),
        ("rtsw1:eth3, ctsw*, loss=1%, corrupt=0.5%", ("rtsw1:eth3", "ctsw*"), LinkFault(loss=0.01, corrupt=0.005)),
        ("delay=10us,jitter=1us,reorder=2%,rtsw1", ("rtsw1",), LinkFault(10_000, 1_000, reorder=0.02)),
    ],
)
def test_a_fault_for_a_run_is_ports_and_values(text: str, ports: tuple[str, ...], fault: LinkFault) -> None:
    assert parse_run_fault(text) == RunFault(ports, fault)


def test_ports_are_resolved_on_the_fabric_and_the_last_fault_of_a_port_counts() -> None:
    found = faults_on(TINY, ["rtsw1,loss=1%", "rtsw1:eth3,corrupt=1%"])
    assert {each.port: each.fault for each in found} == {
        **dict.fromkeys(("rtsw1:eth1", "rtsw1:eth2", "rtsw1:eth4"), LinkFault(loss=0.01)),
        "rtsw1:eth3": LinkFault(corrupt=0.01),
    }
    assert faults_on(TINY, []) == ()


def test_a_link_goes_down_once_at_the_end_of_a_switch() -> None:
    (link,) = faults_on(TINY, ["rtsw1:eth1,ctsw1:eth1,down,from=2s,to=4s,every=5s"])
    assert link == PlannedFault("rtsw1:eth1", None, Times(2 * 10**9, 4 * 10**9, 5 * 10**9))
    assert (link.what(4000), link.times.text()) == ("rtsw1:eth1 down", "from 2s to 4s, every 5s")
    (host,) = faults_on(TINY, ["host1:eth1,down"])
    assert (host.port, bool(host.times)) == ("rtsw1:eth3", False)


def test_a_kind_by_name_has_its_place_its_values_and_times() -> None:
    (slow,) = faults_on(TINY, ["rtsw1:eth1,slow-link,rate=1/4,from=2s"])
    assert slow == PlannedFault("rtsw1:eth1", None, Times(2 * 10**9), "slow-link", (("rate", 0.25),))
    assert (slow.what(4000), slow.reroutes, slow.down) == ("rtsw1:eth1: slow-link at 1/4 of its rate", False, False)
    both = faults_on(TINY, ["rtsw1:eth1,ctsw1:eth1,bgp-down", "rtsw1:eth1,loss=1%", "ctsw*,frozen,to=1s"])
    assert [(each.port, each.kind, each.reroutes) for each in both] == [
        ("rtsw1:eth1", "bgp-down", True),
        ("rtsw1:eth1", "", False),
        ("ctsw1", "frozen", True),
        ("ctsw2", "frozen", True),
    ]


def test_each_kind_takes_values_that_there_are() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name and kind.does.endswith(".") and kind.settings.keys() <= SETTINGS.keys()
    assert {key for kind in KINDS.values() for key in kind.settings} == SETTINGS.keys()


def test_several_faults_of_a_port_may_follow_each_other_and_a_lossy_link_may_go_down() -> None:
    texts = ["rtsw1:eth1,loss=1%,to=1s", "rtsw1:eth1,corrupt=1%,from=1s,to=2s", "rtsw1:eth1,down,from=500ms"]
    assert len(faults_on(TINY, texts)) == 3
    delays = ["rtsw1:eth1,corrupt=1%,to=1s", "rtsw1:eth1,loss=1%,from=1s"]
    assert delays_of(faults_on(TINY, delays)) == {"rtsw1:eth1": LinkFault(corrupt=0.01)}


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ((None, 5, 0), (5, None, 0), False),
        ((None, 6, 0), (5, None, 0), True),
        ((1, None, 0), (7, 9, 0), True),
        ((2, 4, 5), (4, 7, 5), False),
        ((2, 4, 5), (4, 8, 5), True),
        ((2, 4, 5), (0, 1, 3), True),
        ((0, 2, 6), (2, 4, 4), True),
        ((0, 1, 4), (2, 3, 8), False),
        ((0, 2, 6), (3, 4, 4), True),
        ((2, 4, 5), (4, 7, 0), False),
        ((2, 4, 5), (4, 8, 0), True),
        ((2, 4, 5), (9, 12, 0), False),
        ((2, 4, 5), (9, None, 0), True),
        ((20, 40, 50), (0, 20, 0), False),
        (None, (3, 4, 0), True),
    ],
)
def test_times_overlap_when_one_begins_before_the_other_has_ended(one: Any, other: Any, meet: bool) -> None:
    first, second = Times(*one or ()), Times(*other)
    assert (first.overlap(second), second.overlap(first)) == (meet, meet)


def test_a_clock_begins_and_ends_faults_in_the_order_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = 10**6
    flap = PlannedFault("rtsw1:eth1", None, Times(10 * ms, 20 * ms, 30 * ms))
    lossy = PlannedFault("rtsw2:eth1", LinkFault(loss=0.5), Times(None, 20 * ms))
    more = PlannedFault("rtsw2:eth1", LinkFault(loss=0.1), Times(20 * ms))
    whole = PlannedFault("rtsw2:eth2", LinkFault(loss=0.1), Times())
    done: list[tuple[str, tuple[PlannedFault, ...]]] = []
    seen = threading.Event()

    def heard(word: str, each: Sequence[PlannedFault]) -> None:
        done.append((word, tuple(each)))
        if len(done) == 5:
            seen.set()

    monkeypatch.setattr(FaultClock, "begin", lambda self, each: heard("begin", each))
    monkeypatch.setattr(FaultClock, "end", lambda self, each: heard("end", each))
    lab = SimpleNamespace(fabric=SimpleNamespace(switches=()))
    clock = FaultClock(lab, [flap, lossy, more, whole])  # type: ignore[arg-type]
    with clock.during(time.monotonic_ns):
        assert seen.wait(60)
    assert done[:5] == [
        ("begin", (flap,)),
        ("end", (flap, lossy)),
        ("begin", (more,)),
        ("begin", (flap,)),
        ("end", (flap,)),
    ]


def test_a_fault_begins_before_its_links_go_down_since_packets_are_lost_from_then_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (down,) = faults_on(TINY, ["rtsw1:eth1,down,from=1s"])
    changed: list[int] = []
    monkeypatch.setattr(runfaults, "changing", lambda lab: nullcontext())
    monkeypatch.setattr(runfaults, "_up_now", lambda lab, ports: [*ports])
    monkeypatch.setattr(runfaults, "write_faults", lambda lab, faults, more: None)
    monkeypatch.setattr(orders, "begin", lambda lab, named, run: [])
    monkeypatch.setattr(runfaults, "set_links", lambda lab, ports, state: changed.append(time.monotonic_ns()))
    clock = FaultClock(SimpleNamespace(dir=tmp_path), [down])  # type: ignore[arg-type]
    clock.begin([down])
    assert clock.spans[0].begin_ns <= changed[0]


def test_values_of_netem_are_read_where_tc_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"limit": 9, "delay": {"delay": 0.04, "jitter": 0.004}, "reorder": {"reorder": 0.25}}
    rows = [{"dev": "line7", "kind": "netem", "qlen": 3, "drops": 1, "options": options}]
    links = [{"ifname": "line7", "ifindex": 5}, {"ifname": "back7", "ifindex": 6}]
    answers = {"tc": json.dumps(rows), "ip": json.dumps(links)}
    monkeypatch.setattr(delaylines, "run", lambda words: SimpleNamespace(out=answers[words[2]]))
    values: dict[str, float] = dict.fromkeys((kind.key for kind in NETEM_KINDS), 0)
    values |= {"delay": 40_000_000, "jitter": 4_000_000, "reorder": 0.25}
    assert delaylines.read(Path("x")) == {7: delaylines.LineState(5, values, 3, 1)}


def test_the_record_of_a_run_has_when_each_fault_was_set_and_which_never_was() -> None:
    flap, late = faults_on(TINY, ["rtsw1:eth1,down,from=2s,to=4s,every=5s", "rtsw2,loss=1%,from=60s"])[:2]
    clock = SimpleNamespace(
        planned=(flap, late),
        spans=[RunFaultSpan(flap, 3 * 10**9, 5 * 10**9), RunFaultSpan(flap, 8 * 10**9)],
    )
    plan = SimpleNamespace(k=4000)
    run = SimpleNamespace(faults=clock, plan=plan, began_ns=10**9, ended_ns=9 * 10**9)
    found = FaultTimes.of_run(run)  # type: ignore[arg-type]
    assert found is not None
    assert found.lines() == [
        "#faults   : rtsw1:eth1 down, in wall time of the run: 2.000 s to 4.000 s, 7.000 s to the end",
        "#faults   : rtsw2:eth1: 1/100 lost from 60s: the run ended before, after 8.000 s",
    ]
    assert len(found.outages()) == 1
    assert found.times() == [TimeSpan("rtsw1:eth1 down", 2.0, 4.0), TimeSpan("rtsw1:eth1 down", 7.0, 8.0)]
    whole = replace(found, spans=(replace(found.spans[0], requested=""),))
    assert whole.times() == [], "a fault of the whole run marks no time"
    assert [span["end_ns"] for span in found.to_json()["spans"]] == [5 * 10**9, None]


def test_wrong_faults_are_explained_before_anything_starts(golden: Callable[[str, str], None]) -> None:
    said = []
    for texts in WRONG:
        with pytest.raises(InputError) as caught:
            plan_run(TINY, run_options(fault=texts))
        said.append(f"--fault {' --fault '.join(texts)}\n{caught.value}\n")
    golden("runs/run_faults.log", "\n".join(said))


def test_a_run_keeps_what_was_typed() -> None:
    texts = ["rtsw1:eth3,loss=1/256", "host1,corrupt=1%"]
    assert run_options(fault=texts).faults == tuple(texts)
    jobs, faults = plan_workload(TINY, Workload.of(run_options(fault=texts)))
    assert len(jobs) == 1 and faults == faults_on(TINY, texts)
    assert RunOptions().faults == ()


@pytest.mark.root
def test_where_netem_is_missing_a_delay_is_refused_before_anything_starts() -> None:
    options = run_options(fault=["rtsw1:eth3,delay=10us"])
    if not delaylines.missing():
        plan_run(TINY, options)
        return
    with pytest.raises(MachineError, match=r"a delay on a link is not possible: this kernel has no sch_netem\n.*vm"):
        plan_run(TINY, options)


LINK = "link.delay_at=link"
ALL = ("link.loss=1/256", "link.corrupt=0.1%", "link.duplicate=0.005", "link.reorder=2%", "link.jitter=50ns")


def fabric(preset: str, *overrides: str) -> Fabric:
    return load_fabric(preset, overrides=overrides).fabric


@pytest.mark.parametrize(
    ("text", "millimetres", "ns"),
    [("3m", 3000, 15), ("2.5m", 2500, 12), ("0.001m", 1, 1), ("100 m", 100_000, 500), ("2km", 2_000_000, 10_000),
     ("200km", 200_000_000, 1_000_000), ("0", 0, 0)],
)  # fmt: skip
def test_a_length_is_light_in_glass(text: str, millimetres: int, ns: int) -> None:
    assert read_length(text) == millimetres
    assert delay_of_length(millimetres) == ns


def test_lengths_are_light_in_glass() -> None:
    assert [format_length(each) for each in (0, 1, 2500, 30_000, 2_000_000)] == ["0", "0.001m", "2.5m", "30m", "2000m"]
    # One end may have a length and the other a delay.
    assert fabric("tiny", "link.length.host=20m", "link.delay.fabric=1us").policy.delays == (100, 1000, 1000)


@pytest.mark.parametrize(
    ("said", "delays"),
    [
        ("30m", (150, 150, 150)),
        ("{host: 3m, fabric: 2km}", (15, 10_000, 10_000)),
        ("{fabric: 100m}", (0, 500, 500)),
        ("0", ()),
    ],
)
def test_a_length_sets_the_delay_that_the_receiving_nic_adds(said: str, delays: tuple[int, ...]) -> None:
    built = fabric("tiny", f"link.length={said}")
    assert built.policy.delays == delays
    assert (built.policy.link_faults, built.policy.delayed_on_links) == ((), False)


@pytest.mark.parametrize("given", ["link.length={host: 3m, fabric: 100m}", "link.delay={host: 15ns, fabric: 500ns}"])
def test_with_delay_at_link_the_delay_is_on_each_link_and_no_nic_adds_it(given: str) -> None:
    there, here = fabric("tiny", given, LINK), fabric("tiny", given)
    assert there.policy.link_faults == (LinkFault(delay_ns=15), *[LinkFault(delay_ns=500)] * 2)
    assert there.policy.delayed_on_links
    at_link, at_nic = (build_plan(each, RunOptions()) for each in (there, here))
    assert {qp.delay_s for qp in at_link.qps} == {0.0}
    assert 0.0 not in {qp.delay_s for qp in at_nic.qps}
    assert [qp.rtt_s for qp in at_link.qps] == [2 * qp.delay_s for qp in at_nic.qps]
    assert at_link.propagation == at_nic.propagation, "window and timeout follow the same path"
    assert at_link.timeout_s == at_nic.timeout_s


@pytest.mark.parametrize("scale", [4000, 8000])
def test_the_real_length_of_a_cable_is_scaled_by_k(scale: int) -> None:
    """100 m are 500 ns on hardware, and k times as long in netem."""
    built = fabric("tiny", "link.length={host: 3m, fabric: 100m}", LINK, "link.jitter.fabric=20ns", f"scale={scale}")
    ids, wanted = port_ids(built), file_faults(built)
    lines = {
        port.ref: line_of(port, ids[port.node, port.name], wanted[port.ref], built.policy.k)
        for node in built.nodes
        for port in node.ports
    }
    assert lines["host1:eth1"].netem() == f"netem limit 1000000 delay {15 * scale}ns rate 100gbit"
    uplink = next(port for port in built.by_name["rtsw1"].ports if port.peer_node == "ctsw1")
    assert lines[uplink.ref].netem() == f"netem limit 1000000 delay {500 * scale}ns {20 * scale}ns rate 100gbit"
    assert lines[uplink.ref].port == uplink.peer_port


def test_a_fault_is_on_both_directions_of_every_link_of_its_kind_and_of_no_other() -> None:
    built = fabric("tiny", "link.loss.host=1%", "link.duplicate.fabric=1/256")
    kinds = {
        port.ref: any(each.startswith("host") for each in (port.node, port.peer_node))
        for node in built.nodes
        for port in node.ports
    }
    found = file_faults(built)
    assert found == {ref: LinkFault(loss=0.01) if host else LinkFault(duplicate=1 / 256) for ref, host in kinds.items()}
    # Without these keys no link has a fault.
    assert fabric("dc").policy.link_faults == ()
    assert file_faults(fabric("tiny", "link.loss=0", "link.delay=shape")) == {}
    # Links between switches of all levels have the fault of fabric.
    assert fabric("dc", "link.loss.fabric=1/256").policy.link_faults == (LinkFault(), *[LinkFault(loss=1 / 256)] * 2)


def test_all_keys_together_survive_records() -> None:
    loaded = load_fabric("dc", overrides=["link.length={host: 20m, fabric: 2km}", LINK, *ALL])
    fault = LinkFault(delay_ns=100, jitter_ns=50, loss=1 / 256, corrupt=0.001, duplicate=0.005, reorder=0.02)
    policy = loaded.fabric.policy
    assert policy.link_faults[0] == fault
    assert load_policy(json.loads(json.dumps(dump_policy(policy)))) == policy
    spec = load_spec(json.loads(json.dumps(dump_spec(loaded.spec))))
    assert spec == loaded.spec
    keys = {path for path, *_ in differences(load_fabric("dc").spec, spec)}
    words = ("length", "jitter", "loss", "corrupt", "duplicate", "reorder")
    assert keys == {"link.delay_at", *(f"link.{word}.{kind}" for word in words for kind in ("host", "fabric"))}
