"""Events of the queue programs, from a ring buffer in shared memory.

In:  the map `events` of a lab.
Out: Event, in the order in which the programs wrote them. A descriptor that is readable when events wait.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final, Literal, NamedTuple

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libbpf import Map, library

_EVENT: Final = struct.Struct("=QIBBxx8H")
KINDS: Final[dict[int, Literal["xoff", "xon", "pfc"]]] = {1: "xoff", 2: "xon", 3: "pfc"}


class Event(NamedTuple):
    """An event, with its time (ns, CLOCK_MONOTONIC). number: the class; for `pfc` the vector of lossless classes.

    xoff, xon: an ingress port's occupancy crossed a threshold; its peer must pause or resume. pfc: a pause frame
    arrived by `port`; quanta by class, 0: resume.
    """

    ns: int
    port: int
    kind: Literal["xoff", "xon", "pfc"]
    number: int
    quanta: tuple[int, ...]


def open_ring(ring: Map, callback: Any, context: int | None) -> int:
    """Map a ring buffer into memory: a handle of libbpf. callback: int (context, data, size), for each event.

    The caller keeps the callback alive, and frees the handle. Only one process at a time may read.
    """
    found = library().ring_buffer__new(ring.fd, callback, context, None)
    if not found:
        raise MachineError(Problem("bpf", "the ring of events", "cannot be mapped into memory"))
    return int(found)


class Events:
    """The reader of the ring buffer. Only one process at a time may read: the read position is in the map."""

    def __init__(self, ring: Map) -> None:
        self._found: list[Event] = []
        self._callback = _Sample(self._take)  # libbpf keeps the pointer
        self._ring: int | None = open_ring(ring, self._callback, None)

    def fileno(self) -> int:
        """The descriptor for select, poll and epoll: readable when events wait."""
        return int(library().ring_buffer__epoll_fd(self._ring))

    def read(self) -> list[Event]:
        """All waiting events."""
        if library().ring_buffer__consume(self._ring) < 0:
            raise MachineError(Problem("bpf", "the ring of events", "cannot be read"))
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Unmap the ring, once."""
        if self._ring:
            library().ring_buffer__free(self._ring)
        self._ring = None

    def _take(self, _: Any, data: int, size: int) -> int:
        ns, port, kind, number, *quanta = _EVENT.unpack(ctypes.string_at(data, size)[: _EVENT.size])
        self._found.append(Event(ns, port, KINDS[kind], number, tuple(quanta)))
        return 0


_Sample = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
