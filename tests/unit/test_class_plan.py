"""Numbers that queues go by: ports, classes, buffers, thresholds, bursts, RED's curve; what `queues set` takes."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.base.units import parse_rate
from heddle.fabric.fabricfile import checked, load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.policy import buffer_bytes
from heddle.fabric.shapes import build
from heddle.host.limits import at_once
from heddle.lab.thresholds import changed
from heddle.spec.queuepolicy import BufferPolicy, ClassCurve, EcnPolicy, QueuePolicy, TrimmingPolicy
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.queues import red
from heddle.switch.queues.classes import (
    UNUSED,
    base_of,
    budget_of,
    burst_bytes,
    check_ids,
    classid,
    deepest_queue,
    numbered_ports,
    policies_of,
    port_at,
    port_ids,
    row,
)
from heddle.switch.queues.portqueues import DISCIPLINES, number_of
from tests.answers import Answers

SLOW = {"host": "25mbit", "fabric": "25mbit"}


def fabric(link: Any = SLOW, **queues: Any) -> Fabric:
    queues["pfc"] = {"reaction": "10ms", **queues.get("pfc", {})}
    return checked(ClosSpec(name="q", racks=8, ctsw=4, link=link, queues=queues)).fabric  # type: ignore[arg-type]


def test_dscps_are_of_the_class_that_their_upper_bits_name_where_there_is_one() -> None:
    plan = QueuePolicy(weights={1: 2}, dscp={26: 1, 63: 0})
    assert plan.numbers == (0, 1, 3, 6)
    assert [plan.kind(number) for number in plan.numbers] == ["lossy", "lossy", "lossless", "control"]
    assert [plan.weight(number) for number in (0, 1, 3)] == [1, 2, 4]
    eights = [plan.class_of_dscp[8 * n : 8 * n + 8] for n in range(8)]
    assert eights[0] == eights[2] == eights[4] == eights[5] == (0,) * 8
    assert eights[1] == (1,) * 8
    assert eights[3] == (3, 3, 1, 3, 3, 3, 3, 3)
    assert eights[6] == (6,) * 8
    assert eights[7] == (*(6,) * 7, 0)
    # Network control is of control whatever its number.
    plan = QueuePolicy(control=5)
    assert plan.class_of_dscp[48:] == (5,) * 16
    assert plan.class_of_dscp[40:48] == (5,) * 8


def test_thresholds_with_which_pfc_acts_before_ecn_are_named_with_both_numbers() -> None:
    usual = QueuePolicy()
    late = replace(usual, ecn=EcnPolicy(kmin=400_000, kmax=1_600_000))
    assert late.late_marks == (
        "class 3: PFC acts before ECN: pfc.xoff pauses a port from 60KB on that came in by it, and ecn.kmin marks a"
        " queue from 400KB on; use an ecn.kmin below pfc.xoff",
    )
    for part, fields in (("ecn", {"enabled": False}), ("pfc", {"enabled": False}), ("pfc", {"xoff": 500_000})):
        assert replace(late, **{part: replace(getattr(late, part), **fields)}).late_marks == ()
    assert usual.late_marks == replace(late, lossless=()).late_marks == ()
    assert len(replace(usual, lossless=(3, 4), ecn=EcnPolicy(classes={4: ClassCurve(kmin=60_000)})).late_marks) == 1


def test_data_in_a_class_that_is_not_paused_is_named_where_others_are() -> None:
    usual, moved = QueuePolicy(), QueuePolicy(dscp={24: 0})
    assert usual.lossy_data(24) == ()
    assert moved.lossy_data(24) == (
        "data with DSCP 24 is in class 0 (lossy): a full queue drops it, and nothing is paused; set"
        " queues.dscp.24=3, or use a DSCP of a lossless class",
    )
    assert len(usual.lossy_data(24, 8, 26, 48)) == 2  # 8 is best effort, 48 is control
    assert "class 6 (control)" in usual.lossy_data(48)[0]
    assert replace(moved, lossless=()).lossy_data(24) == ()
    assert replace(moved, pfc=replace(moved.pfc, enabled=False)).lossy_data(24) == ()
    trimmed = replace(moved, trimming=TrimmingPolicy(5))
    assert trimmed.lossy_data(24) == (), "a full queue trims it"
    for other in ({"enabled": False}, {"actions": {0: "drop"}}):
        assert replace(moved, trimming=TrimmingPolicy(5, **other)).lossy_data(24) == moved.lossy_data(24)


def test_a_buffer_is_headroom_and_reserve_and_what_is_shared() -> None:
    queues = fabric().policy.queues
    one = 25_000_000 * 10 // 8000 + 2 * 4214  # 10 ms at the port's rate, and two frames
    ports = [(25_000_000, 4200)] * 6
    found = buffer_bytes(queues, 1, ports, is_edge=True)
    assert (found.headroom, found.reserved) == (6 * one, 6 * 3 * 10_000)
    assert found.buffer == 6 * one + 6 * 150_000
    assert found.shared == found.buffer - found.headroom - found.reserved == 720_000
    assert buffer_bytes(queues, 2, ports, is_edge=False).buffer == 6 * one + 6 * 1_000_000, "spines are deep"
    without = replace(queues, pfc=replace(queues.pfc, enabled=False))
    assert buffer_bytes(without, 1, ports, is_edge=True).headroom == 0


def test_each_port_has_the_numbers_of_its_own_rate() -> None:
    lab = fabric(link={**SLOW, "exceptions": {"rtsw1:eth1": "100mbit"}})
    policies = policies_of(lab)
    slow, fast = policies["rtsw1", "eth2"][3], policies["rtsw1", "eth1"][3]
    assert (slow.headroom, fast.headroom) == (31_250 + 8428, 125_000 + 8428)
    assert (slow.quanta, fast.quanta) == (12_207, 48_828), "a quarter of a second, in 512 bits each"
    assert slow.shared == fast.shared == budget_of(lab, lab.by_name["rtsw1"], lab.policy.queues).shared
    assert policies["rtsw1", "eth2"][6].ecn is False, "control is never marked"
    assert policies["rtsw1", "eth2"][5] == UNUSED
    host = policies["host1", "eth1"][3]
    assert (host.pfc, host.ecn, host.xoff, host.buffer) == (True, False, 0, 1_000_000), "hosts obey, and do not ask"


def test_curves_pfc_and_the_watchdog_can_be_set_or_off() -> None:
    lab = fabric(ecn={"kmin": "50KB", "classes": {3: {"kmin": "80KB", "pmax": 0.5}}})
    rows = policies_of(lab)["ctsw1", "eth1"]
    assert (rows[3].kmin, rows[3].kmax, rows[3].pmax) == (80_000, 160_000, 0.5)
    assert (rows[0].kmin, rows[0].kmax, rows[0].pmax) == (50_000, 160_000, 0.2)
    # Without pfc a lossless class is dropped like others.
    row = policies_of(fabric(pfc={"enabled": False}))["rtsw1", "eth1"][3]
    assert (row.kind, row.pfc, row.xoff, row.headroom, row.detect_ns) == ("lossless", False, 0, 0, 0)
    # A watchdog that is off detects nothing. It is a function of switches: a paused NIC waits.
    for enabled, want in ((True, 2_000_000_000), (False, 0)):
        ports = policies_of(fabric(pfc={"watchdog": {"enabled": enabled, "detect": "2s"}}))
        assert (ports["rtsw1", "eth1"][3].detect_ns, ports["host1", "eth1"][3].detect_ns) == (want, 0)


def test_a_switch_whose_buffer_is_eaten_up_by_a_fast_link_is_named() -> None:
    link = {**SLOW, "exceptions": {"ctsw2": "1gbit"}}
    with pytest.raises(InputError, match=r"^queues.buffer is below .* x 8 ports of ctsw2 "):
        fabric(link=link, buffer="8MB")
    small = replace(fabric(link=link).policy.queues, buffer=BufferPolicy(switches=(1_500_000,) * 3))
    with pytest.raises(InputError) as caught:
        policies_of(fabric(link=link), small)
    assert [p.where for p in caught.value.problems] == [*(f"rtsw{n}" for n in range(1, 9)), "ctsw2"]
    assert "queues.buffer is below" in str(caught.value.problems[-1])


def test_the_deepest_queue_is_bounded_by_ingress_threshold_and_buffer() -> None:
    paused, dropped = fabric(buffer={"host": "10KB"}), fabric(buffer={"host": "10KB"}, pfc={"enabled": False})
    assert deepest_queue(paused, 3) == 8 * (60_000 + 31_250 + 8428)
    shared = 8 * 1_000_000 - 8 * 3 * 10_000
    assert deepest_queue(dropped, 3) == 10_000 + shared // 2
    # No queue is deeper than the buffer whatever its ports may hold.
    assert deepest_queue(fabric(pfc={"xoff": "2MB"}, buffer="1MB"), 3) == 1_000_000


@pytest.mark.parametrize(("link", "most"), [(SLOW, 48_828), ({**SLOW, "exceptions": {"ctsw2": "10mbit"}}, 19_531)])
def test_quanta_last_less_than_the_watchdog_waits_at_the_slowest_link(link: Any, most: int) -> None:
    """Of 512 bits each; 48,828 of them last 0.99999744 s at 25 Mbit/s."""
    fabric(link=link, pfc={"quanta": most})
    fabric(link=link, pfc={"quanta": 196})
    with pytest.raises(InputError, match=r"queues.pfc.quanta of 512 bits last .* on the slowest link"):
        fabric(link=link, pfc={"quanta": most + 1})
    fabric(link=link, pfc={"quanta": most + 1, "watchdog": {"enabled": False}})


@pytest.mark.parametrize(
    ("rate", "quanta", "headroom"),
    [("1mbit", 488, 14_678), ("333333333bit", 65_535, 2_091_762), ("10gbit", 65_535, 62_508_428)],
)
def test_odd_rates_have_whole_quanta_and_headroom_rounded_up(rate: str, quanta: int, headroom: int) -> None:
    lab = fabric(
        link={"host": "1mbit", "fabric": "1gbit", "exceptions": {"rtsw1:eth1": rate}}, pfc={"reaction": "50ms"}
    )
    policy = policies_of(lab)["rtsw1", "eth1"][3]
    assert (policy.quanta, policy.headroom) == (quanta, headroom)


def test_turns_are_whole_frames_by_weight_and_control_is_before_all() -> None:
    lab = fabric(weights={3: 5, 1: 2})
    plan, port = lab.policy.queues, lab.by_name["rtsw1"].ports[0]
    lines = DISCIPLINES["htb"].lines(port, plan)
    turns = [line.split()[-4:] for line in lines if line.startswith("class") and "parent 1:1" in line]
    assert turns == [
        ["quantum", "4214", "prio", "1"],
        ["quantum", "8428", "prio", "1"],
        ["quantum", "21070", "prio", "1"],
        ["quantum", "4214", "prio", "0"],
    ]
    assert "direct_qlen 0" in lines[0]  # takes nothing: a frame sent there wakes the port
    assert sum(" tbf " in line for line in lines) == 1
    assert [number_of(each) for each in (0x10, 0x40, 0x80, 0x41, 0x90, 0xFF0)] == [0, 3, 7, None, None, None]
    # Where nothing can be paused there is neither gate nor kick.
    lab = fabric(lossless=[])
    lines = DISCIPLINES["htb"].lines(lab.by_name["rtsw1"].ports[0], lab.policy.queues)
    assert not any("tbf" in line or "direct_qlen" in line for line in lines)


def test_ports_are_numbered_from_1_as_tc_reads_it_and_too_many_are_refused() -> None:
    fabric = build(ClosSpec(name="tiny", racks=2, ctsw=4))
    ids = port_ids(fabric)
    assert min(ids.values()) == 1 and list(ids.values()) == sorted(set(ids.values()))
    assert [(port.node, port.name) for _, port in numbered_ports(fabric)] == list(ids)
    for node in fabric.nodes:
        assert all(b - a == 1 for a, b in pairwise(ids[node.name, port.name] for port in node.ports))
    assert ids == port_ids(build(ClosSpec(name="tiny", racks=2, ctsw=4)))
    # A number is written as tc reads it.
    assert (classid(1), classid(31), classid(65535)) == ("0:1", "0:1f", "0:ffff")
    # Ports of a node share a filter if ids and indexes differ by the same; a classid of 0 would stand for none.
    ends = [(1, 2), (1, 1), (2, 1), (65535, 2), (65535, 65535), (7, 2**31 - 1)]
    assert all(1 <= base_of(*each) <= 65535 and port_at(base_of(*each), each[1]) == each[0] for each in ends)
    assert base_of(5, 2) == base_of(6, 3) != base_of(6, 2)
    assert row(2, 3) == 19
    fabric = build(ClosSpec(name="wide", racks=256, ctsw=128, hosts_per_rack=1))
    with pytest.raises(InputError, match=r"wide has \d+ ports; the maximum of one kernel is 65535"):
        check_ids(fabric)


TICK_S = 64e-9  # PSCHED_SHIFT in include/net/pkt_sched.h
PAIRS = (("rate", "burst"), ("ceil", "cburst"))


@pytest.mark.parametrize("name", DISCIPLINES)
@pytest.mark.parametrize("burst", [1, 2, 4])
@pytest.mark.parametrize("rate", ["1mbit", "100mbit", "10gbit"])
def test_every_burst_fits_in_32_bits_of_ticks(rate: str, burst: int, name: str) -> None:
    """tc of iproute2 7.3 refuses others ("htb: burst out of range"); older ones cut them off without a word."""
    overrides = [f"link.host={rate}", f"link.fabric={rate}", f"queues.burst={burst}"]
    fabric = load_fabric("tiny", overrides=overrides).fabric
    found = 0
    for line in DISCIPLINES[name].lines(fabric.switches[0].ports[0], fabric.policy.queues):
        words = dict(zip(line.split(), line.split()[1:], strict=False))
        for per_second, held in PAIRS:
            if held in words:
                found += 1
                seconds = 8 * int(words[held].removesuffix("b")) / parse_rate(words[per_second])
                assert seconds / TICK_S < 1 << 32, line
    assert found >= 2


PMAXES = [0.01, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0]


def simulated(p: float, packets: int = 40_000) -> float:
    """red_action() at a depth that does not change: a gap is drawn, and packets are counted until it is reached."""
    draw = random.Random(7)
    marks, count, gap = 0, 0, draw.random()
    for _ in range(packets):
        count += 1
        if p * count >= gap:
            marks, count, gap = marks + 1, 0, draw.random()
    return marks / packets


@pytest.mark.parametrize("pmax", PMAXES)
def test_red_gets_the_parameters_that_make_it_mark_pmax(pmax: float) -> None:
    assert red.marked(red.configured(pmax)) == pytest.approx(pmax)
    assert simulated(red.configured(pmax)) == pytest.approx(pmax, abs=0.01)


@pytest.mark.parametrize(("pmax", "most"), [(0.2, 0.006), (0.5, 0.04), (1.0, 0.17)])
def test_its_curve_is_above_the_straight_line_by_as_much_as_the_docs_say(pmax: float, most: float) -> None:
    curve = red.Curve(100_000, 400_000, pmax)
    above = [curve.fraction(d) - pmax * (d - 100_000) / 300_000 for d in range(100_000, 400_000, 500)]
    assert min(above) > -1e-9
    assert 0.8 * most < max(above) <= most
    assert (curve.fraction(99_999), curve.fraction(400_000)) == (0.0, 1.0)


def test_every_class_but_control_has_a_curve_and_none_marks_while_ecn_is_off() -> None:
    queues = QueuePolicy(ecn=EcnPolicy(marker="red", classes={3: ClassCurve(pmax=0.5)}))
    assert red.curves_of(queues) == {0: red.Curve(40_000, 160_000, 0.2), 3: red.Curve(40_000, 160_000, 0.5)}
    off = replace(queues, ecn=replace(queues.ecn, enabled=False))
    assert set(red.curves_of(off).values()) == {red.NEVER}
    assert red.NEVER.fraction(1 << 30) == 0.0


HOSTS, LEAVES, SPINES = range(3)


@pytest.fixture(scope="module")
def tiny() -> Fabric:
    return load_fabric("tiny").fabric


def refused(fabric: Fabric, *settings: str, levels: Collection[int] = (HOSTS, LEAVES, SPINES)) -> str:
    with pytest.raises(InputError) as caught:
        changed(fabric, fabric.policy.queues, settings, levels)
    return str(caught.value)


def test_several_settings_hold_together_and_all_errors_are_reported_at_once(tiny: Fabric) -> None:
    made = changed(
        tiny, tiny.policy.queues, ["ecn.kmin=500KB", "queues.ecn.kmax=800KB", "pfc.watchdog.detect=2s", "alpha=2"]
    )
    assert (made.ecn.kmin, made.ecn.kmax, made.pfc.watchdog.detect, made.alpha) == (500_000, 800_000, 2 * 10**9, 2.0)
    back = changed(tiny, made, ["ecn.kmin=40KB", "ecn.kmax=160KB", "pfc.watchdog.detect=1s", "alpha=1"])
    assert back == tiny.policy.queues
    # All errors are reported at once.
    text = refused(tiny, "lossless=[3,4]", "foo=1", "pfc.xon=90KB")
    assert all(word in text for word in ("lossless is fixed", "foo is no key", "pfc.xon: 90KB"))


def test_buffers_are_set_where_they_are(tiny: Fabric) -> None:
    buffer = changed(tiny, tiny.policy.queues, ["buffer=20MB"]).buffer
    assert set(buffer.switches) == {20_000_000}
    assert buffer.host == tiny.policy.queues.buffer.host
    assert changed(tiny, tiny.policy.queues, ["buffer.ctsw=30MB"]).buffer.switches == ("auto", 30_000_000, "auto")
    # Settings for hosts are not set at switches.
    text = refused(tiny, "buffer.host=2MB", levels=[LEAVES])
    assert "is for hosts, but --switch names switches" in text
    assert changed(tiny, tiny.policy.queues, ["buffer.host=2MB"]).buffer.host == 2_000_000
    # A buffer that none of the switches has is not set.
    text = refused(tiny, "buffer.rtsw=2MB", levels=[SPINES])
    assert "buffer.rtsw is for RTSWs, and none of the chosen nodes is one" in text
    assert "hint: use buffer.ctsw" in text
    assert "hint: use buffer.rtsw or buffer.ctsw" in refused(tiny, "buffer.atsw=2MB")
    buffer = changed(tiny, tiny.policy.queues, ["buffer=3MB"], [SPINES]).buffer
    assert buffer.switches == ("auto", 3_000_000, "auto")


def test_invalid_settings_are_reported_as_for_a_fabric_file(tiny: Fabric, answers: Answers) -> None:
    answers(lambda *settings: refused(tiny, *settings))


@pytest.mark.parametrize("rate", [1_000_000, 33_300_000, 10**9])
@pytest.mark.parametrize("packets", [1, 2, 7, 16])
def test_htb_sends_as_many_packets_as_the_burst_has(packets: int, rate: int) -> None:
    """A model of htb_class_mode with hysteresis, in bytes: send until tokens are below -cburst, then wait for 0."""
    frame, mtu = 4170, 4200
    burst = burst_bytes(mtu, packets, rate) * 8_000_000 // rate * rate / 8_000_000  # tc: in whole microseconds

    def sent(tokens: float) -> int:
        return math.floor((tokens + burst) / frame) + 1

    assert sent(0.0) == packets
    assert sent(burst) <= at_once(packets), "an idle port"
    assert QueuePolicy(burst=packets).burst == packets
