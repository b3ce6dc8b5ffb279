"""Load the compiled object of the fast path, with the types of its functions.

In:  fastpath-MACHINE.so in this directory (tests/objects/shared.py builds it), and a CRC-32: of libdeflate or zlib.
Out: Library, or the reason why there is none: then the Python loop does the same work, with more CPU time.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Final

from heddle.base import resources
from heddle.kernel.native import native

VERSION: Final = 6
# libdeflate is several times faster than zlib if the CPU has carry-less multiplication.
_CRCS: Final = (("libdeflate.so.0", "libdeflate_crc32"), ("libz.so.1", "crc32"))


class RcStruct(ctypes.Structure):
    """struct rc: parameters of a reliable connection."""

    _fields_ = (("timeout_ns", c_int64), ("ack_delay_ns", c_int64), ("mtu", c_uint32), ("retries", c_uint32))


class DcqcnStruct(ctypes.Structure):
    """struct dcqcn_rule: congestion control of all queue pairs."""

    _fields_ = (
        *((name, c_double) for name in (
            "keep", "first_alpha", "first_bps", "least_factor", "min_bps", "cut_divisor", "ai_bps", "hai_bps",
            "start_bps", "growth",
        )),
        *((name, c_int64) for name in ("alpha_ns", "cut_ns", "time_ns", "gap_ns", "frame_bits")),
        ("byte_reset", c_uint64),
        *((name, c_uint32) for name in ("threshold", "steps")),
        *((name, c_uint8) for name in ("on", "clamp", "clamp_after_time", "cnp_tos", "coalesce")),
    )  # fmt: skip


class OpcodesStruct(ctypes.Structure):
    """struct opcodes: the properties of each opcode."""

    _fields_ = (("extra", c_uint8 * 256), ("headers_only", c_uint8 * 256))


class EventStruct(ctypes.Structure):
    """struct event: the reason why hd_run returned."""

    _fields_ = (("kind", c_uint32), ("nic", c_uint32), ("a", c_uint32), ("b", c_uint32))


_ENGINE = c_void_p
_EVENTS = ctypes.POINTER(EventStruct)
_COUNTS = ctypes.POINTER(c_uint64)
_SIGNATURES: Final[native.Signatures] = {
    "hd_version": (c_uint32, ()),
    "hd_engine": (_ENGINE, (
        ctypes.POINTER(RcStruct), ctypes.POINTER(OpcodesStruct), c_void_p, c_int, c_uint32, c_int64,
    )),
    "hd_congestion": (None, (_ENGINE, ctypes.POINTER(DcqcnStruct))),
    "hd_nic": (c_int, (_ENGINE, c_int, c_int, c_uint32, c_uint64)),
    "hd_qp": (c_int, (
        _ENGINE, c_uint32, c_int, c_uint32, c_char_p, c_char_p, c_uint32, c_uint32, c_uint32, c_int64,
    )),
    "hd_expect": (c_int, (_ENGINE, c_uint32, c_uint32, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p)),
    "hd_message": (c_void_p, (_ENGINE, c_uint32, c_uint32, c_uint32)),
    "hd_used": (None, (_ENGINE, c_uint32, c_uint32, c_uint32)),
    "hd_post": (c_int, (
        _ENGINE, c_uint32, c_void_p, c_void_p, c_uint32, c_uint32, c_uint64, c_uint32, c_uint32,
    )),
    "hd_take": (None, (_ENGINE, c_int64)),
    "hd_pass": (None, (_ENGINE, c_int64, c_int)),
    "hd_run": (c_int, (_ENGINE, c_int64, c_int, c_int64, _EVENTS, c_int)),
    "hd_drain": (c_int, (_ENGINE, _EVENTS, c_int)),
    "hd_idle": (c_int, (_ENGINE, c_uint32)),
    "hd_qp_counters": (None, (_ENGINE, c_uint32, c_uint32, _COUNTS)),
    "hd_rates": (c_uint32, (
        _ENGINE, c_uint32, c_uint32, ctypes.POINTER(c_int64), ctypes.POINTER(c_double), c_uint32,
    )),
    "hd_nic_counters": (None, (_ENGINE, c_uint32, _COUNTS)),
    "hd_close": (None, (_ENGINE,)),
}  # fmt: skip


@dataclass(frozen=True)
class Library:
    """The functions of fastpath.c. code: the loaded object. crc: the address of a CRC-32."""

    code: ctypes.CDLL
    crc: int


@cache
def load() -> Library | str:
    """The library, or the reason why it cannot be used here."""
    code = native.load_committed(resources.HERE.fastpath, _SIGNATURES, lambda code: bool(code.hd_version() == VERSION))
    if isinstance(code, str):
        return code
    crc = _crc()
    return Library(code, crc) if crc else f"none of {', '.join(name for name, _ in _CRCS)} can be loaded"


def _crc() -> int | None:
    for name, symbol in _CRCS:
        try:
            function = getattr(ctypes.CDLL(name), symbol)
        except (OSError, AttributeError):
            continue
        address = ctypes.cast(function, c_void_p).value
        if address is not None:
            return address
    return None
