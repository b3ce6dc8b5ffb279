"""FRR daemons of switches: queries, BGP sessions that are not established, and IGP adjacencies that are not up.

They are asked through their own sockets: about a millisecond each, without a vtysh process. The protocol is that of
vtysh (lib/vty.c, vtysh_read). Request: the command and a NUL. Response: the text, three NULs and one result byte.
MissingSession: both ends, their states, and the cause. A cause is stated only where a reading shows it; otherwise it is
empty. Adjacency: one per neighbour that is not usable, and per port without a neighbour, as OSPF and IS-IS daemons
report them. Only ports that lead to a switch count. The formats are FRR's JSON, from release 8 on (ospf_vty.c,
ospf6_neighbor.c, isis_adjacency.c).
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError
from heddle.base.process import is_stopped
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node
from heddle.runtimes.registry import Runtime
from heddle.runtimes.vrf import in_vrf

ESTABLISHED: Final = "Established"
ADMIN_DOWN: Final = "Idle (Admin)"  # `neighbor ... shutdown`
GRACEFUL_SHUTDOWN: Final = "graceful-shutdown"  # the community of RFC 8326, 65535:0
DAEMONS: Final = ("zebra", "bgpd")
_PAUSE_S: Final = 0.005
_CREDENTIALS: Final = struct.Struct("=3i")  # struct ucred: pid, uid, gid
_SUMMARY: Final = "show bgp summary json"
_NEIGHBOURS: Final = "show bgp neighbors json"


@dataclass(frozen=True, slots=True)
class BgpPeer:
    """A switch's neighbour as its bgpd reports it. local_as, remote_as: 0 where bgpd reports none.

    shut: the session is administratively down. reset: why the last session ended, in bgpd's words, or empty.
    notification: the last NOTIFICATION message (RFC 4271, 4.5) in words, or empty.
    """

    state: str
    local_as: int = 0
    remote_as: int = 0
    shut: bool = False
    reset: str = ""
    notification: str = ""


@dataclass(frozen=True, slots=True)
class Daemons:
    """The daemons of one lab. expected: switch -> the daemons that must answer there.

    A method that asks BGP returns None when bgpd does not answer; a bgpd without BGP configured has no peers.
    """

    fabric: Fabric
    runtime: Runtime
    topology: Path
    expected: Callable[[str], Sequence[str]]

    def sessions(self, switch: str) -> Mapping[str, str] | None:
        """Peer (a port, or an address) -> state of its session (`Established`, ...), for all address families."""
        try:
            tables = [each.get("peers", {}) for each in self._json(switch, _SUMMARY).values() if isinstance(each, dict)]
            return {str(peer): str(row["state"]) for table in tables for peer, row in table.items()}
        except (OSError, MachineError, ValueError, KeyError, AttributeError):
            return None

    def peers(self, switch: str) -> Mapping[str, BgpPeer] | None:
        """Peer (a port, or an address) -> its details."""
        try:
            return {
                str(peer): BgpPeer(
                    str(row["bgpState"]), int(row.get("localAs", 0)), int(row.get("remoteAs", 0)),
                    bool(row.get("adminShutDown")), str(row.get("lastResetDueTo", "")),
                    str(row.get("lastNotificationReason", "")),
                )
                for peer, row in self._json(switch, _NEIGHBOURS).items()
                if isinstance(row, dict) and "bgpState" in row
            }  # fmt: skip
        except (OSError, MachineError, ValueError, TypeError, AttributeError):
            return None

    def silent(self, switch: str, known: set[Path] | None = None) -> tuple[str, ...]:
        """Expected daemons that do not answer. Without zebra the kernel keeps its routes, even outdated ones.

        known: sockets where a daemon has just answered, which are not asked again; those that answer now are added.
        """
        found, known = [], set[Path]() if known is None else known
        for daemon in self.expected(switch):
            vty = self.vty(switch, daemon)
            if vty in known:
                continue
            try:
                self.answer(switch, daemon, "show version")
            except (OSError, MachineError):
                found.append(daemon)
            else:
                known |= {vty} if vty is not None else set()
        return tuple(found)

    def drained(self, switch: str) -> bool:
        """True when BGP drains a switch: in graceful shutdown bgpd adds the community to its own loopback's prefix."""
        family, loopback = self.fabric.policy.ip, self.fabric.by_name[switch].loopback
        command = f"show bgp {family.word} unicast {loopback}/{family.bits} json"
        try:
            paths = json.loads(self.answer(switch, "bgpd", command))["paths"]
            return any(GRACEFUL_SHUTDOWN in str(path.get("community", {}).get("string", "")) for path in paths)
        except (OSError, MachineError, ValueError, KeyError, TypeError, AttributeError):
            return False  # bgpd does not answer, which is reported elsewhere

    def answer(self, switch: str, daemon: str, *commands: str) -> str:
        """The output of a daemon for the last command, from its view mode on.

        OSError or MachineError when it does not answer.
        """
        if self.fabric.policy.routing.daemons == "shared":
            commands = tuple(in_vrf(each, switch) for each in commands)
        vty = self.vty(switch, daemon)
        if vty is not None:
            return ask(vty, *commands)
        command = commands[-1]  # vtysh has entered the enable mode
        return self.runtime.output(self.fabric.name, self.topology, switch, ["vtysh", "-d", daemon, "-c", command])

    def vty(self, switch: str, daemon: str) -> Path | None:
        """The socket of a daemon on this machine; None if there is none."""
        return self.runtime.find(self.fabric.name, self.topology, switch, f"/run/frr/{daemon}.vty")

    def _json(self, switch: str, command: str) -> Mapping[str, Any]:
        text = self.answer(switch, "bgpd", command)
        data: Mapping[str, Any] = json.loads(text) if text.lstrip().startswith("{") else {}
        return data


