"""Faults of a run: ports, values and times, the order in which they are set, and how errors are explained."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from heddle.base.problems import MachineError
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import runfaults
from heddle.lab.faults import orders
from heddle.lab.faults.registry import KEYS, KINDS
from heddle.lab.runfaults import FaultClock, PlannedFault, RunFaultSpan, delays_of, faults_on
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.part import TimeSpan
from heddle.runs.run import plan_run, plan_workload
from heddle.spec.faultsettings import SETTINGS, Times
from heddle.spec.impairments import KINDS as OF_LINKS
from heddle.spec.impairments import NETEM_KINDS, LinkFault, parse_run_fault
from heddle.switch.links import portfaults
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import Workload
from tests.answers import Answers

TINY: Final = load_fabric("tiny").fabric


def test_a_fault_for_a_run_is_ports_and_values(answers: Answers) -> None:
    answers(lambda text: parse_run_fault(text, KEYS))


def test_ports_are_resolved_on_the_fabric_and_the_last_fault_of_a_port_counts() -> None:
    found = faults_on(TINY, ["rtsw1,loss=1%", "rtsw1:eth3,corrupt=1%"])
    assert {each.port: dict(each.values) for each in found} == {
        **{f"rtsw1:eth{number}": {"loss": 0.01} for number in (1, 2, 4)},
        "rtsw1:eth3": {"corrupt": 0.01},
    }
    assert faults_on(TINY, []) == ()


def test_a_link_goes_down_once_at_the_end_of_a_switch() -> None:
    (link,) = faults_on(TINY, ["rtsw1:eth1,ctsw1:eth1,down,from=2s,to=4s,every=5s"])
    assert link == PlannedFault("rtsw1:eth1", "down", Times(2 * 10**9, 4 * 10**9, 5 * 10**9))
    assert (link.what(4000), link.times.text()) == ("rtsw1:eth1 down", "from 2s to 4s, every 5s")
    (host,) = faults_on(TINY, ["host1:eth1,down"])
    assert (host.port, bool(host.times)) == ("rtsw1:eth3", False)


def test_a_kind_by_name_has_its_place_its_values_and_times() -> None:
    (slow,) = faults_on(TINY, ["rtsw1:eth1,slow-link,rate=1/4,from=2s"])
    assert slow == PlannedFault("rtsw1:eth1", "slow-link", Times(2 * 10**9), (("rate", 0.25),))
    assert (slow.what(4000), slow.reroutes) == ("rtsw1:eth1: slow-link at 1/4 of its rate", False)
    both = faults_on(TINY, ["rtsw1:eth1,ctsw1:eth1,bgp-down", "rtsw1:eth1,loss=1%", "ctsw*,frozen,to=1s"])
    assert [(each.port, each.kind, each.reroutes) for each in both] == [
        ("rtsw1:eth1", "bgp-down", True),
        ("rtsw1:eth1", "packets", False),
        ("ctsw1", "frozen", True),
        ("ctsw2", "frozen", True),
    ]


def test_each_kind_takes_values_that_there_are() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name and kind.does.endswith(".")
    assert {key for keys in KEYS.values() for key in keys} == SETTINGS.keys()
    assert {*KINDS} - {*KEYS} == {"packets"} and KINDS["packets"].settings.keys() == OF_LINKS.keys()


def test_several_faults_of_a_port_may_follow_each_other_and_a_lossy_link_may_go_down() -> None:
    texts = ["rtsw1:eth1,loss=1%,to=1s", "rtsw1:eth1,corrupt=1%,from=1s,to=2s", "rtsw1:eth1,down,from=500ms"]
    assert len(faults_on(TINY, texts)) == 3
    delays = ["rtsw1:eth1,corrupt=1%,to=1s", "rtsw1:eth1,loss=1%,from=1s"]
    assert delays_of(faults_on(TINY, delays)) == {"rtsw1:eth1": LinkFault(corrupt=0.01)}


def test_times_overlap_when_one_begins_before_the_other_has_ended(answers: Answers) -> None:
    def meet(one: Any, other: Any) -> bool:
        first, second = Times(*one or ()), Times(*other)
        assert first.overlap(second) == second.overlap(first)
        return first.overlap(second)

    answers(meet)


def test_a_clock_begins_and_ends_faults_in_the_order_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = 10**6
    flap = PlannedFault("rtsw1:eth1", "down", Times(10 * ms, 20 * ms, 30 * ms))
    lossy = PlannedFault("rtsw2:eth1", "packets", Times(None, 20 * ms), (("loss", 0.5),))
    more = PlannedFault("rtsw2:eth1", "packets", Times(20 * ms), (("loss", 0.1),))
    whole = PlannedFault("rtsw2:eth2", "packets", Times(), (("loss", 0.1),))
    done: list[tuple[str, tuple[PlannedFault, ...]]] = []
    seen = threading.Event()

    def heard(word: str, each: Sequence[PlannedFault]) -> None:
        done.append((word, tuple(each)))
        if len(done) == 5:
            seen.set()

    monkeypatch.setattr(FaultClock, "begin", lambda self, each: heard("begin", each))
    monkeypatch.setattr(FaultClock, "end", lambda self, each: heard("end", each))
    fabric = SimpleNamespace(switches=(), policy=SimpleNamespace(ip_version=4))
    lab = SimpleNamespace(name="none", fabric=fabric, handles=dict)
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (down,) = faults_on(TINY, ["rtsw1:eth1,down,from=1s"])
    changed: list[int] = []
    monkeypatch.setattr(runfaults, "changing", lambda lab: nullcontext())

    def start(*_: object, **__: object) -> list[object]:
        changed.append(time.monotonic_ns())
        return []

    monkeypatch.setattr(orders, "start", start)
    clock = FaultClock(SimpleNamespace(), [down])  # type: ignore[arg-type]
    clock.begin([down])
    assert clock.spans[0].begin_ns <= changed[0]


def test_values_of_netem_are_read_where_tc_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"limit": 9, "delay": {"delay": 0.04, "jitter": 0.004}, "reorder": {"reorder": 0.25}}
    rows = [{"dev": "line7", "kind": "netem", "qlen": 3, "drops": 1, "options": options}]
    links = [{"ifname": "line7", "ifindex": 5}, {"ifname": "back7", "ifindex": 6}]
    answers = {"tc": json.dumps(rows), "ip": json.dumps(links)}
    monkeypatch.setattr(portfaults, "run", lambda words: SimpleNamespace(out=answers[words[2]]))
    values: dict[str, float] = dict.fromkeys((kind.key for kind in NETEM_KINDS), 0)
    values |= {"delay": 40_000_000, "jitter": 4_000_000, "reorder": 0.25}
    assert portfaults.read(Path("x")) == {7: portfaults.LineState(5, values, 3, 1)}


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


def test_wrong_faults_are_explained_before_anything_starts(answers: Answers) -> None:
    answers(lambda *faults: plan_run(TINY, run_options(fault=faults)))


def test_a_run_keeps_what_was_typed() -> None:
    texts = ["rtsw1:eth3,loss=1/256", "host1,corrupt=1%"]
    assert run_options(fault=texts).faults == tuple(texts)
    jobs, faults = plan_workload(TINY, Workload.of(run_options(fault=texts)))
    assert len(jobs) == 1 and faults == faults_on(TINY, texts)
    assert RunOptions().faults == ()


@pytest.mark.root
def test_where_netem_is_missing_a_delay_is_refused_before_anything_starts() -> None:
    options = run_options(fault=["rtsw1:eth3,delay=10us"])
    if not portfaults.missing():
        plan_run(TINY, options)
        return
    with pytest.raises(MachineError, match=r"a delay on a link is not possible: this kernel has no sch_netem\n.*vm"):
        plan_run(TINY, options)


LINK = "link.delay_at=link"
ALL = ("link.loss=1/256", "link.corrupt=0.1%", "link.duplicate=0.005", "link.reorder=2%", "link.jitter=50ns")
