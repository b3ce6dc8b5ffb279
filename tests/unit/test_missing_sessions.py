"""BGP sessions that are missing and routes that a fabric does not have: what is named, and with which cause."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from types import SimpleNamespace
from typing import cast

import pytest

from heddle.base.families import Network
from heddle.checks import validate
from heddle.checks.queuechecks import Subject
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric, Role
from heddle.kernel.fib import Fib, NextHop
from heddle.lab.convergence import ForeignRoute, foreign_routes, overriding_routes
from heddle.lab.daemons import BgpPeer, MissingSession, SessionCauses, SessionEnd, explained, missing_of
from heddle.lab.facts import facts
from heddle.lab.imported.reachability import BgpSession, Sessions, pairs_of
from heddle.lab.lab import Lab
from heddle.lab.opening import Rendered
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.lab.status import BgpStatus, LabStatus
from heddle.views.labtext import status_text
from tests.answers import Answers

LOADED = load_fabric("tiny")
FABRIC = LOADED.fabric
UP = "Established"
NOTHING = SessionCauses((), {}, {})


def now(**changed: Mapping[str, str] | None) -> Snapshot:
    """All sessions of tiny are established, but for what is changed."""
    between = {
        node.name: {p.name: UP for p in node.ports if FABRIC.by_name[p.peer_node].role is Role.SWITCH}
        for node in FABRIC.switches
    }
    states = {name: changed.get(name, found) for name, found in between.items()}
    return Snapshot(
        "tiny", LabPart.SESSIONS, {name: NodeSnapshot(name, sessions=each) for name, each in states.items()}
    )


def a_session(a: str = "Active", b: str = "Idle") -> MissingSession:
    return MissingSession(SessionEnd("rtsw1", "eth1", "eth1", a), SessionEnd("ctsw1", "eth1", "eth1", b))


def why(seen: SessionCauses, session: MissingSession | None = None, **peers: BgpPeer) -> str:
    (found,) = explained([session or a_session()], seen, lambda node: {"eth1": peers[node]} if node in peers else None)
    return found.why


def test_a_session_is_missing_when_one_end_says_so() -> None:
    made = Rendered(FABRIC, LOADED.spec)
    assert made.missing_sessions(now()) == []
    (one,) = made.missing_sessions(now(rtsw1={"eth1": "Active", "eth2": UP}))
    assert one.text() == "rtsw1:eth1 (Active) - ctsw1:eth1 (Established): the cause is not known"
    (other,) = made.missing_sessions(now(rtsw1={"eth2": UP}))
    assert (other.a.ref, other.a.state) == ("rtsw1:eth1", "not configured")
    silent = made.missing_sessions(now(ctsw2=None))
    assert [(each.a.ref, each.b.text()) for each in silent] == [
        ("rtsw1:eth2", "ctsw2:eth1 (no answer)"),
        ("rtsw2:eth2", "ctsw2:eth2 (no answer)"),
    ]


def test_nodes_daemons_and_links_that_are_down_explain_a_session(answers: Answers) -> None:
    answers(lambda *seen: why(SessionCauses(*seen)))


def test_reports_of_the_daemons_explain_a_session(answers: Answers) -> None:
    right = BgpPeer("Active", 65001, 65101)
    answers({
        "right": why(NOTHING, rtsw1=right, ctsw1=BgpPeer("Idle", 65101, 65001)),
        "mismatch": why(NOTHING, rtsw1=right, ctsw1=BgpPeer("Idle", 65101, 65999)),
        "shut": why(NOTHING, rtsw1=right, ctsw1=BgpPeer("Idle (Admin)", 65101, 65001, shut=True)),
        "note": why(NOTHING, rtsw1=BgpPeer("Active", 65001, 0, notification="OPEN Message Error/Bad Peer AS")),
        "reset": why(NOTHING, rtsw1=BgpPeer("Active", reset="Waiting for peer OPEN")),
        "no neighbour": why(NOTHING, a_session(b="not configured")),
    })  # fmt: skip


def test_sessions_of_an_imported_lab_are_paired_by_their_link() -> None:
    ends = [
        BgpSession("rtsw1", "eth1", "ctsw1", "Active"), BgpSession("ctsw1", "eth1", "rtsw1", "Connect"),
        BgpSession("rtsw1", "10.9.9.9", "ctsw2", UP), BgpSession("ctsw2", "10.8.8.8", "rtsw1", "Idle"),
        BgpSession("rtsw2", "eth2", "ctsw2", "Active"),
        BgpSession("rtsw2", "eth1", "ctsw1", UP), BgpSession("ctsw1", "eth2", "rtsw2", UP),
    ]  # fmt: skip
    found = missing_of(pairs_of(FABRIC, Sessions(tuple(ends), (), ("rtsw1", "rtsw2", "ctsw1", "ctsw2"))))
    assert [each.text().partition(":  ")[0] for each in found] == [
        "rtsw1:eth1 (Active) - ctsw1:eth1 (Connect): the cause is not known",
        "rtsw1 (Established) - ctsw2 (Idle): the cause is not known",
        "rtsw2:eth2 (Active) - ctsw2:eth2 (not configured): the cause is not known",
    ]


def test_sessions_with_a_daemon_that_does_not_answer_are_missing_and_one_with_a_host_is_not() -> None:
    ends = (BgpSession("rtsw1", "eth1", "ctsw1", UP), BgpSession("rtsw2", "eth3", "host3", UP))
    sessions = Sessions(ends, ("ctsw1",), ("rtsw1", "rtsw2", "ctsw1", "ctsw2"))
    pairs = pairs_of(FABRIC, sessions)
    assert len(pairs) == 2
    assert [each.text() for each in missing_of(pairs)] == [
        "rtsw1:eth1 (Established) - ctsw1:eth1 (no answer): the cause is not known"
    ]


def test_status_of_a_lab_names_the_sessions_and_says_how_many_more_there_are() -> None:
    def shown(*sessions: MissingSession) -> str:
        row = LabStatus("tiny", "netns", "up", False, 4, 4, 8, BgpStatus(3, 4), missing_sessions=sessions)
        assert ("missing_sessions" in row.to_json()) == bool(sessions)
        return status_text([row], detail=True)

    (one,) = explained([a_session()], SessionCauses((), {"rtsw1:eth1": True}, {}), lambda _: None)
    assert one.to_json() == {
        "a": {"port": "rtsw1:eth1", "peer": "eth1", "state": "Active"},
        "b": {"port": "ctsw1:eth1", "peer": "eth1", "state": "Idle"},
        "why": "rtsw1:eth1 is down",
    }
    assert "missing" not in shown()
    assert shown(*[one] * 14).splitlines()[-1].strip() == "and 2 more: ./inv status tiny --format json lists all"


TINY = load_fabric("tiny").fabric
Stray = Mapping[str, Mapping[str, tuple[NextHop, ...]]]  # switch -> prefix -> next hops
MANAGEMENT = "eth0"  # no port of the fabric has this name


def hops(*ports: str) -> tuple[NextHop, ...]:
    return tuple(NextHop(port, number, "") for number, port in enumerate(ports, 1))


def fibs(fabric: Fabric, more: Stray) -> dict[str, Fib]:
    """What BGP installs and the kernel adds, loopbacks of other switches included, and more: switch -> prefix."""
    found = {}
    for node in fabric.switches:
        loopbacks = [ip_network(each.loopback) for each in fabric.switches if each is not node and each.loopback]
        routes: dict[Network, tuple[NextHop, ...]] = {
            prefix: hops(*sorted(ports)) for prefix, ports in fabric.expected_next_hops[node.name].items()
        }
        routes |= dict.fromkeys(loopbacks if fabric.policy.routing.loopbacks else (), hops("eth1"))
        routes |= {ip_network(prefix): each for prefix, each in more.get(node.name, {}).items()}
        found[node.name] = Fib(node.name, routes)
    return found


def of(switch: str, prefix: str, *ports: str) -> list[ForeignRoute]:
    return foreign_routes(TINY, fibs(TINY, {switch: {prefix: hops(*ports)}}))


@pytest.mark.parametrize("preset", ["tiny", "dc", "rail"])
def test_routes_of_the_fabric_are_not_foreign(preset: str) -> None:
    for announced in ("true", "false"):
        fabric = load_fabric(preset, overrides=[f"routing.loopbacks={announced}"]).fabric
        assert foreign_routes(fabric, fibs(fabric, {})) == []
    more = {"rtsw1" if preset != "rail" else "leaf1": {f"{fabric.switches[-1].loopback}/32": hops("eth1")}}
    (loopback,) = foreign_routes(fabric, fibs(fabric, more))
    assert loopback.prefix == ip_network(str(fabric.switches[-1].loopback))


def test_a_foreign_route_is_named_with_what_it_overrides(answers: Answers) -> None:
    def overrides(switch: str, prefix: str, *ports: str) -> str:
        (found,) = of(switch, prefix, *ports)
        assert (found.switch, found.prefix, found.ports) == (switch, ip_network(prefix), ports)
        return str(found.overrides)

    answers(overrides)


@pytest.mark.parametrize("prefix", ["0.0.0.0/0", "172.20.20.0/24", "10.0.0.0/8"])
@pytest.mark.parametrize("port", [(MANAGEMENT,), ()])
def test_a_management_network_is_not_foreign(prefix: str, port: tuple[str, ...]) -> None:
    assert of("rtsw1", prefix, *port) == []


def test_an_imported_topology_and_an_ipv6_fabric_have_the_same_check() -> None:
    """It defines no routes. tiny stands for one: the function reads only addresses and links."""
    more = {"rtsw1": {"10.0.0.1/32": hops("eth1"), "10.0.0.0/24": hops("eth1"), "192.0.2.0/24": hops("eth2")}}
    found = overriding_routes(TINY, fibs(TINY, more))
    assert found == [ForeignRoute("rtsw1", ip_network("10.0.0.1/32"), ("eth1",), ip_network("10.0.0.0/31"))]
    # An ipv6 fabric has the same check.
    fabric = load_fabric("tiny", overrides=("family=ipv6",)).fabric
    edge = fabric.by_name["rtsw2"].prefix
    assert edge is not None and wrong(fabric, {}) == []
    (said,) = wrong(fabric, {"rtsw1": {f"{edge.network_address + 1}/128": hops("eth1")}})
    assert f"and overrides {edge}" in said and "rtsw1 ip -6 route show" in said


def test_foreign_routes_are_notes_with_words_and_a_hint() -> None:
    made = SimpleNamespace(rendered=False, routes_checked=lambda: "4 addresses", gaps=lambda now: [])
    lab = cast("Lab", SimpleNamespace(name="tiny", fabric=TINY, blueprint=made))
    nodes = {name: NodeSnapshot(name, fib=fib) for name, fib in fibs(TINY, {"rtsw1": {"10.0.0.1/32": ()}}).items()}
    answer = validate.routes(Subject(lab, {}, Snapshot("tiny", LabPart.FIBS, nodes)))
    assert answer == (
        "4 addresses",
        [],
        ("rtsw1: 10.0.0.1/32 to nowhere overrides 10.0.0.0/31, the network of a host",),
    )
    # The words and the hint.
    more: Stray = {"rtsw1": {"10.0.1.1/32": hops("eth1", "eth2")}, "ctsw1": {"10.0.1.1/32": ()}}
    assert [each.split()[0] for each in wrong(TINY, more)] == [
        "rtsw1",
        "ctsw1",
    ]
    assert wrong(TINY, more, rendered=False) == []


def wrong(fabric: Fabric, more: Stray, *, rendered: bool = True) -> list[str]:
    made = SimpleNamespace(rendered=rendered, gaps=lambda now: [])
    lab = cast("Lab", SimpleNamespace(name="tiny", fabric=fabric, blueprint=made))
    nodes = {name: NodeSnapshot(name, fib=fib) for name, fib in fibs(fabric, more).items()}
    found = facts(lab, Snapshot("tiny", LabPart.FIBS, nodes), ("route",))
    return [str(each.problem) for each in found]
