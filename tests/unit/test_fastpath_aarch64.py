"""The compiled NICs for aarch64, run by qemu: the comparisons of test_fastpath.py with the committed object.

It makes the same frames, byte for byte, as the Python NICs, and so as the object for x86-64.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.base.process import run
from heddle.endpoints.fastpath import fastloop
from tests.objects.shared import FASTPATH, target
from tests.unit import fastpath_bench
from tests.unit import test_fastpath as native

SEEDS = range(3)
VERSIONS = (4, 6)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "driver")


@pytest.fixture(autouse=True)
def emulated(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What test_fastpath.py compares with the Python NICs is the emulated object."""

    class EmulatedBench(fastpath_bench.FastBench):
        def loaded(self) -> tuple[Any, int]:
            code = EmulatedCode(program, [near.fileno() for near, _ in self.pairs])
            return code, code.crc

        def at(self, array: np.ndarray) -> Any:
            return array

        def string_at(self, where: int, size: int) -> bytes:
            return bytes(self.code.string_at(where, size))

        def close(self) -> None:
            super().close()
            self.code.close()

    monkeypatch.setattr(fastpath_bench, "FastBench", EmulatedBench)


def test_the_object_is_of_this_version(program: Path) -> None:
    code = EmulatedCode(program)
    assert code.hd_version() == fastloop.VERSION
    code.close()


CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    # With DCQCN: 64-bit floating point rounds alike on both machines, without contraction.
    *(
        (native.test_a_sender_makes_the_same_packets_for_the_same_events, (version, seed, controlled))
        for version in VERSIONS
        for seed in SEEDS
        for controlled in (False, True)
    ),
    *(
        (native.test_a_receiver_answers_alike_and_writes_the_same, (version, seed, *how))
        for version in VERSIONS
        for seed in SEEDS
        for how in native.RECEIVERS
    ),
    *((native.test_frames_that_are_wrong_are_turned_away_for_the_same_reason, (version,)) for version in VERSIONS),
    *((native.test_the_loop_returns_when_a_message_is_complete, (version,)) for version in VERSIONS),
    (native.test_writes_outside_the_region_and_with_a_wrong_key_are_refused, ()),
    (native.test_a_sender_that_gets_no_answer_gives_up, ()),
]


@pytest.mark.parametrize(("comparison", "arguments"), CASES)
def test_the_object_does_what_the_python_nics_do(comparison: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    comparison(*arguments)


MACHINE: Final = "aarch64"
_SOURCE: Final = Path(__file__).with_name("fastpath_driver.c")
_FLAGS: Final = (
    "-std=c11", "-O1", "-static", "-ffreestanding", "-fno-builtin", "-nostdlib", "-nostdinc", "-fuse-ld=lld",
    "-fno-stack-protector", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
_REQUEST: Final = struct.Struct("<24sII10Q")
_MASK: Final = (1 << 64) - 1


def emulator() -> str:
    """qemu's program for aarch64, dynamic or static; empty where there is none."""
    return next(filter(None, map(shutil.which, (f"qemu-{MACHINE}", f"qemu-{MACHINE}-static"))), "")


def missing() -> str:
    """Why the object cannot be emulated here; empty when it can."""
    if platform.machine() == MACHINE:
        return "this machine is one: tests/unit/test_fastpath.py runs its object"
    if not emulator():
        return f"no qemu-{MACHINE} (apt-get install qemu-user)"
    return "" if shutil.which("clang") and shutil.which("ld.lld") else "no clang or no lld (./inv test --build)"


def build_driver(out: Path) -> Path:
    """Compile the program that loads the object."""
    run(["clang", *target(MACHINE), *_FLAGS, "-I", str(FASTPATH.directory), str(_SOURCE), "-o", str(out)])
    return out


class EmulatedCode:
    """The functions of the object, called in an emulated process. keep: file descriptors that it inherits."""

    def __init__(self, program: Path, keep: Sequence[int] = ()) -> None:
        argv = [emulator(), str(program), str(FASTPATH.path(MACHINE))]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=keep, bufsize=0)
        self.crc = self._ask("crc", [])[0]

    def __getattr__(self, name: str) -> Callable[..., int]:
        kind = fastloop._SIGNATURES[name][0]

        def call(*arguments: Any) -> int:
            result, _ = self._ask(name, arguments)
            return ctypes.c_int32(result).value if kind is ctypes.c_int else result

        return call

    def string_at(self, address: int, size: int) -> bytes:
        """Bytes of the program's memory."""
        return self._ask("read", [address, size], size)[1]

    def close(self) -> None:
        """End the program: 0 is its own end, everything else a fault in it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()

    def _ask(self, name: str, arguments: Sequence[Any], answer: int | None = None) -> tuple[int, bytes]:
        words, blob, pointers = [0] * 10, bytearray(), 0
        places: list[tuple[int, Any]] = []
        for number, each in enumerate(arguments):
            if isinstance(each, int):
                words[number] = each & _MASK
                continue
            blob += bytes(-len(blob) % 64)
            words[number], pointers = len(blob), pointers | 1 << number
            places.append((len(blob), each))
            blob += each.tobytes() if isinstance(each, np.ndarray) else bytes(each)
        assert self._process.stdin is not None
        self._process.stdin.write(_REQUEST.pack(name.encode(), pointers, len(blob), *words) + blob)
        (result,) = struct.unpack("<Q", self._take(8))
        data = self._take(len(blob) if answer is None else answer)
        for at, each in places:
            if isinstance(each, ctypes.Structure | ctypes.Array):
                ctypes.memmove(ctypes.addressof(each), data[at:], ctypes.sizeof(each))
        return result, data

    def _take(self, size: int) -> bytes:
        assert self._process.stdout is not None
        found = b""
        while len(found) < size:
            more = self._process.stdout.read(size - len(found))
            assert more, f"the emulated program ended: {self._process.wait(30)}"
            found += more
        return found


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
