"""What both stacks put on the wire, as tshark reads it, and what the InfiniBand specification has for an operation."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heddle.wire import layout as wire
from heddle.wire.capturefile import open_capture

_FIELDS = (
    "udp.srcport", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.padcnt",
    "infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen", "infiniband.immdt",
    "infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.invariant.crc",
)  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The headers of a packet that do not depend on the two ends: they must be equal for the same operation."""

    opcode: int
    psn: int
    pad: int
    reth: tuple[int, ...] = ()
    imm: tuple[int, ...] = ()


@dataclass(frozen=True)
class Seen:
    """A packet as tshark reads it. aeth: syndrome and MSN. frame: its bytes, from the capture file itself."""

    src: str
    sport: int
    qpn: int
    head: Head
    aeth: tuple[int, ...]
    icrc: int
    frame: bytes

    @property
    def requests(self) -> bool:
        """Whether it is a request, not an answer."""
        return self.head.opcode <= wire.READ_REQUEST


@contextmanager
def captured(space: Path, path: Path) -> Iterator[None]:
    """Write what passes the port of a namespace to a file."""
    words = ["-i", "eth1", "-U", "--immediate-mode", "-w", str(path), "udp port 4791"]
    with subprocess.Popen(["nsenter", f"--net={space}", "tcpdump", *words], stderr=subprocess.PIPE, text=True) as dump:
        assert dump.stderr is not None and any("listening" in line for line in dump.stderr)
        yield
        time.sleep(0.5)  # the last packets are on their way to it
        dump.terminate()


def fields(version: int) -> list[str]:
    """The words by which tshark prints what `packets` reads."""
    source = "ip.src" if version == 4 else "ipv6.src"
    first = ["-T", "fields", "-E", "occurrence=f"]  # immediate data have two entries
    return [*first, *(word for field in (source, *_FIELDS) for word in ("-e", field))]


def packets(said: str, path: Path) -> list[Seen]:
    """All packets of a file, in order. said: by tshark."""
    frames = [packet.data or b"" for packet in open_capture(path, path.name).packets()]
    return [_seen(line.split("\t"), frame) for line, frame in zip(said.splitlines(), frames, strict=True)]


def _seen(row: Sequence[str], frame: bytes) -> Seen:
    src, sport, opcode, qpn, psn, pad, va, rkey, length, imm, syndrome, msn, crc = row
    numbers = [tuple(_number(each) for each in group if each) for group in ((va, rkey, length), (syndrome, msn))]
    data = (int(imm.replace(":", ""), 16),) if imm else ()
    head = Head(_number(opcode), _number(psn), _number(pad), numbers[0], data)
    return Seen(src, int(sport), _number(qpn), head, numbers[1], _number(crc), frame)


def _number(text: str) -> int:
    return int(text, 0)


def wanted(kind: str, imm: int | None, size: int, mtu: int, psn: int, va: int, rkey: int) -> list[Head]:
    """The requests of one operation (IBTA vol. 1, section 9.2 and table 38). va, rkey: of the responder's memory."""
    reth = (va, rkey, size)
    if kind == "read":
        return [Head(wire.READ_REQUEST, psn & wire.PSN_MASK, 0, reth)]
    first, middle, last, only = {
        "write": (wire.WRITE_FIRST, wire.WRITE_MIDDLE, wire.WRITE_LAST, wire.WRITE_ONLY),
        "send": (wire.SEND_FIRST, wire.SEND_MIDDLE, wire.SEND_LAST, wire.SEND_ONLY),
    }[kind]
    opcodes = _opcodes(_count(size, mtu), first, middle, last, only)
    opcodes[-1] += imm is not None  # the opcode with immediate is the next number
    heads = []
    for number, opcode in enumerate(opcodes):
        final = number == len(opcodes) - 1
        heads.append(
            Head(
                opcode, psn + number & wire.PSN_MASK, -size % 4 if final else 0,
                reth if kind == "write" and number == 0 else (), (imm,) if imm is not None and final else (),
            )
        )  # fmt: skip
    return heads


def response(size: int, mtu: int, psn: int) -> list[Head]:
    """The answers to a READ."""
    opcodes = _opcodes(
        _count(size, mtu),
        wire.READ_RESPONSE_FIRST,
        wire.READ_RESPONSE_MIDDLE,
        wire.READ_RESPONSE_LAST,
        wire.READ_RESPONSE_ONLY,
    )
    pads = [0] * (len(opcodes) - 1) + [-size % 4]
    return [Head(each, psn + at & wire.PSN_MASK, pad) for at, (each, pad) in enumerate(zip(opcodes, pads, strict=True))]


def _opcodes(count: int, first: int, middle: int, last: int, only: int) -> list[int]:
    return [only] if count == 1 else [first, *[middle] * (count - 2), last]


def _count(size: int, mtu: int) -> int:
    return max(1, -(-size // mtu))
