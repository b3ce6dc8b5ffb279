"""Load the compiled object of the fast path, with the types of its functions.

In:  fastpath-MACHINE.so in this directory (built by `makefast`), and a CRC-32: libdeflate's, else zlib's.
Out: Library, or the reason why there is none: then the Python loop does the same work, with more CPU time.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from typing import Final

from heddle.base import resources
from heddle.base.problems import MachineError

VERSION: Final = 4
# libdeflate is several times faster than zlib if the CPU has carry-less multiplication.
_CRCS: Final = (("libdeflate.so.0", "libdeflate_crc32"), ("libz.so.1", "crc32"))

_U8 = ctypes.POINTER(ctypes.c_uint8)
_U32 = ctypes.POINTER(ctypes.c_uint32)
_U64 = ctypes.POINTER(ctypes.c_uint64)


class RcStruct(ctypes.Structure):
    """struct rc: parameters of a reliable connection."""

    _fields_ = (
        ("timeout_ns", ctypes.c_int64),
        ("ack_delay_ns", ctypes.c_int64),
        ("mtu", ctypes.c_uint32),
        ("retries", ctypes.c_uint32),
    )


class DcqcnStruct(ctypes.Structure):
    """struct dcqcn_rule: congestion control of all queue pairs."""

    _fields_ = (
        *((name, ctypes.c_double) for name in (
            "keep", "first_alpha", "first_bps", "least_factor", "min_bps", "cut_divisor", "ai_bps", "hai_bps",
        )),
        *((name, ctypes.c_int64) for name in ("alpha_ns", "cut_ns", "time_ns", "gap_ns")),
        ("byte_reset", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("threshold", "steps")),
        *((name, ctypes.c_uint8) for name in ("on", "clamp", "clamp_after_time", "cnp_tos")),
    )  # fmt: skip


class OpcodesStruct(ctypes.Structure):
    """struct opcodes: the properties of each opcode."""

    _fields_ = (("extra", ctypes.c_uint8 * 256), ("headers_only", ctypes.c_uint8 * 256))


class EventStruct(ctypes.Structure):
    """struct event: the reason why hd_run returned."""

    _fields_ = (("kind", ctypes.c_uint32), ("nic", ctypes.c_uint32), ("a", ctypes.c_uint32), ("b", ctypes.c_uint32))


_ENGINE = ctypes.c_void_p
_SIGNATURES: Final = {
    "hd_version": (ctypes.c_uint32, ()),
    "hd_engine": (
        _ENGINE,
        (
            ctypes.POINTER(RcStruct),
            ctypes.POINTER(OpcodesStruct),
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_int64,
        ),
    ),
    "hd_congestion": (None, (_ENGINE, ctypes.POINTER(DcqcnStruct))),
    "hd_nic": (ctypes.c_int, (_ENGINE, ctypes.c_int, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64)),
    "hd_qp": (
        ctypes.c_int,
        (
            _ENGINE,
            ctypes.c_uint32,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_int64,
        ),
    ),
    "hd_expect": (
        ctypes.c_int,
        (
            _ENGINE,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ),
    ),
    "hd_message": (ctypes.c_void_p, (_ENGINE, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)),
    "hd_used": (None, (_ENGINE, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)),
    "hd_post": (
        ctypes.c_int,
        (
            _ENGINE,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_uint32,
            ctypes.c_uint32,
        ),
    ),
    "hd_pass": (None, (_ENGINE, ctypes.c_int64, ctypes.c_int)),
    "hd_run": (
        ctypes.c_int,
        (_ENGINE, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.POINTER(EventStruct), ctypes.c_int),
    ),
    "hd_drain": (ctypes.c_int, (_ENGINE, ctypes.POINTER(EventStruct), ctypes.c_int)),
    "hd_idle": (ctypes.c_int, (_ENGINE, ctypes.c_uint32)),
    "hd_qp_counters": (None, (_ENGINE, ctypes.c_uint32, ctypes.c_uint32, _U64)),
    "hd_rates": (
        ctypes.c_uint32,
        (
            _ENGINE,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_double),
            ctypes.c_uint32,
        ),
    ),
    "hd_nic_counters": (None, (_ENGINE, ctypes.c_uint32, _U64)),
    "hd_close": (None, (_ENGINE,)),
}


@dataclass(frozen=True)
class Library:
    """The functions of fastpath.c. code: the loaded object. crc: the address of a CRC-32. crc_name: its library."""

    code: ctypes.CDLL
    crc: int
    crc_name: str


@cache
def load() -> Library | str:
    """The library, or the reason why it cannot be used here."""
    try:
        path = resources.HERE.fastpath(platform.machine())
    except MachineError:
        return f"no compiled object for {platform.machine()}"
    crc = _crc()
    if crc is None:
        return f"none of {', '.join(name for name, _ in _CRCS)} can be loaded"
    try:
        code = ctypes.CDLL(str(path), use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(code, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if code.hd_version() != VERSION:
        return f"{path.name} belongs to another version of Heddle"
    return Library(code, *crc)


def _crc() -> tuple[int, str] | None:
    for name, symbol in _CRCS:
        try:
            function = getattr(ctypes.CDLL(name), symbol)
        except (OSError, AttributeError):
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is not None:
            return address, name
    return None
