"""Numbers that queues go by: classes of DSCPs, layout of buffers, thresholds of each port, turns in tc's lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.buffers import buffer_bytes
from heddle.fabric.fabricfile import checked, load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.policy import BufferPolicy, QueuePolicy
from heddle.spec.load import presets
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.queues.classes import UNUSED, budget_of, deepest_queue, policies_of
from heddle.switch.queues.disciplines import DISCIPLINES, number_of

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


def test_network_control_is_of_control_whatever_its_number() -> None:
    plan = QueuePolicy(control=5)
    assert plan.class_of_dscp[48:] == (5,) * 16
    assert plan.class_of_dscp[40:48] == (5,) * 8


def test_a_buffer_is_headroom_and_reserve_and_what_is_shared() -> None:
    queues = fabric().policy.queues
    one = 25_000_000 * 10 // 8000 + 2 * 4214  # 10 ms at the port's rate, and two frames
    ports = [(25_000_000, 4200)] * 6
    found = buffer_bytes(queues, 1, ports)
    assert (found.headroom, found.reserved) == (6 * one, 6 * 3 * 10_000)
    assert found.buffer == 6 * one + 6 * 150_000
    assert found.shared == found.buffer - found.headroom - found.reserved == 720_000
    assert buffer_bytes(queues, 2, ports).buffer == 6 * one + 6 * 1_000_000, "spines are deep"
    without = replace(queues, pfc=replace(queues.pfc, enabled=False))
    assert buffer_bytes(without, 1, ports).headroom == 0


def test_each_port_has_the_numbers_of_its_own_rate() -> None:
    lab = fabric(link={**SLOW, "exceptions": {"rtsw1:eth1": "100mbit"}})
    policies = policies_of(lab)
    slow, fast = policies["rtsw1", "eth2"][3], policies["rtsw1", "eth1"][3]
    assert (slow.headroom, fast.headroom) == (31_250 + 8428, 125_000 + 8428)
    assert (slow.quanta, fast.quanta) == (12_207, 48_828), "a quarter of a second, in 512 bits each"
    assert slow.shared == fast.shared == budget_of(lab.by_name["rtsw1"], lab.policy.queues).shared
    assert policies["rtsw1", "eth2"][6].ecn is False, "control is never marked"
    assert policies["rtsw1", "eth2"][5] == UNUSED
    host = policies["host1", "eth1"][3]
    assert (host.pfc, host.ecn, host.xoff, host.buffer) == (True, False, 0, 1_000_000), "hosts obey, and do not ask"


def test_a_watchdog_that_is_off_detects_nothing() -> None:
    for enabled, want in ((True, 2_000_000_000), (False, 0)):
        rows = policies_of(fabric(pfc={"watchdog": {"enabled": enabled, "detect": "2s"}}))
        assert rows["rtsw1", "eth1"][3].detect_ns == rows["host1", "eth1"][3].detect_ns == want


def test_a_class_has_its_own_curve_where_one_is_given() -> None:
    lab = fabric(ecn={"kmin": "50KB", "classes": {3: {"kmin": "80KB", "pmax": 0.5}}})
    rows = policies_of(lab)["ctsw1", "eth1"]
    assert (rows[3].kmin, rows[3].kmax, rows[3].pmax) == (80_000, 160_000, 0.5)
    assert (rows[0].kmin, rows[0].kmax, rows[0].pmax) == (50_000, 160_000, 0.2)


def test_without_pfc_a_lossless_class_is_dropped_like_others() -> None:
    row = policies_of(fabric(pfc={"enabled": False}))["rtsw1", "eth1"][3]
    assert (row.kind, row.pfc, row.xoff, row.headroom, row.detect_ns) == ("lossless", False, 0, 0, 0)


def test_a_switch_whose_buffer_is_eaten_up_by_a_fast_link_is_named() -> None:
    link = {**SLOW, "exceptions": {"ctsw2": "1gbit"}}
    with pytest.raises(InputError, match=r"^queues.buffer is below .* x 8 ports of ctsw2 "):
        fabric(link=link, buffer="8MB")
    small = replace(fabric(link=link).policy.queues, buffer=BufferPolicy(switches=(1_500_000,) * 3))
    with pytest.raises(InputError) as caught:
        policies_of(fabric(link=link), small)
    assert [p.where for p in caught.value.problems] == [*(f"rtsw{n}" for n in range(1, 9)), "ctsw2"]
    assert "queues.buffer is below" in str(caught.value.problems[-1])


def test_the_deepest_queue_is_what_ingress_ports_may_hold_or_what_the_threshold_leaves() -> None:
    paused, dropped = fabric(buffer={"host": "10KB"}), fabric(buffer={"host": "10KB"}, pfc={"enabled": False})
    assert deepest_queue(paused, 3) == 8 * (60_000 + 31_250 + 8428)
    shared = 8 * 1_000_000 - 8 * 3 * 10_000
    assert deepest_queue(dropped, 3) == 10_000 + shared // 2


def test_no_queue_is_deeper_than_the_buffer_whatever_its_ports_may_hold() -> None:
    assert deepest_queue(fabric(pfc={"xoff": "2MB"}, buffer="1MB"), 3) == 1_000_000


@pytest.mark.parametrize(("link", "most"), [(SLOW, 48_828), ({**SLOW, "exceptions": {"ctsw2": "10mbit"}}, 19_531)])
def test_quanta_last_less_than_the_watchdog_waits_at_the_slowest_link(link: Any, most: int) -> None:
    """Of 512 bits each; 48,828 of them last 0.99999744 s at 25 Mbit/s."""
    fabric(link=link, pfc={"quanta": most})
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


def test_every_preset_is_read_back_as_it_was_written() -> None:
    for name in presets():
        spec = load_fabric(name, overrides=["queues.weights={1: 2}", "queues.ecn.classes={3: {kmin: 10KB}}"]).spec
        assert load_spec(dump_spec(spec)) == spec


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
        ["quantum", "4214", "prio", "7"],  # takes nothing: it wakes the port
    ]
    assert sum(" tbf " in line for line in lines) == 1
    assert [number_of(each) for each in (0x10, 0x40, 0x80, 0x41, 0x90, 0xFF0)] == [0, 3, 7, None, None, None]


def test_where_nothing_can_be_paused_there_is_neither_gate_nor_kick() -> None:
    lab = fabric(lossless=[])
    lines = DISCIPLINES["htb"].lines(lab.by_name["rtsw1"].ports[0], lab.policy.queues)
    assert not any("tbf" in line or "ff0" in line for line in lines)
