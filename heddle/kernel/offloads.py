"""Switch offloads off: a port must carry packets as on a wire, not large ones that a NIC would segment later.

With GSO a queue counts one 64 KB packet in place of sixteen. Checksums must be in the packet, since BPF and captures
read them. inorder.py sets GRO, for the order of packets. One ioctl socket in each namespace; no process.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.namespace import inside

_SIOCETHTOOL: Final = 0x8946
# Feature -> (ETHTOOL_G*, ETHTOOL_S*), in the order to switch off: a feature that depends on another one goes first.
FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    "gso": (0x23, 0x24),
    "tso": (0x1E, 0x1F),
    "tx-checksum": (0x16, 0x17),
    "scatter-gather": (0x18, 0x19),
}
_GRO: Final = (0x2B, 0x2C)


def switch_off(netns: Path, ports: Iterable[str]) -> None:
    """Switch every feature of FEATURES off on these ports. MachineError names the port that refuses."""
    with _control_socket(netns) as control:
        for port in ports:
            for feature, (_, off) in FEATURES.items():
                _set(control, netns, port, feature, off, on=False)


def read_offloads(netns: Path, ports: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Port -> the features of FEATURES that are on. MachineError names a port that does not exist."""
    with _control_socket(netns) as control:
        return {
            port: tuple(name for name, (get, _) in FEATURES.items() if _get(control, netns, port, get))
            for port in ports
        }


def set_gro(netns: Path, ports: Iterable[str], *, on: bool) -> None:
    """Switch GRO on or off on these ports. MachineError names the port that refuses."""
    with _control_socket(netns) as control:
        for port in ports:
            _set(control, netns, port, "gro", _GRO[1], on=on)


def read_gro(netns: Path, ports: Iterable[str]) -> dict[str, bool]:
    """Port -> whether GRO is on. MachineError names a port that does not exist."""
    with _control_socket(netns) as control:
        return {port: _get(control, netns, port, _GRO[0]) for port in ports}


def _set(control: socket.socket, netns: Path, port: str, feature: str, command: int, *, on: bool) -> None:
    try:
        _ethtool(control, port, command, int(on))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP and not on:
            return  # the device does not have this feature
        why = f"cannot be switched {'on' if on else 'off'}: {os.strerror(error.errno or 0)}"
        raise MachineError(Problem(netns.name, f"{port}: {feature}", why)) from None


def _get(control: socket.socket, netns: Path, port: str, command: int) -> bool:
    try:
        return bool(_ethtool(control, port, command, 0))
    except OSError as error:
        why = f"does not report its features: {os.strerror(error.errno or 0)}"
        raise MachineError(Problem(netns.name, port, why)) from None


def _control_socket(netns: Path) -> socket.socket:
    with inside(netns):
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _ethtool(control: socket.socket, port: str, command: int, value: int) -> int:
    """Call SIOCETHTOOL with a struct ethtool_value; return its data."""
    data = array.array("I", [command, value])
    address, _ = data.buffer_info()
    fcntl.ioctl(control.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", port.encode(), address))
    return data[1]