def ask(vty: Path, *commands: str, timeout: float = 2.0) -> str:
    """Send a daemon commands, from its view mode on; return the last output. OSError when it does not answer.

    timeout: seconds without any data.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        end = time.monotonic() + timeout
        while True:
            try:
                link.connect(str(vty))
                break
            except BlockingIOError:  # a daemon of several switches listens with a short queue (lib/vty.c)
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE_S)
        pid, _, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if is_stopped(pid):  # it would not answer before the timeout either
            raise TimeoutError(f"process {pid} is stopped")
        answer = bytearray()
        for command in commands:
            link.sendall(command.encode() + b"\0")
            answer.clear()
            # The end is three NULs and the result byte, which may itself be NUL (success).
            while len(answer) < 4 or answer[-4:-1] != b"\0\0\0":
                part = link.recv(1 << 16)
                if not part:
                    raise ConnectionResetError(f"{vty} closed")
                answer += part
    return answer[:-4].decode(errors="replace")


NO_ANSWER: Final = "no answer"
NOT_CONFIGURED: Final = "not configured"
NOT_ASKED: Final = "not asked"  # a host that speaks BGP

# Switch -> its BGP neighbours; None when its bgpd does not answer.
AskPeers = Callable[[str], Mapping[str, BgpPeer] | None]


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """One end. port: empty for a session whose addresses belong to no port. peer: the other end as named by bgpd.

    state: of its BGP state machine (RFC 4271, 8.2.2), `no answer`, `not configured` or `not asked`.
    """

    node: str
    port: str
    peer: str
    state: str

    @property
    def ref(self) -> str:
        """`rtsw1:eth1`; the node alone where the session has no port."""
        return f"{self.node}:{self.port}" if self.port else self.node

    def text(self) -> str:
        """`rtsw1:eth1 (Active)`."""
        return f"{self.ref} ({self.state})"


@dataclass(frozen=True, slots=True)
class MissingSession:
    """A session that is not established at both ends. why: empty where the cause is not known."""

    a: SessionEnd
    b: SessionEnd
    why: str = ""

    def text(self) -> str:
        """`rtsw1:eth1 (Active) - ctsw1:eth1 (Idle): rtsw1:eth1 is down`."""
        return f"{self.a.text()} - {self.b.text()}: {self.why or 'the cause is not known'}"

    def to_json(self) -> dict[str, Any]:
        ends = [{"port": end.ref, "peer": end.peer, "state": end.state} for end in (self.a, self.b)]
        return {"a": ends[0], "b": ends[1], "why": self.why}


@dataclass(frozen=True, slots=True)
class SessionCauses:
    """Readings that may explain a missing session. stopped: nodes that are not running; down: ports without carrier ->
    True if taken down at this end; silent: switch -> daemons that do not answer.
    """

    stopped: Collection[str]
    down: Mapping[str, bool]
    silent: Mapping[str, Collection[str]]


def explained(missing: Iterable[MissingSession], seen: SessionCauses, ask: AskPeers) -> tuple[MissingSession, ...]:
    """Add the causes. Each daemon is asked at most once, and only where kernels show no cause."""
    answers: dict[str, Mapping[str, BgpPeer]] = {}

    def peer_of(end: SessionEnd) -> BgpPeer | None:
        if end.node not in answers:
            answers[end.node] = ask(end.node) or {}
        return answers[end.node].get(end.peer)

    return tuple(replace(each, why=_simple(each, seen) or _by_bgp(each, peer_of)) for each in missing)


def _simple(each: MissingSession, seen: SessionCauses) -> str:
    """A cause found without asking bgpd: a node, a daemon or a link that is down."""
    ends = (each.a, each.b)
    for end in ends:
        if end.node in seen.stopped:
            return f"{end.node} is not running"
    dead = [f"{daemon} of {end.node}" for end in ends for daemon in sorted(seen.silent.get(end.node, ()))]
    if dead:
        return f"{' and '.join(dead)} {'does' if len(dead) == 1 else 'do'} not answer"
    down = [end.ref for end in ends if end.ref in seen.down]
    taken = [ref for ref in down if seen.down[ref]]
    if down:
        return f"{' and '.join(taken or down)} {'is' if len(taken or down) == 1 else 'are'} down"
    return ""


def _by_bgp(each: MissingSession, peer_of: Callable[[SessionEnd], BgpPeer | None]) -> str:
    """A cause reported by the two bgpds."""
    ends = (each.a, each.b)
    for end, other in ((each.a, each.b), (each.b, each.a)):
        if end.state == NOT_CONFIGURED:
            return f"bgpd of {end.node} has no neighbour for {other.ref}"
    peers = [peer_of(end) for end in ends]
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.shut:
            return f"it is shut down at {end.node} (neighbor {end.peer} shutdown)"
    peer_a, peer_b = peers
    if peer_a is not None and peer_b is not None:
        for end, near, far, there in ((each.a, peer_a, peer_b, each.b), (each.b, peer_b, peer_a, each.a)):
            if near.remote_as and far.local_as and near.remote_as != far.local_as:
                return f"AS mismatch: {end.node} expects AS {near.remote_as}, {there.node} has AS {far.local_as}"
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.notification:
            return f"last NOTIFICATION at {end.node}: {peer.notification}"
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.reset:
            return f"last reset at {end.node}: {peer.reset}"
    return ""


def missing_of(pairs: Iterable[tuple[SessionEnd, SessionEnd]]) -> list[MissingSession]:
    """Sessions that an end reports as not established, without causes. An end that is not asked does not count."""
    return [MissingSession(*pair) for pair in pairs if {end.state for end in pair} - {ESTABLISHED, NOT_ASKED}]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """One end of an adjacency that is not up. port: `rtsw1:eth1`; neighbour: as the protocol names it, or empty.

    maybe: the port is down, or may be passive, which its daemon does not report.
    """

    port: str
    protocol: str
    neighbour: str
    why: str
    maybe: bool = False

    @property
    def what(self) -> str:
        """`OSPF neighbour 10.0.0.2`."""
        return f"{self.protocol} neighbour {self.neighbour}" if self.neighbour else self.protocol

    def text(self) -> str:
        """`rtsw1:eth1 OSPF neighbour 10.0.0.2 is in Init, dead interval 40 s`."""
        return f"{self.port} {self.what} {self.why}"


def awaited(fabric: Fabric, found: Collection[Adjacency]) -> tuple[Adjacency, ...]:
    """Those that must come up: with a known neighbour, or of a link with the protocol at both ends. found: of a lab."""
    ends = {(each.port, each.protocol) for each in found}

    def other(ref: str) -> str:
        node, _, port = ref.partition(":")
        return fabric.by_name[node].port(port).peer_ref

    return tuple(
        each for each in found if each.neighbour or (not each.maybe and (other(each.port), each.protocol) in ends)
    )


def pending(daemons: Daemons, switch: Node) -> list[Adjacency]:
    """The switch's adjacencies that are not up, by port; empty where no IGP runs or its daemon does not answer."""
    expected = daemons.expected(switch.name)
    between = {port.name for port in switch.ports if not daemons.fabric.leads_to_host(port)}
    found: list[Adjacency] = []
    for daemon, read in _READERS.items():
        if daemon not in expected and daemons.vty(switch.name, daemon) is None:
            continue

        def ask(command: str, daemon: str = daemon) -> Mapping[str, Any]:
            text = daemons.answer(switch.name, daemon, command)
            data = json.loads(text) if text.lstrip().startswith("{") else {}
            return data if isinstance(data, dict) else {}

        try:
            rows = [row for row in read(ask) if row.port in between]
        except (OSError, MachineError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the daemon has not started yet, or its release has another format
        found += [replace(row, port=f"{switch.name}:{row.port}") for row in rows]
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
        if "ospf6InterfaceState" not in interface or interface.get("timerPassiveIface"):
            continue
        state, dead = str(interface["ospf6InterfaceState"]), interface.get("timerIntervalsConfigDead", 40)
        # FRR 8 does not report passive ports. They have no neighbour after the time of the election either.
        maybe = state == "Down" or ("timerPassiveIface" not in interface and state != "Waiting")
        for each in _judged("OSPFv3", name, neighbours.get(name, []), state, f"dead interval {dead} s", dead):
            yield replace(each, maybe=maybe)


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
    adjacent: set[str] = set()
    for area in ask("show isis neighbor json").get("areas", []):
        for row in area.get("circuits", []):
            if "adj" not in row:
                continue
            adjacent.add(str(row["interface"]))
            if row["state"] != "Up":
                yield Adjacency(str(row["interface"]), "IS-IS", str(row["adj"]), f"is in {row['state']}")
    for area in ask("show isis interface detail json").get("areas", []):
        for row in area.get("circuits", []):
            interface = row.get("interface") or {}
            if interface and interface["name"] not in adjacent and interface.get("is-passive") != "passive":
                down = interface.get("state", "Up") == "Down"
                yield Adjacency(str(interface["name"]), "IS-IS", "", "has no neighbour yet", down)


_READERS: Final[Mapping[str, Callable[[Ask], Iterator[Adjacency]]]] = {"ospfd": _ospf, "ospf6d": _ospf6, "isisd": _isis}
IGP_DAEMONS: Final = frozenset(_READERS)
