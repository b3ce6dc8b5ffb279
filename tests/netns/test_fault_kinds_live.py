"""Faults that are set by name: a story for each kind. The effect is there when it is set, and its undo ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from heddle.base import owners
from heddle.base.events import Silent
from heddle.base.process import start_of
from heddle.kernel.netlink import down_ports
from heddle.lab import lifecycle as life
from heddle.lab.daemons import ADMIN_DOWN
from heddle.lab.faults import orders, record
from heddle.lab.faults.packets import fault_differences, wanted_faults
from heddle.lab.frr import on_daemons
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of, wait
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.run import run
from heddle.spec.impairments import PACKETS, LinkFault
from heddle.switch.queues.classes import held_bps
from heddle.switch.queues.portqueues import read_closed
from heddle.traffic.options import RunOptions
from tests.conftest import Borrow
from tests.listener import Listener
from tests.machine import until
from tests.netns.live import failed, fault, next_hops, refused

SHORT: Final = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)


@pytest.fixture(autouse=True)
def without(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "tiny" in request.fixturenames:
        orders.end_all(request.getfixturevalue("tiny"))


def rate(lab: Lab, ref: str) -> int:
    return lab.snapshot(LabPart.PORTS, [ref.partition(":")[0]]).shapers[ref].rate_bps


def test_a_session_goes_down_while_its_link_stays_up(tiny: Lab) -> None:
    data = fault(tiny, "bgp-down", "ctsw1:eth1")
    (row,) = data["set"]
    assert row["undo"] == f"./inv fault clear ctsw1:eth1 --lab {tiny.name}"
    assert row["effect"].startswith(f"the session is {ADMIN_DOWN} here")
    assert next_hops(tiny, "rtsw1", 2) == {"eth2"}, "the routes were there when the command ended"
    assert down_ports(tiny.handle("ctsw1")) == {}
    assert state_of(tiny) == State((), (), ("ctsw1:eth1",))
    (line,) = status(tiny.name)[0].faults
    shut = "it is shut down at ctsw1 (neighbor eth1 shutdown), on purpose (bgp-down ctsw1:eth1)"
    assert line == f"ctsw1:eth1  the BGP session with rtsw1:eth1 is not established: {shut}"
    assert "bgp-down rtsw1:eth1 is not possible: ctsw1:eth1 has the fault bgp-down" in refused(
        "fault", "bgp-down", "rtsw1:eth1", lab=tiny
    )
    assert "down is not possible: ctsw1:eth1 has the fault bgp-down" in refused("fault", "down", "rtsw1:eth1", lab=tiny)
    assert fault(tiny, "clear", "rtsw1:eth1")["ended"] == ["ctsw1:eth1: bgp-down"]
    assert next_hops(tiny, "rtsw1", 2) == {"eth1", "eth2"} and record.read(tiny.dir) == ()


def test_a_slow_link_is_a_fault_of_one_direction_and_the_lab_is_converged(tiny: Lab) -> None:
    usual = rate(tiny, "rtsw1:eth1")
    fault(tiny, "slow-link", "rtsw1:eth1", "--rate", "10%")
    assert (rate(tiny, "rtsw1:eth1"), rate(tiny, "ctsw1:eth1")) == (held_bps(usual // 10), usual)
    (row,) = status(tiny.name)
    assert row.converged and row.link_faults == ("rtsw1:eth1: slow-link at 1/10 of its rate",)
    assert failed(tiny, ("queues", "faults")) == {}
    tiny.output(
        "rtsw1", ["tc", "class", "change", "dev", "eth1", "parent", "1:", "classid", "1:1", "htb", "rate", "7mbit"]
    )
    assert set(failed(tiny, ("queues", "faults"))) == {"queues", "faults"}
    assert life.repair_lab(tiny.name).repaired is not None
    assert rate(tiny, "rtsw1:eth1") == held_bps(usual // 10), "a repair sets the fault again"
    fault(tiny, "clear", "ctsw1:eth1")
    assert rate(tiny, "rtsw1:eth1") == held_bps(usual // 10), "the other end is another port"
    fault(tiny, "clear")
    assert rate(tiny, "rtsw1:eth1") == usual


def test_a_clear_of_several_kinds_during_a_run_changes_nothing(tiny: Lab) -> None:
    usual = rate(tiny, "rtsw1:eth1")
    fault(tiny, "slow-link", "rtsw1:eth1", "--rate", "10%")
    fault(tiny, "rtsw1:eth2", "--loss", "1/64")
    fault(tiny, "down", "rtsw2:eth1")
    with owners.lock(tiny.name, work="run"):
        assert "its run goes on" in refused("fault", "clear", lab=tiny)
        assert rate(tiny, "rtsw1:eth1") == held_bps(usual // 10) and [*wanted_faults(tiny)] == ["rtsw1:eth2"]
        assert fault(tiny, "clear", "rtsw1:eth1")["ended"] != [], "no route changes"
    assert rate(tiny, "rtsw1:eth1") == usual
    assert fault(tiny, "clear")["ended"] == ["rtsw1:eth2: fault of packets", "rtsw2:eth1: down"]


def test_of_two_commands_at_the_same_moment_the_record_names_what_the_link_does(tiny: Lab) -> None:
    first, second = ([(PACKETS, "rtsw1:eth3", {"loss": loss})] for loss in (1 / 64, 1 / 32))
    with record.changing(tiny):
        ours = orders.start(tiny, first)
    theirs, go = os.pipe()  # the other command goes on when this one has finished
    pid = os.fork()
    if not pid:
        try:
            with record.changing(tiny):
                made = orders.start(tiny, second)
            os.read(theirs, 1)
            with record.changing(tiny):
                record.verified(tiny, made)
        finally:
            os._exit(0)
    until(lambda: wanted_faults(tiny) == {"rtsw1:eth3": LinkFault(loss=1 / 32)})
    with record.changing(tiny):
        record.verified(tiny, ours)
    assert wanted_faults(tiny) == {"rtsw1:eth3": LinkFault(loss=1 / 32)}
    os.write(go, b"1")
    os.waitpid(pid, 0)
    assert [(each.values, each.maker) for each in record.read(tiny.dir)] == [({"loss": 1 / 32}, None)]
    assert fault_differences(tiny, wanted_faults(tiny)) == {}


def test_what_a_killed_command_has_left_is_undone_by_the_next_and_by_a_repair(tiny: Lab) -> None:
    usual = rate(tiny, "rtsw1:eth1")
    killed_while_setting(tiny, "slow-link", "rtsw1:eth1", {"rate": 0.5})
    assert rate(tiny, "rtsw1:eth1") == held_bps(usual // 2)
    fault(tiny, "rtsw1:eth3", "--loss", "1/64")
    assert rate(tiny, "rtsw1:eth1") == usual, "the last command was the next one"
    also = [("down", "rtsw2:eth1", {}), ("drain", "ctsw2", {}), ("slow-link", "rtsw1:eth1", {"rate": 0.5})]
    killed_while_setting(tiny, "packets", "rtsw1:eth3", {"corrupt": 0.5}, *also)
    assert rate(tiny, "rtsw1:eth1") == held_bps(usual // 2)
    assert wanted_faults(tiny) == {"rtsw1:eth3": LinkFault(corrupt=0.5)} and state_of(tiny).dead == ("rtsw2:eth1",)
    fault(tiny, "slow-link", "rtsw1:eth2", "--rate", "50%")
    assert rate(tiny, "rtsw1:eth1") == usual
    assert wanted_faults(tiny) == {"rtsw1:eth3": LinkFault(loss=1 / 64)}, "the port has what it had"
    assert fault_differences(tiny, wanted_faults(tiny)) == {}
    wait(tiny)
    assert state_of(tiny) == State((), ())
    fault(tiny, "clear", "rtsw1:eth3")
    killed_while_setting(tiny, "slow-link", "rtsw1:eth1", {"rate": 0.5})
    done = life.repair_lab(tiny.name).repaired
    assert done is not None
    assert "rtsw1:eth1: slow-link at 50% of its rate was not finished, undone" in done.done
    assert [each.where for each in record.read(tiny.dir)] == ["rtsw1:eth2"]


def killed_while_setting(
    lab: Lab, kind: str, where: str, values: dict[str, Any], *also: orders.Order, run: bool = False
) -> None:
    """A process that makes the change, and ends before it has seen the effect."""
    pid = os.fork()
    if not pid:
        try:
            with record.changing(lab):
                orders.start(lab, [(kind, where, values), *also], run=run)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert [each.unfinished for each in record.read(lab.dir) if each.where == where][-1]


def test_a_fault_without_an_effect_is_undone_with_exit_code_1(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = rate(tiny, "rtsw1:eth1")
    monkeypatch.setattr("heddle.lab.faults.slowlink.SlowLink.effect", lambda *_: "")
    (problem,) = fault(tiny, "slow-link", "rtsw1:eth1", "--rate", "10%", "--timeout", "0.1", ends=1)["error"][
        "problems"
    ]
    assert problem["why"] == "shows no effect after 0.1 s, so it was undone"
    assert rate(tiny, "rtsw1:eth1") == usual and record.read(tiny.dir) == ()


def test_a_link_flaps_until_it_is_cleared_and_a_repair_starts_it_again(tiny: Lab) -> None:
    (row,) = fault(tiny, "flap", "rtsw1:eth1", "--period", "200ms")["set"]
    assert row["what"] == "flap every 200ms, down for 50% of it"
    (flap,) = record.read(tiny.dir)
    assert flap.worker is not None
    assert "down is not possible: rtsw1:eth1 has the fault flap" in refused("fault", "down", "ctsw1:eth1", lab=tiny)
    os.kill(flap.worker[0], signal.SIGKILL)
    until(lambda: not orders.fault_rows(tiny)[0]["effect"])
    done = life.repair_lab(tiny.name).repaired
    assert done is not None and "rtsw1:eth1: flap every 200ms, down for 50% of it set again" in done.done
    (flap,) = record.read(tiny.dir)
    fault(tiny, "clear", "ctsw1:eth1")
    assert flap.worker is not None and start_of(flap.worker[0]) != flap.worker[1]
    assert down_ports(tiny.handle("rtsw1")) == {} and next_hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}


def test_a_frozen_switch_forwards_and_is_not_waited_for(tiny: Lab) -> None:
    (row,) = fault(tiny, "frozen", "ctsw1")["set"]
    assert row["effect"].endswith("are stopped; 2 of 2 neighbours have a session until their hold timers expire")
    assert set(on_daemons(tiny, "ctsw1").values()) == {"T"}
    assert next_hops(tiny, "ctsw1", 2) == {"eth2"}, "its kernel has its routes"
    assert any("ctsw1  bgpd does not answer, on purpose (frozen ctsw1)" in each for each in status(tiny.name)[0].faults)
    for switch in ("rtsw1", "rtsw2"):  # as the hold timer does it after 9 s
        tiny.output(switch, ["vtysh", "-c", "clear bgp eth1"])
    ends = "no neighbour has a session with it now, and their kernels have 0 routes over it"
    until(lambda: orders.fault_rows(tiny)[0]["effect"].endswith(ends))
    fault(tiny, "clear", "ctsw1")
    assert "T" not in on_daemons(tiny, "ctsw1").values()
    assert status(tiny.name)[0].converged


def test_a_wrong_route_is_looked_up_by_the_kernel_and_reported(tiny: Lab) -> None:
    (row,) = fault(tiny, "misroute", "rtsw1:eth1", "--host", "host3")["set"]
    assert row["effect"] == "the kernel of rtsw1 looks up 10.0.1.1/32 and returns eth1"
    (line,) = status(tiny.name)[0].faults
    assert "is not a route of the fabric and overrides 10.0.1.0/24, on purpose (misroute rtsw1:eth1)" in line
    result = run(tiny, SHORT, Silent())
    assert result.fabric_state is not None and result.fabric_state.word == "degraded"
    fault(tiny, "clear", "rtsw1")
    assert status(tiny.name)[0].converged
    assert "is not a host of tiny" in refused("fault", "misroute", "rtsw1:eth1", "--host", "host9", lab=tiny)
    assert "rtsw1:eth3 leads to a host" in refused("fault", "misroute", "rtsw1:eth3", "--host", "host3", lab=tiny)


def test_a_storm_of_pause_frames_closes_the_gate_of_the_switch_and_ends(tiny: Lab) -> None:
    (row,) = fault(tiny, "pfc-storm", "host3")["set"]
    assert " of class 3 received; the class is stopped at rtsw2:eth3" in row["effect"]
    assert ("eth3", 3) in read_closed(tiny.handle("rtsw2").netns)
    fault(tiny, "clear", "host3")
    until(lambda: read_closed(tiny.handle("rtsw2").netns) == set())
    assert "--class 0 is not lossless here" in refused("fault", "pfc-storm", "host3", "--class", "0", lab=tiny)
    fault(tiny, "pfc-storm", "host3", "--time", "300ms")
    until(lambda: record.read(tiny.dir) == ())
    until(lambda: read_closed(tiny.handle("rtsw2").netns) == set())


def test_errors_grow_and_a_host_is_slow_in_both_directions(tiny: Lab) -> None:
    usual = rate(tiny, "host1:eth1")
    fault(tiny, "slow-host", "host1", "--rate", "1/4")
    assert rate(tiny, "host1:eth1") == rate(tiny, "rtsw1:eth3") == held_bps(usual // 4)
    fault(tiny, "rtsw1:eth4", "--loss", "1/64")
    fault(tiny, "bit-errors", "rtsw1:eth4", "--rate", "1/8", "--ramp", "300ms")
    until(lambda: wanted_faults(tiny)["rtsw1:eth4"] == LinkFault(loss=1 / 64, corrupt=1 / 8))
    assert orders.fault_rows(tiny)[1]["effect"].startswith("now 1/8; the program has inverted a bit in ")
    orders.end(tiny, [each for each in record.read(tiny.dir) if each.kind != PACKETS])
    assert wanted_faults(tiny) == {"rtsw1:eth4": LinkFault(loss=1 / 64)}, "the port has what it had"
    assert rate(tiny, "host1:eth1") == usual
    assert fault(tiny, "clear")["ended"] == ["rtsw1:eth4: fault of packets"]


@pytest.mark.long("10 seconds and more")
def test_kinds_have_times_in_a_run_and_what_a_killed_run_left_is_undone(tiny: Lab) -> None:
    usual = rate(tiny, "rtsw1:eth1")
    texts = ("rtsw1:eth1,slow-link,rate=50%,from=50ms", "rtsw1:eth2,bgp-down", "host3,pfc-storm,time=1s,from=600s")
    result = run(tiny, replace(SHORT, iters=8, faults=texts), Silent())
    times = result[FaultTimes]
    assert {span.what for span in times.spans} == {"rtsw1:eth1: slow-link at 50% of its rate", "rtsw1:eth2: bgp-down"}
    assert [line for line in times.missed if line.startswith("host3: pfc-storm for 1s from ")] != []
    (effect,) = result[FaultEffects].faults
    assert (effect.what, effect.settled_s) == ("rtsw1:eth1: slow-link at 50% of its rate", None)
    assert result.fabric_state is not None
    assert result.fabric_state.before.link_faults == ("rtsw1:eth2: bgp-down (one run)",)
    assert (rate(tiny, "rtsw1:eth1"), record.read(tiny.dir), status(tiny.name)[0].converged) == (
        usual, (), True,
    )  # fmt: skip
    killed_while_setting(tiny, "slow-link", "rtsw1:eth1", {"rate": 0.5}, run=True)
    heard = Listener()
    run(tiny, SHORT, heard)
    assert heard.warnings[0] == "a run that was killed had left faults on rtsw1:eth1, which are cleared now"
    assert rate(tiny, "rtsw1:eth1") == usual
    killed_while_setting(tiny, "bgp-down", "rtsw1:eth2", {}, run=True)
    state = run(tiny, SHORT, Silent()).fabric_state
    assert state is not None and state.before.converged, "the routes are back before the first packet"


@pytest.mark.deep
def test_a_dead_switch_has_no_link_and_no_daemon_and_a_repair_leaves_it_so(borrow: Borrow) -> None:
    tiny = borrow("tiny")  # a lab of its own: its daemons are other processes then
    fault(tiny, "node-down", "ctsw2", "host1")
    assert next_hops(tiny, "rtsw1", 2) == {"eth1"}
    assert set(tiny.daemons.silent("ctsw2")) == {"zebra", "bgpd"}
    assert state_of(tiny).dead == ("rtsw1:eth3", "ctsw2:eth1", "ctsw2:eth2")
    done = life.repair_lab(tiny.name).repaired
    assert done is not None and done.done == () and len(done.left) == 3
    assert fault(tiny, "clear", "ctsw2")["ended"] == ["ctsw2: node-down"]
    assert next_hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}
    fault(tiny, "clear")
    assert status(tiny.name)[0].converged
