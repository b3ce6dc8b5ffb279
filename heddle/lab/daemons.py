"""Query a switch's FRR daemons through their own sockets: about a millisecond each, without a vtysh process.

The protocol is that of vtysh (lib/vty.c, vtysh_read). Request: the command and a NUL. Response: the text, three NULs
and one result byte.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError
from heddle.fabric.model import Fabric
from heddle.runtimes.registry import Runtime

ESTABLISHED: Final = "Established"
GRACEFUL_SHUTDOWN: Final = "graceful-shutdown"  # the community of RFC 8326, 65535:0
DAEMONS: Final = ("zebra", "bgpd")
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

    def silent(self, switch: str) -> tuple[str, ...]:
        """Expected daemons that do not answer. Without zebra the kernel keeps its routes, even outdated ones."""
        found = []
        for daemon in self.expected(switch):
            try:
                self.answer(switch, daemon, "show version")
            except (OSError, MachineError):
                found.append(daemon)
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

    def answer(self, switch: str, daemon: str, command: str) -> str:
        """The output of a daemon for a command of its view mode; OSError or MachineError when it does not answer."""
        vty = self.vty(switch, daemon)
        if vty is not None:
            return ask(vty, command)
        return self.runtime.output(self.fabric.name, self.topology, switch, ["vtysh", "-d", daemon, "-c", command])

    def vty(self, switch: str, daemon: str) -> Path | None:
        """The socket of a daemon on this machine; None if there is none."""
        return self.runtime.find(self.fabric.name, self.topology, switch, f"/run/frr/{daemon}.vty")

    def _json(self, switch: str, command: str) -> Mapping[str, Any]:
        text = self.answer(switch, "bgpd", command)
        data: Mapping[str, Any] = json.loads(text) if text.lstrip().startswith("{") else {}
        return data


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
