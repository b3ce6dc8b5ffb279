"""The programs of the queues without traffic: a packet at a time by BPF_PROG_TEST_RUN, at a port of a switch.

A test run has no classid, so port 0, which no filter has, stands for the first port of rtsw1, with classes and
thresholds of the test's own.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from heddle.base.ethernet import CLASSES
from heddle.fabric.shapes import clos
from heddle.kernel.libbpf import TestRun, ensure_bpffs, run_on
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch import install as switch
from heddle.switch.hashing.hashing import PINS
from heddle.switch.queues.cells import CAUSES, LabQueues, packed
from heddle.switch.queues.classes import ClassPolicy, policies_of, row
from tests.netns.claimed import claimed
from tests.netns.sockets import checksum

UNSPEC: Final = 0xFFFFFFFF
SHOT: Final = 2
LOSSLESS, BEST_EFFORT, CONTROL = 3, 0, 6
MARK: Final = 0x5EDD << 16
ECT0, ECT1, CE = 2, 1, 3
DATA: Final = 26 << 2 | ECT0  # a packet of class 3
LOSSY: Final = ClassPolicy(
    kind="lossy", ecn=True, kmin=100_000, kmax=400_000, pmax=0.2, reserve=10_000, alpha=1.0, shared=1_000_000,
    buffer=2_000_000,
)  # fmt: skip
PAUSING: Final = replace(
    LOSSY, kind="lossless", ecn=False, pfc=True, xoff=60_000, xon=40_000, headroom=30_000, quanta=1000
)


class Bench:
    """The programs, and port 0 as the test wants it."""

    def __init__(self, queues: LabQueues) -> None:
        self.queues = queues
        queues.links[0] = (1, 0, 0, 4, 0, 0, 10**8)

    def policy(self, policy: ClassPolicy, port: int = 0) -> None:
        """Let all classes of a port go by it: its own frame is 1,514 bytes."""
        rows = packed([policy] * CLASSES)
        some = slice(row(port, 0) * 2 + self.queues.half, row(port + 1, 0) * 2, 2)
        for name in rows.dtype.names or ():
            self.queues.rules[name][some] = rows[name]
        self.queues.rules["frame"][some] = 1514
        self.queues.rules["priority"][some] = [0x10000 | number + 1 << 4 for number in range(CLASSES)]
        self.queues.rules["fallback"][some] = 0x10010

    def enqueue(self, frame: bytes, came_in_by: int = 0) -> TestRun:
        """came_in_by: index of the ingress port, from 1; 0: the switch has made it."""
        return run_on(self.queues.program("enqueue"), frame, mark=MARK | came_in_by if came_in_by else 0)

    def dequeue(self, frame: bytes) -> TestRun:
        return run_on(self.queues.program("dequeue"), frame)

    def leave(self, number: int, size: int, came_in_by: int = 0) -> None:
        """Count bytes of a class as having left, from user space, as `dequeue` does."""
        words = (0, number | came_in_by << 8, size, 0, 0)
        assert run_on(self.queues.program("credit"), bytes(14), cb=words).retval == UNSPEC

    def hold(self, number: int, depth: int) -> None:
        """Let so many bytes of a class wait at the port, and nothing else in the switch."""
        self.queues.switches[0] = 0
        self.queues.switches["used"][0] = self.queues.switches["shared_used"][0] = depth
        self.cell(number)["depth"] = depth

    def cell(self, number: int) -> Any:
        return self.queues.cells[row(0, number)]


@contextmanager
def bench(shard: Collection[str] = (), **keys: Any) -> Iterator[Bench]:
    """Programs and maps of their own for the length of a with block. shard: the nodes that are here; all by default."""
    ensure_bpffs()
    with claimed() as name:
        spec = ClosSpec.model_validate({"name": name, "racks": 2, "ctsw": 2, "hosts_per_rack": 2} | keys)
        fabric = clos.build(spec)
        fabric = fabric.of_shard(shard) if shard else fabric
        pins = PINS / name / "_queues"
        pins.mkdir(parents=True)
        try:
            with LabQueues.create(fabric, policies_of(fabric), pins) as queues:
                yield Bench(queues)
        finally:
            switch.remove(name)


def drops(port: Bench, number: int) -> dict[str, int]:
    """Causes that have dropped packets of a class, and how many."""
    return {cause: int(n) for cause, n in zip(CAUSES, port.cell(number)["drops"], strict=True) if n}


def ipv4(tos: int, size: int = 100, protocol: int = 17) -> bytes:
    """A frame of so many bytes."""
    head = struct.pack(
        "!BBHHHBBH8s", 0x45, tos, size - 14, 7, 0x4000, 64, protocol, 0, bytes((10, 0, 0, 1, 10, 0, 0, 2))
    )
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return bytes(12) + b"\x08\x00" + head + bytes(size - 34)


def ipv6(traffic_class: int, size: int = 100, next_header: int = 17, start: bytes = b"") -> bytes:
    """A frame of so many bytes; start: of what follows the IPv6 header."""
    head = struct.pack("!IHBB32s", 6 << 28 | traffic_class << 20 | 0xABCDE, size - 54, next_header, 64, bytes(32))
    return bytes(12) + b"\x86\xdd" + head + start + bytes(size - 54 - len(start))
