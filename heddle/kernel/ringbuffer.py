"""The ring buffer in shared memory by which the queue programs report events (bpf/queue.h)."""

from __future__ import annotations

from typing import Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libbpf import Map, library

# xoff, xon: the occupancy of an ingress port crossed a threshold: its peer must pause or resume. pfc: a pause frame.
KINDS: Final = {1: "xoff", 2: "xon", 3: "pfc"}


def open_ring(ring: Map, callback: Any, context: int | None) -> int:
    """Map a ring buffer into memory: a handle of libbpf. callback: int (context, data, size), for each event.

    The caller keeps the callback alive, and frees the handle. Only one process at a time may read.
    """
    found = library().ring_buffer__new(ring.fd, callback, context, None)
    if not found:
        raise MachineError(Problem("bpf", "the ring of events", "cannot be mapped into memory"))
    return int(found)
