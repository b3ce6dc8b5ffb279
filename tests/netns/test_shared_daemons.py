"""Switches that share daemons (`routing.daemons: shared`): the same routes, and all that a user asks of one switch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.fib import NextHop
from heddle.lab import lifecycle as life
from heddle.lab.daemons import Daemons
from heddle.lab.faults.orders import clear, set_kind
from heddle.lab.frr import home_of, on_daemons
from heddle.lab.lab import Lab
from heddle.lab.linkstate import configure_bgp, wait
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runs.run import run
from tests.conftest import Up
from tests.machine import until
from tests.netns.live import failed

SHARED: Final = "routing.daemons=shared"
UNEVEN: Final = ("racks=3", "ctsw=2", "hosts_per_rack=1", "routing.ucmp=true", "routing.loopbacks=true")


def routes(lab: Lab) -> Mapping[str, Mapping[object, frozenset[NextHop]]]:
    """Switch -> prefix -> next hops with their gateways and weights, from every kernel."""
    fibs = lab.snapshot(LabPart.FIBS).fibs
    return {name: {prefix: frozenset(hops) for prefix, hops in fib.routes.items()} for name, fib in fibs.items()}


@pytest.fixture(scope="module")
def shared(lab_name: Callable[[], str], up: Up) -> Iterator[Lab]:
    """A lab of this module alone: its daemons are ended and started again."""
    name = lab_name()
    try:
        yield up(name, SHARED).lab
    finally:
        life.down(name)


@pytest.mark.parametrize(
    ("fabric", "keys"),
    [
        ("zone", UNEVEN),
        pytest.param("tiny", ("family=ipv6",), marks=pytest.mark.long("as before, in IPv6")),
        pytest.param("dragonfly", ("groups=3",), marks=pytest.mark.long("as before, with route-maps of global links")),
    ],
)
def test_both_kinds_give_every_kernel_the_same_routes(
    fabric: str, keys: tuple[str, ...], lab_name: Callable[[], str], up: Up
) -> None:
    own, other = lab_name(), lab_name()
    try:
        wanted = routes(up(own, *keys, fabric=fabric).lab)
        life.down(own)
        lab = up(other, *keys, SHARED, fabric=fabric).lab
        until(lambda: routes(lab) == wanted)
        switch = lab.fabric.switches[0]
        port = next(each for each in switch.ports if each.address is None)
        configure_bgp(lab, switch, f"neighbor {port.name} shutdown")
        until(lambda: routes(lab)[switch.name] != wanted[switch.name])
    finally:
        life.down(own)
        life.down(other)


def test_a_switch_answers_as_with_daemons_of_its_own(shared: Lab) -> None:
    assert home_of(shared, "rtsw1") == home_of(shared, "rtsw2") != home_of(shared, "ctsw1")
    assert {*on_daemons(shared, "rtsw1")} - {"mgmtd"} == {"zebra", "bgpd"}
    said = shared.output("rtsw2", ["vtysh", "-c", "show bgp summary"])
    assert "VRF rtsw2" in said
    assert str(shared.fabric.by_name["rtsw2"].asn) in said
    run(shared, run_options(size="256K", qps=4, iters=2), Silent())
    assert failed(shared) == {}, "and the paths of the run are proven"


def test_a_drain_is_one_of_its_switch_alone(shared: Lab) -> None:
    set_kind(shared, "drain", ["ctsw1"], {})
    assert shared.snapshot(LabPart.DRAINED).drained == ("ctsw1",)
    clear(shared, ["ctsw1"])
    assert failed(shared) == {}


@pytest.mark.parametrize("kind", ["frozen", "node-down"])
def test_a_fault_of_a_daemon_is_refused_with_the_switches_that_share_it(kind: str, shared: Lab) -> None:
    with pytest.raises(InputError, match=r"its daemons are those of rtsw2, too \(routing.daemons: shared, frr1\)"):
        set_kind(shared, kind, ["rtsw1"], {})


def test_repair_starts_the_daemons_of_a_group_again(shared: Lab, up: Up) -> None:
    lab = shared
    pid = int(lab.runtime.output(lab.name, lab.topology, "frr1", ["cat", "/run/frr/bgpd.pid"]))
    os.kill(pid, signal.SIGKILL)
    until(lambda: lab.snapshot(LabPart.SILENT).silent.keys() == {"rtsw1", "rtsw2"})
    # Neighbours may have routes of its switches for a moment, which is a fault of theirs.
    assert {f"{name}  bgpd does not answer" for name in ("rtsw1", "rtsw2")} <= set(status(lab.name)[0].faults)
    done = up(lab.name, SHARED, repair=True).repaired
    assert done is not None
    assert done.done == ("frr1: bgpd did not answer; FRR started again",)
    wait(lab)
    assert failed(lab) == {}


def test_what_was_entered_in_one_switch_is_undone_in_its_group(shared: Lab, up: Up) -> None:
    configure_bgp(shared, shared.fabric.by_name["rtsw1"], "neighbor eth1 shutdown")
    configure_bgp(shared, shared.fabric.by_name["rtsw2"], "bgp graceful-shutdown")
    done = life.repair_lab(shared.name, Silent()).repaired
    assert done is not None
    assert [line.partition(":")[0] for line in done.done] == ["frr1"]
    assert shared.snapshot(LabPart.DRAINED).drained == ("rtsw2",), "a drain stays"
    configure_bgp(shared, shared.fabric.by_name["rtsw2"], "no bgp graceful-shutdown")
    wait(shared)


def test_a_bgpd_that_is_too_busy_to_take_its_networks_is_given_them_again(
    lab_name: Callable[[], str], up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, refused = Daemons.answer, set[str]()

    def busy(self: Daemons, switch: str, daemon: str, *commands: str) -> str:
        if "configure terminal" in commands and switch not in refused:
            refused.add(switch)
            raise TimeoutError("timed out")
        return answer(self, switch, daemon, *commands)

    monkeypatch.setattr(Daemons, "answer", busy)
    name = lab_name()
    try:
        assert up(name, SHARED, fabric="tiny").converged
        assert refused
    finally:
        life.down(name)


def test_containers_refuse_it(lab_name: Callable[[], str]) -> None:
    with pytest.raises(InputError, match="is possible in runtime netns only: in runtime containerlab each switch runs"):
        life.up(load_fabric("tiny", name=lab_name(), overrides=[SHARED]), runtime="containerlab")
