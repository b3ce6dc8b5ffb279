"""Count the RoCEv2 packets that hosts' own kernels send and receive (bpf/verbs.c), and let them reach the kernel.

In:  a lab, the namespaces of its hosts, the flows of the queue pairs.
Out: for each flow a row of what left its source's NIC, and one of what arrived at its destination's NIC.
The programs are attached for one run only. They do not depend on the RDMA stack that they observe.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from heddle.base import resources
from heddle.base.families import as_ipv6
from heddle.base.process import run
from heddle.kernel.libbpf import Map, loaded
from heddle.switch.counters import FLOW_KEY
from heddle.switch.hashing.hashing import pin_dir

Side = Literal["sent", "came"]
_OWNER: Final = "_verbs"  # the directory of the pins; not a valid node name
_ROW: Final = struct.Struct("=7Q2I")
_SIDES: Final[Mapping[Side, tuple[str, int]]] = {"came": ("ingress", 8), "sent": ("egress", 15)}  # hook, preference


@dataclass(frozen=True, slots=True)
class StackKey:
    """The fields by which packets are counted. sport: UDP source port. qpn: destination QP."""

    src: str
    dst: str
    sport: int
    qpn: int

    def packed(self) -> bytes:
        """As in the map."""
        return FLOW_KEY.pack(0, self.sport, self.qpn, as_ipv6(self.src), as_ipv6(self.dst))


@dataclass(frozen=True, slots=True)
class StackRow:
    """Packets of one flow at one NIC. bytes: of frames. ce: with the mark Congestion Experienced.

    ahead: packets after a gap in the sequence. behind: packets that were sent again. naks, rnr: answers that say so.
    """

    packets: int = 0
    bytes: int = 0
    ce: int = 0
    ahead: int = 0
    behind: int = 0
    naks: int = 0
    rnr: int = 0


def attach(lab: str, ports: Sequence[tuple[Path, str]], rows: int) -> None:
    """Load the programs and attach them to NICs, given as (namespace, port). rows: capacity of each map.

    MachineError when the kernel or tc refuses.
    """
    detach(lab, ports)
    pins = pin_dir(lab, _OWNER)
    pins.mkdir(parents=True)
    with loaded(resources.HERE.bpf_object("verbs"), {f"{side}_rows": max(64, rows) for side in _SIDES}) as made:
        for side in _SIDES:
            made.map(f"{side}_rows", FLOW_KEY.size, _ROW.size).pin(pins / f"{side}_rows")
            made.program(side).pin(pins / side)
    for netns, port in ports:
        lines = [
            f"filter add dev {port} {hook} pref {pref} handle 1 bpf direct-action object-pinned {pins / side}\n"
            for side, (hook, pref) in _SIDES.items()
        ]
        run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="".join(lines))


def attached(lab: str) -> bool:
    """Whether programs of this kind are pinned: during a run, or after one that was killed."""
    return pin_dir(lab, _OWNER).is_dir()


def detach(lab: str, ports: Sequence[tuple[Path, str]]) -> None:
    """Remove the programs from NICs, whichever are there, and then their pins."""
    if not attached(lab):
        return
    for netns, port in ports:
        lines = [f"filter del dev {port} {hook} pref {pref}\n" for hook, pref in _SIDES.values()]
        run(["nsenter", f"--net={netns}", "tc", "-force", "-batch", "-"], stdin="".join(lines), check=False)
    shutil.rmtree(pin_dir(lab, _OWNER), ignore_errors=True)


class StackCounts:
    """The rows of a lab whose programs are attached. MachineError when they are not."""

    def __init__(self, lab: str) -> None:
        pins = pin_dir(lab, _OWNER)
        self._maps: dict[Side, Map] = {
            side: Map.pinned(pins / f"{side}_rows", FLOW_KEY.size, _ROW.size) for side in _SIDES
        }

    def expect(self, side: Side, key: StackKey, psn: int) -> None:
        """Make the row of a flow. psn: of its first packet."""
        self._maps[side].update(key.packed(), _ROW.pack(0, 0, 0, 0, 0, 0, 0, psn, 0))

    def row(self, side: Side, key: StackKey) -> StackRow:
        """What was counted; all 0 for a flow without a row."""
        value = self._maps[side].lookup(key.packed())
        return StackRow(*_ROW.unpack(value)[:7]) if value is not None else StackRow()

    def close(self) -> None:
        """Close the maps; the rows stay until `detach`."""
        for each in self._maps.values():
            each.close()
