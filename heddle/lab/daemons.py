"""Query a switch's FRR daemons through their own sockets: about a millisecond each, without a vtysh process.

The protocol is that of vtysh (lib/vty.c, vtysh_read). Request: the command and a NUL. Response: the text, three NULs
and one result byte.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.families import Family, Version
from heddle.base.problems import MachineError
from heddle.fabric.model import Node
from heddle.runtimes.registry import Runtime

ESTABLISHED: Final = "Established"
GRACEFUL_SHUTDOWN: Final = "graceful-shutdown"  # the community of RFC 8326, 65535:0
DAEMONS: Final = ("zebra", "bgpd")
_COMMAND: Final = "show bgp ipv{} unicast summary json"
_ALL_FAMILIES: Final = "show bgp summary json"
_NEIGHBOURS: Final = "show bgp neighbors json"


def neighbours(runtime: Runtime, lab: str, topology: Path, node: str, version: Version = 4) -> Mapping[str, str] | None:
    """Port -> state of the BGP session over it (`Established`, `Active`, ...); None when bgpd does not answer."""
    try:
        peers = json.loads(answer(runtime, lab, topology, node, "bgpd", _COMMAND.format(version))).get("peers", {})
        return {str(port): str(peer["state"]) for port, peer in peers.items()}
    except (OSError, MachineError, ValueError, KeyError, AttributeError):
        return None


def peers(runtime: Runtime, lab: str, topology: Path, node: str) -> Mapping[str, str] | None:
    """Peer (an address, or a port) -> state of its session, for all address families; None when bgpd does not answer.

    A bgpd without BGP configured has no peers.
    """
    try:
        text = answer(runtime, lab, topology, node, "bgpd", _ALL_FAMILIES)
        families = json.loads(text) if text.lstrip().startswith("{") else {}
        tables = [each.get("peers", {}) for each in families.values() if isinstance(each, dict)]
        return {str(peer): str(row["state"]) for table in tables for peer, row in table.items()}
    except (OSError, MachineError, ValueError, KeyError, AttributeError):
        return None


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


def bgp_peers(runtime: Runtime, lab: str, topology: Path, node: str) -> Mapping[str, BgpPeer] | None:
    """Peer (an address, or a port) -> its details; None when bgpd does not answer. Empty without BGP."""
    try:
        text = answer(runtime, lab, topology, node, "bgpd", _NEIGHBOURS)
        rows = json.loads(text) if text.lstrip().startswith("{") else {}
        return {
            str(peer): BgpPeer(
                str(row["bgpState"]), int(row.get("localAs", 0)), int(row.get("remoteAs", 0)),
                bool(row.get("adminShutDown")), str(row.get("lastResetDueTo", "")),
                str(row.get("lastNotificationReason", "")),
            )
            for peer, row in rows.items()
            if isinstance(row, dict) and "bgpState" in row
        }  # fmt: skip
    except (OSError, MachineError, ValueError, TypeError, AttributeError):
        return None


def silent(runtime: Runtime, lab: str, topology: Path, node: str, daemons: Iterable[str] = DAEMONS) -> list[str]:
    """The daemons of a switch that do not answer. Without zebra the kernel keeps its routes, even outdated ones."""
    found = []
    for daemon in daemons:
        try:
            answer(runtime, lab, topology, node, daemon, "show version")
        except (OSError, MachineError):
            found.append(daemon)
    return found


def drained(runtime: Runtime, lab: str, topology: Path, node: Node, family: Family) -> bool:
    """True when BGP drains a switch: in graceful shutdown bgpd adds the community to its own loopback's prefix."""
    command = f"show bgp {family.word} unicast {node.loopback}/{family.bits} json"
    try:
        paths = json.loads(answer(runtime, lab, topology, node.name, "bgpd", command))["paths"]
        return any(GRACEFUL_SHUTDOWN in str(path.get("community", {}).get("string", "")) for path in paths)
    except (OSError, MachineError, ValueError, KeyError, TypeError, AttributeError):
        return False  # bgpd does not answer, which is reported elsewhere


def answer(runtime: Runtime, lab: str, topology: Path, node: str, daemon: str, command: str) -> str:
    """The output of a node's daemon for a command of its view mode; OSError or MachineError when it does not answer."""
    spot = runtime.find(lab, topology, node, f"/run/frr/{daemon}.vty")
    if spot is not None:
        return ask(spot, command)
    return runtime.output(lab, topology, node, ["vtysh", "-d", daemon, "-c", command])


def ask(vty: Path, command: str, timeout: float = 2.0) -> str:
    """Send a daemon one command in its view mode and return its output; OSError when it does not answer.

    timeout: seconds without any data.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        link.connect(str(vty))
        link.sendall(command.encode() + b"\0")
        answer = bytearray()
        # The end is three NULs and the result byte, which may itself be NUL (success).
        while len(answer) < 4 or answer[-4:-1] != b"\0\0\0":
            part = link.recv(1 << 16)
            if not part:
                raise ConnectionResetError(f"{vty} closed")
            answer += part
    return answer[:-4].decode(errors="replace")
