"""Links and switches that go down, and switches that BGP drains: what kernels do then, and what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.checks.validate import validate
from heddle.kernel.fib import read_fib
from heddle.lab import outages
from heddle.lab.convergence import gaps
from heddle.lab.lab import Lab
from heddle.lab.outages import Fault, State, drain, link_down, link_up, state_of, switch_down, switch_up, undrain, wait
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.switch.counters import read_counters
from heddle.traffic.options import RunOptions
from tests.conftest import Borrow
from tests.machine import until
from tests.marks import deep


@pytest.fixture(scope="module")
def dc(borrow: Borrow) -> Lab:
    """Three tiers, in namespaces; leave it as you find it."""
    return borrow("dc")


@pytest.fixture(autouse=True)
def left_as_found(dc: Lab) -> Iterator[None]:
    yield
    assert state_of(dc) == State((), ())
    assert not gaps(dc.fabric, dc.snapshot(LabPart.FIBS).fibs, strict=True)


def ways(lab: Lab, switch: str, rack: int) -> set[str]:
    routes = read_fib(lab.handle(switch)).routes.get(lab.fabric.prefixes[rack], ())
    return {hop.port for hop in routes if not hop.dead}


def test_three_tiers_come_up_and_every_check_passes(dc: Lab) -> None:
    run(dc, RunOptions(qps=4, sizes=(65536,), iters=2, warmup=1), Silent())
    checks = {check.name: check for check in validate(dc)}
    assert not [check for check in checks.values() if not check.ok]
    assert checks["paths"].detail == "prediction, oracle and counters agree on 32 QPs of the last run"
    assert checks["links"].detail == "24 links are up, and no switch is drained"
    assert ways(dc, "rtsw1", 3) == {"eth1", "eth2"}
    assert ways(dc, "ctsw1", 3) == {"eth3", "eth4"}
    assert ways(dc, "atsw1", 3) == {"eth3", "eth4"}


def test_a_link_that_is_down_is_gone_from_every_kernel_and_comes_back(dc: Lab) -> None:
    with link_down(dc, "rtsw1:eth1"):
        assert state_of(dc).dead == ("rtsw1:eth1",)
        assert ways(dc, "rtsw1", 3) == {"eth2"}
        assert ways(dc, "rtsw2", 1) == {"eth2"}, "BGP tells those that lie further away"
        assert ways(dc, "atsw2", 1) == {"eth2"}
        assert ways(dc, "ctsw1", 1) == set(), "no route climbs again"
        assert ways(dc, "ctsw3", 1) == {"eth3", "eth4"}
    assert ways(dc, "rtsw1", 3) == {"eth1", "eth2"}


@pytest.mark.deep
def test_plain_functions_do_the_same_and_a_drain_by_hand_is_seen(dc: Lab) -> None:
    link_down(dc, "atsw1:eth4")
    assert ways(dc, "ctsw4", 1) == {"eth4"}
    link_up(dc, "atsw1:eth4")
    switch_down(dc, "ctsw4")
    assert ways(dc, "rtsw3", 1) == {"eth1"}
    switch_up(dc, "ctsw4")
    asn = dc.fabric.by_name["atsw1"].asn
    commands = ["-c", "configure terminal", "-c", f"router bgp {asn}", "-c"]
    dc.output("atsw1", ["vtysh", *commands, "bgp graceful-shutdown"])
    assert state_of(dc).drained == ("atsw1",)
    wait(dc)
    assert ways(dc, "ctsw4", 1) == {"eth4"}
    undrain(dc, "atsw1")


@pytest.mark.deep
def test_a_hosts_link_goes_down_at_its_switch_so_that_the_host_keeps_its_routes(dc: Lab) -> None:
    before = dc.output("host1", ["ip", "route"])
    with link_down(dc, "host1:eth1"):
        assert state_of(dc).dead == ("rtsw1:eth3",)
    assert dc.output("host1", ["ip", "route"]) == before


def test_traffic_avoids_a_switch_that_is_down(dc: Lab) -> None:
    with switch_down(dc, "ctsw1"):
        assert state_of(dc).dead == ("ctsw1:eth1", "ctsw1:eth2", "ctsw1:eth3", "ctsw1:eth4")
        assert ways(dc, "rtsw2", 1) == ways(dc, "rtsw2", 4) == {"eth2"}
        assert ways(dc, "atsw1", 1) == {"eth2"}
        checks = {check.name: check for check in validate(dc)}
        assert not checks["links"].ok
        assert not checks["routes"].ok
        assert checks["routes"].detail == "ctsw1:eth1, ctsw1:eth2, ctsw1:eth3, ctsw1:eth4 are down", "and nothing else"
        assert checks["reachability"].ok


def test_traffic_avoids_a_drained_switch_which_is_named(dc: Lab) -> None:
    with drain(dc, "ctsw2"):
        assert ways(dc, "rtsw1", 3) == ways(dc, "rtsw2", 1) == {"eth1"}
        assert ways(dc, "atsw2", 1) == {"eth1"}
        assert ways(dc, "ctsw2", 3) == {"eth3", "eth4"}, "it forwards what still comes"
        (row,) = status(dc.name)
        assert row.faults == ("ctsw2  BGP drains the switch (graceful-shutdown)",)
        assert not row.converged
        routes = next(check for check in validate(dc) if check.name == "routes")
        assert (routes.ok, routes.detail) == (False, "ctsw2 is drained (BGP graceful-shutdown)")


@pytest.mark.deep
def test_two_drained_switches_are_used_where_there_are_no_others(dc: Lab) -> None:
    with drain(dc, "ctsw1"), drain(dc, "ctsw2"):
        assert ways(dc, "rtsw1", 3) == {"eth1", "eth2"}
        with link_down(dc, "rtsw1:eth2"):
            assert ways(dc, "rtsw1", 3) == {"eth1"}


def lost(lab: Lab) -> int:
    """RoCE packets that an RTSW took from its hosts and that no RTSW gave to a host, since the lab is up."""
    racks = {
        str(p.address.ip): host.group("rack") for host in lab.fabric.hosts for p in host.ports if p.address is not None
    }
    names = {node.group("rack"): node.name for node in lab.fabric.switches if node.group("rack") is not None}
    hosts = {p.name for p in lab.fabric.by_name["rtsw1"].ports if p.address is not None}
    entered = arrived = 0
    counters = read_counters(lab.fabric)
    for rack, name in names.items():
        for flow in counters[name].flows:
            entered += flow.packets if racks[flow.src] == rack else 0
            arrived += flow.packets if racks[flow.dst] == rack and flow.port in hosts else 0
    return entered - arrived


@pytest.mark.parametrize("put", [drain, deep(undrain)], ids=["drain", "undrain"])
def test_no_packet_is_lost_while_a_switch_is_drained_under_load(dc: Lab, put: Callable[[Lab, str], object]) -> None:
    """Queue pairs move to ways of another length of queue, so packets may come out of order; none is missing.

    Runs follow each other until the switch is drained: on a busy machine a drain takes longer than any one of them.
    """
    if put is undrain:
        drain(dc, "ctsw1")
    before, stop, result = lost(dc), threading.Event(), list[RunResult]()
    options = RunOptions(qps=4, sizes=(131072,), iters=4, warmup=0)

    def carry() -> None:
        while not stop.is_set():
            result.append(run(dc, options, Silent()))

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        arrives(dc, since=taken(dc))
        begun = taken(dc)
        put(dc, "ctsw1")
        moved = taken(dc)
        arrives(dc, since=moved)
    finally:
        stop.set()
        thread.join()
        undrain(dc, "ctsw1")
    assert moved > begun, "packets were under way all the time"
    assert result and {each.wrong for each in result} == {0}
    assert lost(dc) == before


def taken(lab: Lab) -> int:
    """RoCE packets that rtsw1 has forwarded."""
    return sum(port.roce_packets for port in read_counters(lab.fabric)["rtsw1"].ports)


def arrives(lab: Lab, since: int) -> None:
    """Wait until rtsw1 forwards more."""
    until(lambda: taken(lab) != since)


def test_unknown_ports_and_switches_are_refused(dc: Lab) -> None:
    with pytest.raises(InputError, match=r"rtsw9:eth1 is not a port: .* has no rtsw9"):
        link_down(dc, "rtsw9:eth1")
    with pytest.raises(InputError, match=r"rtsw1:eth9 is not a port\n.*rtsw1 has eth1, eth2, eth3, eth4"):
        link_down(dc, "rtsw1:eth9")
    with pytest.raises(InputError, match=r"rtsw1 is not a port"):
        link_down(dc, "rtsw1")
    with pytest.raises(InputError, match=r"host1 is not a switch"):
        switch_down(dc, "host1")
    with pytest.raises(InputError, match=r"(?s)ctws1 is not a switch.*did you mean ctsw1"):
        drain(dc, "ctws1")


def test_an_imported_lab_is_refused(dc: Lab) -> None:
    class Imported:
        rendered = False

    with pytest.raises(InputError, match="was imported"):
        link_down(replace(dc, blueprint=Imported()), "rtsw1:eth1")  # type: ignore[arg-type]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("make", "where", "error"),
    [(link_down, "rtsw1:eth1", CheckError), (switch_down, "ctsw1", KeyboardInterrupt), (drain, "ctsw2", CheckError)],
)
def test_a_fault_that_times_out_or_is_interrupted_is_undone(
    dc: Lab, make: Callable[..., Fault], where: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_early(*_: object) -> None:
        assert state_of(dc) != State((), ())
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(outages, "wait", ends_early)
        make(dc, where)
    wait(dc)
    assert state_of(dc) == State((), ())


@pytest.mark.deep
def test_a_fault_inside_another_undoes_what_it_did_once_and_no_more(dc: Lab) -> None:
    with link_down(dc, "ctsw1:eth1") as fault, drain(dc, "ctsw2"):
        both = state_of(dc)
        with switch_down(dc, "ctsw1"):
            assert len(state_of(dc).dead) == 4
        with drain(dc, "ctsw2"), link_down(dc, "ctsw1:eth1"):
            assert state_of(dc) == both
        assert state_of(dc) == both == State(("ctsw1:eth1",), ("ctsw2",))
        fault.undo()
        with link_down(dc, "ctsw1:eth1"):
            fault.undo()
            assert state_of(dc) == both, "an undone fault is not undone again"
