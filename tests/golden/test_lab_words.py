"""What `inspect` and `status LAB` print of a lab, and `paths` of some of its QPs, word for word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from heddle.base.problems import Problem
from heddle.base.tables import table
from heddle.checks import validate
from heddle.checks.queuechecks import Answer, Subject
from heddle.checks.validate import result_of
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Role
from heddle.fabric.wiring import Node
from heddle.lab.daemons import MissingSession, SessionEnd
from heddle.lab.fabricstate import FabricReading
from heddle.lab.fact import Fact
from heddle.lab.facts import facts
from heddle.lab.inventory import LabInventory, NodeEntry, PortEntry
from heddle.lab.lab import Lab
from heddle.lab.opening import blueprint_from
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.lab.status import BgpStatus, LabStatus
from heddle.runs.runtable import degraded_line
from heddle.views.labtext import checks_text, lab_text, nodes_text, status_text
from heddle.views.pathstext import paths_text
from tests.unit.test_missing_sessions import Stray, fibs, hops
from tests.unit.test_paths_fans import RAIL, rail_result, result, select

FABRIC = load_fabric("rail").fabric


def entry(node: Node) -> NodeEntry:
    """A node that runs, as its fabric file has it."""
    fabric = FABRIC
    ports = []
    for port in node.ports:
        there = fabric.by_name[port.peer_node]
        between = Role.HOST not in (node.role, there.role)
        addresses = (str(port.address),) if port.address is not None else ()
        bgp = "Established" if between else ""
        ports.append(
            PortEntry(port.name, port.peer_ref, True, addresses, port.mac, port.rate_bps, port.mtu, bgp, there.asn or 0)
        )
    loopback = str(node.loopback or "")
    lo = {"lo": (f"{loopback}/32",)} if loopback else {}
    return NodeEntry(
        node.name, node.role, fabric.level_of(node).title, node.asn or 0, loopback, str(node.router_id or ""),
        str(node.prefix or ""), f"/run/netns/heddle-rail-{node.name}", tuple(ports), lo,
    )  # fmt: skip


def inventory(*nodes: NodeEntry) -> LabInventory:
    sizes = len(FABRIC.switches), len(FABRIC.hosts), len(FABRIC.links)
    return LabInventory("rail", "netns", "/state/labs/rail/topology/rail.clab.yml", *sizes, nodes)


def test_the_words_of_a_lab(golden: Callable[[str, str], None]) -> None:
    every = [entry(node) for node in FABRIC.nodes]
    first = next(node for node in every if node.role is Role.SWITCH)
    broken = replace(first, ports=(replace(first.ports[0], up=False, bgp="Idle"), *first.ports[1:]))
    unread = tuple(replace(port, up=None, addresses=()) for port in every[-1].ports)
    stopped = replace(every[-1], trouble="its namespace is missing: it was removed", others={}, ports=unread)
    here, there = SessionEnd("leaf1", "eth1", "eth1", "Active"), SessionEnd("spine1", "eth1", "eth1", "Idle")
    missing = MissingSession(here, there, "leaf1:eth1 is down")
    faults = ("leaf1:eth1 the link is down",)
    row = LabStatus("rail", "netns", "up", False, 10, 4, 32, BgpStatus(15, 16), "rail", faults, (missing,))
    several = rail_result(("host1:eth2", "host3:eth2"), ("host1:eth1", "host2:eth1"))
    texts = [
        lab_text(inventory(broken, *every[1:-1], stopped)),
        nodes_text(inventory(broken, stopped)),
        status_text([row], detail=True),
        status_text(
            [replace(row, faults=(), missing_sessions=(), gaps=("leaf1: 10.0.1.0/24 has no next hop eth2",))],
            detail=True,
        ),
        "\n".join(paths_text(result()).splitlines()[-19:]),
        paths_text(result(), select(qp="256-258", port="rtsw1:eth1,ctsw2:eth1")),
        paths_text(result(), select(qp="7", host="host1", port="host2")),
        paths_text(several, select(RAIL, host="host1:eth2")),
    ]
    golden("labs/words.log", "\n\n\n".join(texts) + "\n")


def test_the_words_of_a_route_that_the_fabric_does_not_have(golden: Callable[[str, str], None]) -> None:
    """In `status`, in `validate`, and in the head of a run."""
    tiny = load_fabric("tiny")
    lab = cast("Lab", SimpleNamespace(name="tiny", fabric=tiny.fabric, blueprint=blueprint_from(tiny)))
    stray: Stray = {
        "rtsw1": {"10.0.1.1/32": hops("eth2"), "10.0.0.0/16": hops("eth1", "eth2")},
        "ctsw1": {"10.0.1.1/32": ()},
    }
    nodes = {
        node.name: NodeSnapshot(node.name, fib=fib, down={}, drained=False)
        for node, fib in zip(tiny.fabric.switches, fibs(tiny.fabric, stray).values(), strict=True)
    }
    now = Snapshot("tiny", LabPart.FIBS | LabPart.CARRIER | LabPart.DRAINED | LabPart.UNROUTED, nodes)
    known = facts(lab, now, ("route",))
    found, lines = [each.problem for each in known], tuple(each.text for each in known)
    result = result_of("routes", lambda: validate.routes(Subject(lab, {}, now)), lambda _: known)
    texts = [
        "\n".join(map(str, found)),
        status_text([LabStatus("tiny", "netns", "up", False, 4, 4, 8, BgpStatus(4, 4), "tiny", lines)], detail=True),
        checks_text([result]),
        degraded_line("before", FabricReading(lines)),
    ]
    golden("labs/foreign-routes.log", "\n\n\n".join(texts) + "\n")


def test_a_failed_check_has_a_hint_for_each_command() -> None:
    repair, by_hand = "./inv up --repair --name x sets it again", "run ./inv exec --lab x r1 sysctl -w a.b=0"
    other = by_hand.replace("r1", "r2")
    found = tuple(
        Fact("sysctl", Problem(node, "a.b", "is 1", hint))
        for node, hint in (("r1", by_hand), ("r2", other), ("h1", repair), ("h2", repair), ("h3", ""))
    )
    result = result_of("sysctls", lambda: Answer("5 as rendered", [], ()), lambda _: found)
    assert not result.ok
    assert result.detail.endswith(f"; {by_hand}; {repair}") and other not in result.detail
    result = result_of("sysctls", lambda: Answer("5 as rendered", [], ()), lambda _: ())
    assert (result.ok, result.detail) == (True, "5 as rendered")


def test_the_ports_column_wraps_on_a_narrow_terminal() -> None:
    text = table(("node", "ports"), [("host1", "eth1->leaf1:eth1, eth2->leaf2:eth1")], width=30)
    assert text.splitlines() == ["node   ports", "host1  eth1->leaf1:eth1,", "       eth2->leaf2:eth1"]
