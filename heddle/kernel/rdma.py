"""Soft-RoCE (rxe) links: RDMA devices of the kernel on network interfaces, made by the command `rdma` of iproute2.

In:  namespaces and their interfaces. Out: RDMA devices, with names that are unique on the machine.
The kernel removes a link together with its interface, and so with its namespace.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import find_program, run

_SBIN: Final = ("/usr/sbin", "/sbin")
_IN_VM: Final = "run the verb in the VM, whose kernel has it: --place vm"
_GID_S: Final = 5.0  # a new device learns its addresses from a kernel thread
_POLL_S: Final = 0.02
_SHARED: Final = "rdma system set netns shared"
QPS_BEFORE_FIRST: Final = 16  # a new rxe device numbers its queue pairs from 17 (rxe_param.h: RXE_MIN_QP_INDEX)
PSN_WINDOW: Final = 128  # packets that rxe sends without an acknowledgement (rxe_param.h: RXE_MAX_UNACKED_PSNS)


@dataclass(frozen=True, slots=True)
class LinkState:
    """An RDMA link. state: `ACTIVE` when its interface is up."""

    name: str
    state: str


def link_name(lab: str, node: str, port: str) -> str:
    """The name of a NIC's link: device names are the same for all namespaces of a machine. Labs' names have no `-`."""
    return f"{lab}-{node}-{port}"


def obstacle() -> Problem | None:
    """The reason why this machine cannot make rxe links in namespaces; None if it can. Changes nothing.

    It may load the kernel's modules.
    """
    what = "soft-RoCE (rxe)"
    rdma = find_program("rdma", *_SBIN)
    if rdma is None:
        return Problem("", what, "needs the command rdma, which is not installed", "run apt-get install iproute2")
    said = run([rdma, "system"], check=False)
    if said.code != 0:
        return Problem("", what, "is not possible: this kernel has no InfiniBand core", _IN_VM)
    if not _has_module():
        return Problem("", what, "is not possible: this kernel has no module rdma_rxe", _IN_VM)
    if not _has_namespaces():
        why = "does not carry data in namespaces on this kernel: Linux 7.1 or newer does"
        return Problem("", what, why, _IN_VM)
    if _mode(said.out) != "shared":
        why = "needs RDMA devices that all namespaces share, and this machine keeps them apart"
        return Problem("", what, why, f"run {_SHARED}")
    return None


def require() -> None:
    """MachineError with `obstacle`."""
    found = obstacle()
    if found is not None:
        raise MachineError(found)


def _has_module() -> bool:
    if Path("/sys/module/rdma_rxe").exists():
        return True
    modprobe = find_program("modprobe", *_SBIN)
    return modprobe is not None and run([modprobe, "-q", "rdma_rxe"], check=False).code == 0


def _has_namespaces() -> bool:
    """Whether the module opens its UDP port in each namespace. Older ones do so in the first namespace only."""
    try:
        return b" rxe_ns_init\t" in Path("/proc/kallsyms").read_bytes()
    except OSError:
        return False


def _mode(text: str) -> str:
    """`shared` or `exclusive`, as `rdma system` prints it; empty where it says neither."""
    found = re.search(r"netns (shared|exclusive)", text)
    return found[1] if found else ""


def links(prefix: str = "") -> list[LinkState]:
    """The RDMA links of this machine whose names begin with `prefix`; empty where the kernel has no RDMA."""
    rdma = find_program("rdma", *_SBIN)
    said = run([rdma, "-j", "link"], check=False) if rdma is not None else None
    if said is None or said.code != 0 or not said.out.strip():
        return []
    rows = [(str(row.get("ifname", "")).partition("/")[0], str(row.get("state", ""))) for row in json.loads(said.out)]
    return [LinkState(name, state) for name, state in rows if name.startswith(prefix)]


def add_link(netns: Path, name: str, port: str) -> None:
    """Make a link in a namespace; MachineError with the kernel's message."""
    rdma = find_program("rdma", *_SBIN) or "rdma"
    run(["nsenter", f"--net={netns}", rdma, "link", "add", name, "type", "rxe", "netdev", port])


def gid_index(name: str, address: str) -> int:
    """The index of an address in a device's table; MachineError if the kernel does not list it within seconds."""
    found = ip_address(address)
    wanted = int(found) if found.version == 6 else 0xFFFF << 32 | int(found)
    table = Path(f"/sys/class/infiniband/{name}/ports/1/gids")
    deadline = time.monotonic() + _GID_S
    while time.monotonic() < deadline:
        for entry in table.iterdir() if table.is_dir() else ():
            try:
                text = entry.read_text()
            except OSError:  # an index without an address
                continue
            if int(text.strip().replace(":", ""), 16) == wanted:
                return int(entry.name)
        time.sleep(_POLL_S)
    raise MachineError(Problem("", name, f"does not have the address {address}", "is the interface up?"))


def remove_links(names: Iterable[str]) -> None:
    """Remove links; those that are gone do not matter."""
    rdma = find_program("rdma", *_SBIN) or "rdma"
    for name in names:
        run([rdma, "link", "delete", name], check=False)


def remove_links_of(lab: str) -> None:
    """Remove all links of a lab."""
    if Path("/sys/class/infiniband").is_dir():
        remove_links(link.name for link in links(f"{lab}-"))
