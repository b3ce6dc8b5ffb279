"""IGP adjacencies that are not up, as OSPF and IS-IS daemons report them.

In:  a running lab and one of its switches.
Out: one Adjacency per neighbour that is not usable, and per port that has heard no neighbour.
Only ports that lead to a switch count. The formats are FRR's JSON, from release 8 on (ospf_vty.c, ospf6_neighbor.c,
isis_adjacency.c).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import MachineError
from heddle.fabric.model import Node, Role
from heddle.lab.lab import Lab


@dataclass(frozen=True, slots=True)
class Adjacency:
    """One end of an adjacency that is not up. port: `rtsw1:eth1`; neighbour: as the protocol names it, or empty."""

    port: str
    protocol: str
    neighbour: str
    why: str

    @property
    def what(self) -> str:
        """`OSPF neighbour 10.0.0.2`."""
        return f"{self.protocol} neighbour {self.neighbour}" if self.neighbour else self.protocol

    def text(self) -> str:
        """`rtsw1:eth1 OSPF neighbour 10.0.0.2 is in Init, dead interval 40 s`."""
        return f"{self.port} {self.what} {self.why}"


def pending(lab: Lab, switch: Node) -> list[Adjacency]:
    """The switch's adjacencies that are not up, by port; empty where no IGP runs or its daemon does not answer."""
    known = lab.blueprint.daemons(switch.name)
    between = {port.name for port in switch.ports if lab.fabric.by_name[port.peer_node].role is Role.SWITCH}
    found: list[Adjacency] = []
    for daemon, read in _READERS.items():
        if daemon not in known and lab.daemons.vty(switch.name, daemon) is None:
            continue

        def ask(command: str, daemon: str = daemon) -> Mapping[str, Any]:
            text = lab.daemons.answer(switch.name, daemon, command)
            data = json.loads(text) if text.lstrip().startswith("{") else {}
            return data if isinstance(data, dict) else {}

        try:
            rows = [row for row in read(ask) if row.port in between]
        except (OSError, MachineError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the daemon has not started yet, or its release has another format
        found += [Adjacency(f"{switch.name}:{row.port}", row.protocol, row.neighbour, row.why) for row in rows]
    order = [f"{switch.name}:{port.name}" for port in switch.ports]
    return sorted(found, key=lambda each: order.index(each.port))


Ask = Callable[[str], Mapping[str, Any]]


def _ospf(ask: Ask) -> Iterator[Adjacency]:
    """RFC 2328: on a broadcast network no neighbour becomes Full before a designated router is elected. The election
    takes as long as the dead interval; until then the interface is Waiting.
    """
    neighbours: dict[str, list[tuple[str, str]]] = {}
    for rows in ask("show ip ospf neighbor json").get("neighbors", {}).values():
        for row in rows:
            name = str(row["ifaceName"]).partition(":")[0]
            state = str(row.get("nbrState", row.get("state", "")))
            neighbours.setdefault(name, []).append((str(row["ifaceAddress"]), state.partition("/")[0]))
    for name, interface in ask("show ip ospf interface json").get("interfaces", {}).items():
        if interface.get("timerPassiveIface") or not interface.get("ospfEnabled", True):
            continue
        state = str(interface.get("state", ""))
        dead, wait = interface.get("timerDeadSecs", 40), interface.get("timerWaitSecs", 40)
        yield from _judged("OSPF", name, neighbours.get(name, []), state, f"dead interval {dead} s", wait)


def _ospf6(ask: Ask) -> Iterator[Adjacency]:
    neighbours: dict[str, list[tuple[str, str]]] = {}
    for row in ask("show ipv6 ospf6 neighbor json").get("neighbors", []):
        state = {"Twoway": "2-Way"}.get(str(row["state"]), str(row["state"]))
        neighbours.setdefault(str(row["interfaceName"]), []).append((str(row["neighborId"]), state))
    for name, interface in ask("show ipv6 ospf6 interface json").items():
        if "ospf6InterfaceState" not in interface:
            continue
        state, dead = str(interface["ospf6InterfaceState"]), interface.get("timerIntervalsConfigDead", 40)
        yield from _judged("OSPFv3", name, neighbours.get(name, []), state, f"dead interval {dead} s", dead)


def _judged(
    protocol: str, port: str, rows: list[tuple[str, str]], interface: str, dead: str, wait: int
) -> Iterator[Adjacency]:
    """Neighbours that are not adjacent; two routers that are neither DR nor backup stay in 2-Way (RFC 2328, 10.4)."""
    if not rows:
        yield Adjacency(port, protocol, "", f"has no neighbour yet, {dead}")
    for neighbour, state in rows:
        if state == "Full" or (state == "2-Way" and interface == "DROther"):
            continue
        elects = state == "2-Way" and interface == "Waiting"
        note = f"the designated router is elected after {wait} s" if elects else dead
        yield Adjacency(port, protocol, neighbour, f"is in {state}, {note}")


def _isis(ask: Ask) -> Iterator[Adjacency]:
    heard: set[str] = set()
    for area in ask("show isis neighbor json").get("areas", []):
        for row in area.get("circuits", []):
            if "adj" not in row:
                continue
            heard.add(str(row["interface"]))
            if row["state"] != "Up":
                yield Adjacency(str(row["interface"]), "IS-IS", str(row["adj"]), f"is in {row['state']}")
    for area in ask("show isis interface json").get("areas", []):
        for row in area.get("circuits", []):
            interface = row.get("interface")
            name = str(interface["name"] if isinstance(interface, dict) else interface)
            if interface is not None and name not in heard:
                yield Adjacency(name, "IS-IS", "", "has no neighbour yet")


_READERS: Final[Mapping[str, Callable[[Ask], Iterator[Adjacency]]]] = {"ospfd": _ospf, "ospf6d": _ospf6, "isisd": _isis}
