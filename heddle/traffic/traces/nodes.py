"""What all formats of traces have in common: the nodes of a rank, sizes and times, and what a reader leaves out.

In:  a file's numbers. Out: TraceNode, one operation of one rank; Trace, what a reader returns.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from heddle.base.files import open_regular, real
from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives import Pattern, find_pattern, patterns
from heddle.traffic.parts import Part
from heddle.traffic.readers import MOST_SIZE

MOST_RANKS: Final = 1 << 14
MOST_NODES: Final = 1 << 20  # of all ranks
MOST_PARTS: Final = 1 << 16
LONGEST_S: Final = 86_400.0  # of one computation
LARGEST_FILE: Final = 1 << 28  # uncompressed
LARGEST_TEXT: Final = 1 << 26
_MOST_LINES: Final = 1 << 22
_MOST_RATIO, _ANY_RATIO = 128, 1 << 24  # of gzip, for files that unpack to more bytes than the second
NUMBER: Final = r"[0-9]{1,18}"
LEAST_BYTES: Final = 4  # what a message has that only says that something has ended
_COMPRESSED: Final = b"\x1f\x8b"  # the first bytes of gzip

Key = int | str
# nothing: only an order. write, read: bytes to and from rank `peer`, which has no node for it.
Kind = Literal["nothing", "compute", "send", "receive", "collective", "write", "read"]


class TraceGroup(NamedTuple):
    """A communicator: its name in the trace, and its ranks."""

    name: str
    ranks: tuple[int, ...]


_NO_GROUP: Final = TraceGroup("", ())


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One operation of one rank.

    key: unique among the nodes of the rank. where: its file, or file and line. what: its name there. deps: keys of
    nodes of the same rank. seconds: of a computation, on hardware, not scaled. size: bytes, not scaled; of a collective
    as --size counts them.
    """

    key: Key
    where: str
    what: str
    deps: tuple[Key, ...] = ()
    kind: Kind = "nothing"
    seconds: float = 0.0
    size: int = 0
    peer: int = -1
    tag: int = 0
    pattern: Pattern | None = None
    group: TraceGroup = _NO_GROUP


@dataclass(frozen=True)
class Reading:
    """How a trace is read.

    size_scale, time_scale: factors of all sizes and times. ranks: the number that the user wants; None: that of the
    trace. storage: how many ranks are storage, for reads and writes of files. groups: JSON file with the ranks of each
    communicator. skip_idle: ranks that neither send nor receive are left out, and the others numbered again. notes:
    counts what was left out or changed.
    """

    size_scale: Fraction = Fraction(1)
    time_scale: Fraction = Fraction(1)
    ranks: int | None = None
    storage: int = 1
    groups: str = ""
    skip_idle: bool = False
    notes: Counter[str] = field(default_factory=Counter)

    def noted(self) -> list[str]:
        """The notes, each with its number."""
        return [f"{number} {text}" for text, number in self.notes.items()]

    def size(self, node: TraceNode, pattern: Pattern, ranks: int) -> int:
        """The bytes that a pattern sends for the node's; 0 for none. InputError for too many."""
        if not node.size:
            self.notes["operations with 0 bytes are left out"] += 1
            return 0
        scaled = max(int(node.size * self.size_scale), min(node.size, LEAST_BYTES))
        if scaled > MOST_SIZE:
            raise InputError(Problem(node.where, node.what, f"has {scaled} bytes", "use a smaller scale"))
        count = pattern.whole(ranks, scaled // pattern.element_bytes)
        if not count:
            self.notes["sizes are below the least of their collective, and raised to it"] += 1
            count = 1
            while not pattern.whole(ranks, count):
                count *= 2
            count = pattern.whole(ranks, count)
        return count * pattern.element_bytes

    def seconds(self, node: TraceNode) -> float:
        """The time of a computation. InputError for one that is too long."""
        found = float(node.seconds * self.time_scale)
        if not 0 <= found <= LONGEST_S:
            raise InputError(Problem(node.where, node.what, f"takes {found:g} s", "use a smaller time_scale"))
        return found


@dataclass(frozen=True)
class Trace:
    """A trace as read. ranks: with those of storage, which are the last."""

    ranks: int
    parts: tuple[Part, ...]
    storage: int = 0


def transfer() -> Pattern:
    """The pattern of two ranks of which the first sends to the second."""
    return find_pattern("broadcast", "chain")


def barrier() -> tuple[Pattern, int]:
    """A barrier, and its bytes."""
    return find_pattern("barrier" if any(name == "barrier" for name, _ in patterns()) else "all-reduce"), LEAST_BYTES


def read_bytes(name: str, most: int = LARGEST_FILE) -> bytes:
    """A file's bytes, uncompressed, at most so many; InputError with the reason."""
    try:
        with open_regular(real(name)) as file:
            data = file.read(most + 1)
            if data[:2] == _COMPRESSED:
                most = min(most, max(_ANY_RATIO, _MOST_RATIO * len(data)))
                file.seek(0)
                with gzip.open(file) as unpacked:
                    data = unpacked.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(Problem(name, "the trace", f"is damaged gzip data: {error}")) from None
    except OSError as error:
        raise InputError(Problem(name, "the trace", f"cannot be read: {error.strerror or error}")) from None
    if len(data) > most:
        packed = f"; it unpacks to at most {_MOST_RATIO} times its size" if most < LARGEST_TEXT else ""
        raise InputError(Problem(name, "the trace", f"is larger than {most >> 20} MiB, the limit{packed}"))
    return data


def read_lines(name: str) -> list[str]:
    """A text's lines; InputError with the reason."""
    data = read_bytes(name, LARGEST_TEXT)
    if data.count(b"\n") > _MOST_LINES:
        raise InputError(Problem(name, "the trace", f"has more than {_MOST_LINES} lines, the limit"))
    return data.decode("utf-8", "replace").split("\n")
