"""Soft-RoCE (rxe) links: RDMA devices of the kernel on network interfaces, made by the command `rdma` of iproute2.

In:  namespaces and their interfaces. Out: RDMA devices, with names that are unique on the machine.
The kernel removes a link together with its interface, and so with its namespace.
Its mode (`rdma system`) is `shared`: all namespaces see all devices, or `exclusive`: each sees its own. Then a new
device is in the first namespace, and is moved to that of its interface.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, find_program, run
from heddle.kernel.namespace import NETNS_DIR

_SBIN: Final = ("/usr/sbin", "/sbin")
_IN_VM: Final = "run the verb in the VM, whose kernel has it: --on vm"
_SHARED: Final = "run rdma system set netns shared, while no other network namespace exists, or use --on vm"
_MODULE: Final = Path("/sys/module/rdma_rxe")
# Functions of the module, and the release of Linux that has them: a UDP port in each namespace; devices that move.
_PORTS: Final = ("rxe_ns_init", (7, 1))
_MOVES: Final = ("rxe_disassociate_ucontext", (7, 3))
_PORT: Final = "eth"
_MOST_LAB, _MOST_NIC = 6, 8  # characters of a link's name
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
QPS_BEFORE_FIRST: Final = 16  # a new rxe device numbers its queue pairs from 17 (rxe_param.h: RXE_MIN_QP_INDEX)


@dataclass(frozen=True, slots=True)
class LinkState:
    """An RDMA link. state: `ACTIVE` when its interface is up."""

    name: str
    state: str


def link_name(lab: str, node: str, port: str) -> str:
    """The name of a NIC's link, such as `zone-host16-1`: device names are the same for all namespaces of a machine.

    It has 15 characters at most, which is all that UCX opens (UCT_MD_NAME_MAX in uct/api/uct_def.h).
    """
    return f"{prefix_of(lab)}{_short(f'{node}-{port.removeprefix(_PORT)}', _MOST_NIC)}"


def _short(text: str, most: int) -> str:
    """The text if it has `most` characters at most; else its first two, and others that depend on all of it."""
    if len(text) <= most:
        return text
    number, digits = int.from_bytes(blake2s(text.encode()).digest()), ""
    while len(digits) < most - 2:
        number, digit = divmod(number, len(_LETTERS))
        digits += _LETTERS[digit]
    return text[:2] + digits


def obstacle(*, load: bool = True) -> Problem | None:
    """The reason why this machine cannot make rxe links in namespaces; None if it can. Changes nothing.

    load: whether the module may be loaded; one that is not loaded is judged by the release of the kernel.
    """
    what = "soft-RoCE (rxe)"
    rdma = find_program("rdma", *_SBIN)
    if rdma is None:
        return Problem("", what, "needs the command rdma, which is not installed", "run apt-get install iproute2")
    said = run([rdma, "system"], check=False)
    if said.code != 0:
        return Problem("", what, "is not possible: this kernel has no InfiniBand core", _IN_VM)
    if not _has_module(load=load):
        return Problem("", what, "is not possible: this kernel has no module rdma_rxe", _IN_VM)
    if not _has(*_PORTS):
        why = "does not carry data in namespaces on this kernel: Linux 7.1 or newer does"
        return Problem("", what, why, _IN_VM)
    if _mode(said.out) != "shared" and not _has(*_MOVES):
        why = "needs RDMA devices that namespaces share: this machine keeps them apart, and its Linux moves none"
        return Problem("", what, why, _SHARED)
    return None


def require() -> None:
    """MachineError with `obstacle`."""
    found = obstacle()
    if found is not None:
        raise MachineError(found)


def _has_module(*, load: bool) -> bool:
    if _MODULE.exists():
        return True
    modprobe = find_program("modprobe", *_SBIN)
    only_look = [] if load else ["-n"]
    return modprobe is not None and run([modprobe, *only_look, "-q", "rdma_rxe"], check=False).code == 0


def _has(function: str, since: tuple[int, int]) -> bool:
    """Whether the module has a function. since: the release that counts where the module is not loaded."""
    if not _MODULE.exists():
        release = re.match(r"(\d+)\.(\d+)", platform.release())
        return release is not None and tuple(map(int, release.groups())) >= since
    try:
        return f" {function}\t".encode() in Path("/proc/kallsyms").read_bytes()
    except OSError:
        return False


def _mode(text: str) -> str:
    """`shared` or `exclusive`, as `rdma system` prints it; empty where it says neither."""
    found = re.search(r"netns (shared|exclusive)", text)
    return found[1] if found else ""


def links(prefix: str = "", spaces: Sequence[Path] = ()) -> list[LinkState]:
    """The RDMA links of this machine whose names begin with `prefix`; empty where the kernel has no RDMA.

    spaces: where they may be if the mode is exclusive.
    """
    return [link for _, link in _found(prefix, spaces)]


def _found(prefix: str, spaces: Sequence[Path]) -> list[tuple[Path | None, LinkState]]:
    """Links, each with its namespace, which is None for the caller's."""
    if not Path("/sys/class/infiniband").is_dir():
        return []
    places: list[Path | None] = [None, *(spaces if spaces and _apart() else ())]
    found = []
    for space in places:
        said = _rdma("-j", "link", space=space, check=False)
        for row in json.loads(said.out) if said.code == 0 and said.out.strip() else ():
            state = LinkState(str(row.get("ifname", "")).partition("/")[0], str(row.get("state", "")))
            if state.name.startswith(prefix):
                found.append((space, state))
    return found


def _rdma(*words: str, space: Path | None = None, check: bool = True) -> Done:
    """Run the command in a namespace."""
    enter = [] if space is None else ["nsenter", f"--net={space}"]
    return run([*enter, find_program("rdma", *_SBIN) or "rdma", *words], check=check)


def _apart() -> bool:
    return _mode(_rdma("system", check=False).out) == "exclusive"


def add_links(made: Sequence[tuple[Path, str, str]]) -> None:
    """Make links, each given as (namespace, name, port); MachineError with the kernel's message."""
    apart = _apart()
    for space, name, port in made:
        _rdma("link", "add", name, "type", "rxe", "netdev", port, space=space)
        if apart:
            _move(name, space)


def _move(name: str, space: Path) -> None:
    """Move a new device to a namespace; one that cannot be moved is removed."""
    place = os.path.relpath(space, NETNS_DIR)  # the command adds this directory to every name
    done = _rdma("dev", "set", name, "netns", place, check=False)
    if done.code == 0:
        return
    _rdma("link", "delete", name, check=False)
    why = f"cannot be moved to namespace {space}: {(done.err or done.out).strip()}"
    raise MachineError(Problem("", f"RDMA device {name}", why, _SHARED))


def remove_links(prefix: str, spaces: Sequence[Path] = ()) -> None:
    """Remove the links whose names begin with `prefix`; those that are gone do not matter. spaces: as for `links`."""
    for space, link in _found(prefix, spaces):
        _rdma("link", "delete", link.name, space=space, check=False)


def prefix_of(lab: str) -> str:
    """How the names of a lab's links begin. Names of labs have no `-`."""
    return f"{_short(lab, _MOST_LAB)}-"
