"""BPF_PROG_TEST_RUN: run a program on a frame that is never sent.

In:  a loaded program, a frame, and values for its context.
Out: TestRun: the program's return value, and the context and the frame after the run.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

from heddle.kernel.libbpf import Program, failed, library

_SK_BUFF: Final = 256  # at least sizeof(struct __sk_buff); bytes beyond the kernel's size must be zero
_MARK: Final = 8
_PRIORITY: Final = 32
_INGRESS_IFINDEX: Final = 36
_IFINDEX: Final = 40
_CB: Final = slice(48, 68)  # __u32 cb[5]


class _TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of one run: the return value, and skb->cb, frame and skb->priority after it; nanoseconds per run."""

    __test__ = False  # not a test class, despite its name

    retval: int
    cb: tuple[int, int, int, int, int]
    nanoseconds: int
    frame: bytes
    priority: int = 0


def run_on(
    program: Program,
    frame: bytes,
    *,
    ifindex: int = 0,
    cb: tuple[int, ...] = (),
    repeat: int = 1,
    counted: bool = False,
    mark: int = 0,
) -> TestRun:
    """Run a program on a frame (from its Ethernet header, at least 14 bytes).

    ifindex: the ingress port, in the namespace of the calling thread; 0: the loopback device.
    counted: include the run in the statistics of `hash`, like a packet. cb, mark: their values in the context.
    A frame for another MAC than the port's is PACKET_OTHERHOST, for the kernel and for our programs.
    MachineError when the kernel refuses.
    """
    context = ctypes.create_string_buffer(_SK_BUFF)
    words = {_IFINDEX: ifindex, _INGRESS_IFINDEX: ifindex * counted, _MARK: mark}
    words |= {_CB.start + 4 * index: word for index, word in enumerate(cb)}
    for offset, word in words.items():
        ctypes.c_uint32.from_buffer(context, offset).value = word
    result = ctypes.create_string_buffer(_SK_BUFF)
    options = _TestRunOptions(sz=ctypes.sizeof(_TestRunOptions), data_in=frame, data_size_in=len(frame))
    options.ctx_in, options.ctx_size_in = ctypes.addressof(context), _SK_BUFF
    options.ctx_out, options.ctx_size_out = ctypes.addressof(result), _SK_BUFF
    after = ctypes.create_string_buffer(len(frame))
    options.data_out, options.data_size_out = ctypes.addressof(after), len(frame)
    options.repeat = repeat
    if library().bpf_prog_test_run_opts(program.fd, ctypes.byref(options)) != 0:
        raise failed("program", "cannot be test-run")
    left = (ctypes.c_uint32 * 5).from_buffer_copy(result.raw[_CB])
    cells = (left[0], left[1], left[2], left[3], left[4])
    priority = ctypes.c_uint32.from_buffer(result, _PRIORITY).value
    return TestRun(int(options.retval), cells, int(options.duration), after.raw, priority)
