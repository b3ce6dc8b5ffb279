"""`routing.control: static` beside FRR: a fabric that is up both ways has the same routes, whatever is down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest

from heddle.checks.validate import validate
from heddle.lab import lifecycle as life
from heddle.lab.control import control_of
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of
from heddle.lab.outages import drain, link_down
from heddle.lab.rehash import set_hashing
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from tests.conftest import Borrow
from tests.machine import until
from tests.marks import deep, long
from tests.netns.collectives import proven, ran
from tests.netns.live import failed, fault, in_node, next_hops, refused

STATIC = "routing.control=static"
SLOW = ("zones=2", "routing.ucmp=true", "link.exceptions.ctsw2=5mbit", "link.exceptions.rtsw1:eth1=10mbit")
# A fabric; ports and switches that go down, and one that is drained.
FABRICS = [
    (("tiny",), ("rtsw1:eth1",), "ctsw2"),
    long(("dc",), ("rtsw1:eth1", "ctsw2:eth3", "ctsw1"), "ctsw3"),
    long(("dc", "family=ipv6"), ("rtsw1:eth1", "ctsw1"), "atsw1"),
    long(("dc", *SLOW), ("rtsw1:eth2", "ctsw4:eth1"), "ctsw1"),
    long(("dc", "family=ipv6", *SLOW), ("rtsw1:eth2",), "ctsw1"),
    long(("zone", "racks=12", "ctsw=11", "hosts_per_rack=1"), ("rtsw1:eth2", "ctsw11"), "ctsw10"),
    long(("rail", "planes=2", "spines=4"), ("leaf1:eth1",), "spine2"),
    long(("fattree",), ("edge1:eth2", "core1"), "agg1"),
    long(("dragonfly", "groups=3", "hosts_per_switch=1"), ("sw1:eth4", "sw2"), "sw5"),
    long(("frontend",), ("rtsw1:eth1", "rsw1:eth1"), "ctsw2"),
]
Outage = Callable[[Lab, str], AbstractContextManager[object]]


def differences(one: Lab, two: Lab) -> list[str]:
    """`rtsw1 10.0.1.0/24`, for each route of one that the other has not, or with other next hops in another order."""
    found = []
    for switch, fib in one.snapshot(LabPart.FIBS).fibs.items():
        other = two.snapshot(LabPart.FIBS, [switch]).fibs[switch].routes
        for prefix in {*fib.routes, *other}:
            rows = (
                [(h.port, h.gateway, h.weight, h.dead) for h in each.get(prefix, ())] for each in (fib.routes, other)
            )
            if next(rows) != next(rows) or (prefix in fib.routes) != (prefix in other):
                found.append(f"{switch} {prefix}")
    return found


@pytest.mark.parametrize(("words", "down", "drained"), FABRICS)
def test_routes_are_those_of_frr(borrow: Borrow, words: tuple[str, ...], down: tuple[str, ...], drained: str) -> None:
    frr, static = borrow(*words), borrow(*words, STATIC)
    assert failed(static) == {} and not differences(frr, static)
    outages: list[tuple[Outage, str]] = [*((link_down, each) for each in down), (drain, drained)]
    with ExitStack() as stack:  # one after the other, and in the end all of them
        for outage, where in outages:
            for lab in (frr, static):
                stack.enter_context(outage(lab, where))
            assert not differences(frr, static), (outage, where)
    assert failed(static) == {} and not differences(frr, static)


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    return borrow("dc", STATIC)


def test_another_order_of_next_hops_is_a_difference_and_is_repaired(borrow: Borrow, lab: Lab) -> None:
    frr = borrow("dc")
    over = " ".join(f"nexthop via 169.254.0.1 dev {port} onlink" for port in ("eth2", "eth1"))
    prefix = lab.fabric.prefixes[3]
    in_node(lab, "rtsw1", f"ip route replace {prefix} proto static metric 20 {over}")
    assert differences(frr, lab) == [f"rtsw1 {prefix}"]
    assert control_of(lab.fabric).follow(lab) == ["rtsw1"] and not differences(frr, lab)
    assert control_of(lab.fabric).follow(lab) == []


def test_links_that_others_take_down_are_followed_by_a_repair(lab: Lab) -> None:
    in_node(lab, "rtsw1", "ip link set eth1 down")
    assert next_hops(lab, "rtsw2", 1) == {"eth1", "eth2"}, "no failure is detected"
    (row,) = status(lab.name)
    assert not row.converged and row.control == "static"
    assert "rtsw2  10.0.0.0/24 has the extra next hop eth1" in row.faults
    assert {"links", "routes"} <= set(failed(lab))
    done = life.repair_lab(lab.name)
    assert done.converged and done.repaired is not None
    assert "rtsw1:eth1: the neighbour entry of 169.254.0.1 set again" in done.repaired.done
    assert failed(lab) == {}


def test_faults_of_frr_and_its_shell_are_refused_and_its_checks_are_not_passed_silently(lab: Lab) -> None:
    for words in (("fault", "bgp-down", "rtsw1:eth1"), ("fault", "frozen", "rtsw1"), ("exec", "rtsw1", "vtysh")):
        assert "needs FRR, and lab tiny has routing.control: static" in refused(*words, lab=lab)
    skipped = {each.detail for each in validate(lab, ("bgp", "daemons")) if each.name != "nodes"}
    assert skipped == {"no switch runs FRR: routing.control is static"}


def test_a_switch_is_down_and_a_link_flaps(lab: Lab) -> None:
    fault(lab, "node-down", "ctsw1")
    assert next_hops(lab, "rtsw1", 3) == {"eth2"} and not next_hops(lab, "ctsw1", 3)
    fault(lab, "clear")
    fault(lab, "flap", "rtsw1:eth1", "--period", "400ms")
    fault(lab, "clear")
    assert next_hops(lab, "rtsw1", 3) == {"eth1", "eth2"}
    until(lambda: failed(lab) == {})  # the kernel adds fe80::/64 up to a second after a link came up


@pytest.mark.parametrize("mode", ["flow", *(deep(mode) for mode in ("e-ecmp", "pinned", "flowlet"))])
def test_a_link_goes_down_during_a_run_and_every_path_is_proven_after_it(lab: Lab, mode: str) -> None:
    set_hashing(lab, mode)
    try:
        ran(lab, sizes=(1 << 19,), iters=2, faults=("rtsw1:eth1,down,from=100ms,to=400ms",))
        assert state_of(lab) == State((), ())
        ran(lab, sizes=(1 << 16,))
        proven(lab)
    finally:
        set_hashing(lab, "flow")
