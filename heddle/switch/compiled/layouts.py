"""The compiled object of switches: the layouts of switch.h, and the types of its functions.

In:  switch-MACHINE.so in this directory (built by `tests/objects/shared.py`).
Out: the object, or the reason why there is none: then Python reads the rows, with more CPU time, and PFC cannot run.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Final

from heddle.base import resources
from heddle.base.ethernet import CLASSES
from heddle.kernel.native import native

VERSION: Final = 1
ADDRESS_BYTES: Final = 20
MESSAGE_BYTES: Final = 160
FIELDS: Final = (
    "state", "depth", "last_out_ns", "since_ns", "pfc_sent", "closed_since_ns", "until_ns", "paused_ns", "reactions",
    "reaction_last_ns", "reaction_max_ns", "reaction_sum_ns", "histogram",
)  # fmt: skip


class FieldStruct(ctypes.Structure):
    """struct field: a field of a map's rows."""

    _fields_ = (("base", c_void_p), ("stride", c_uint64))


class PortStruct(ctypes.Structure):
    """struct port."""

    _fields_ = (
        ("quantum_ns", ctypes.c_double),
        ("control", c_int),
        ("address", c_uint8 * ADDRESS_BYTES),
        ("mac", c_uint8 * 6),
        ("pad", c_uint8 * 2),
    )


class GateStruct(ctypes.Structure):
    """struct gate."""

    _fields_ = (
        ("netlink", c_int),
        ("kicker", c_int),
        ("opening_bytes", c_uint32),
        ("closing_bytes", c_uint32),
        ("address", c_uint8 * ADDRESS_BYTES),
        ("opening", c_uint8 * MESSAGE_BYTES),
        ("closing", c_uint8 * MESSAGE_BYTES),
    )


class PfcEventStruct(ctypes.Structure):
    """struct event of bpf/queue.h."""

    _fields_ = (
        ("ns", c_uint64),
        ("port", c_uint32),
        ("kind", c_uint8),
        ("number", c_uint8),
        ("pad", c_uint16),
        ("quanta", c_uint16 * CLASSES),
    )


class WorkStruct(ctypes.Structure):
    """struct work: a readable descriptor, or (fd -1) a deadline that has passed."""

    _fields_ = (("fd", c_int), ("kind", c_uint32), ("row", c_uint32))


class CoreStruct(ctypes.Structure):
    """struct core."""

    _fields_ = (
        ("rows", c_uint32), ("pending", c_uint32),
        ("epoll", c_int), ("events_fd", c_int), ("timer", c_int), ("pad", c_int),
        ("armed", c_int64), ("events", c_uint64), ("refused", c_uint64),
        *((name, c_void_p) for name in (
            "ring", "consume", "heartbeat", "ports", "gates", "heap", "position", "when", "pfc", "quanta", "detect_ns",
            "asked", "storming", "heard", "waiting", "checked", "arrived", "shut",
        )),
        *((name, FieldStruct) for name in FIELDS),
        ("kick_bytes", c_uint32), ("pad2", c_uint32), ("kick", c_uint8 * 64),
    )  # fmt: skip


READER_FIELDS: Final = ("depth", "peak", "occupancy", "occupancy_peak", "closed_since_ns", "last_ns", "drop_bytes")


class ReaderStruct(ctypes.Structure):
    """struct reader."""

    _fields_ = (
        ("rows", c_uint32), ("words", c_uint32), ("taken", c_void_p), ("full", c_void_p),
        ("dropped", c_void_p),
        *((name, FieldStruct) for name in READER_FIELDS),
    )  # fmt: skip


_CORE = ctypes.POINTER(CoreStruct)
_SIGNATURES: Final[native.Signatures] = {
    "hd_switch_version": (c_uint32, ()),
    "hd_switch_sizes": (None, (c_void_p,)),
    "hd_rows_read": (c_uint32, (ctypes.POINTER(ReaderStruct), c_int64, c_int, c_void_p, c_void_p)),
    "hd_pfc_wait": (c_int, (_CORE, ctypes.POINTER(WorkStruct), c_int)),
    "hd_pfc_event": (c_int, (_CORE, ctypes.POINTER(PfcEventStruct), c_size_t)),
    "hd_pfc_push": (None, (_CORE, c_uint32, c_uint32, c_int64)),
    "hd_pfc_cancel": (None, (_CORE, c_uint32, c_uint32)),
}


@cache
def load() -> ctypes.CDLL | str:
    """The object, or the reason why it cannot be used here."""
    return native.load_committed(resources.HERE.switch_code, _SIGNATURES, _same)


def _same(code: ctypes.CDLL) -> bool:
    layouts = (CoreStruct, PortStruct, GateStruct, WorkStruct, PfcEventStruct, ReaderStruct)
    sizes = (c_uint32 * len(layouts))()
    code.hd_switch_sizes(sizes)
    return bool(code.hd_switch_version() == VERSION) and list(sizes) == [ctypes.sizeof(each) for each in layouts]
