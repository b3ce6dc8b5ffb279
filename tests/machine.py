"""How fast this machine is, where that matters to tests: an emulated processor (QEMU's TCG) is many times slower.

A test's bound on waiting is longer there, and its links are slower, so that the processors can still fill them. What a
test asserts stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread
from typing import Any, Final

import pytest

EMULATED: Final = "QEMU TCG" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
_PATIENCE: Final = 8 if EMULATED else 1
_SLOWER: Final = 5 if EMULATED else 1


def patience(seconds: float) -> float:
    """A bound on waiting, in seconds."""
    return seconds * _PATIENCE


def open_checkout() -> None:
    """Skip a test that reads this checkout as user nobody, where that user may not."""
    inside = Path(__file__).resolve().parents[1] / "heddle"
    for path in (*reversed(inside.parents), inside):
        if not path.stat().st_mode & 0o001:
            pytest.skip(f"user nobody may not enter {path}, and this test reads the checkout as that user")


def until(
    what: Callable[[], object], seconds: float = 60.0, every: float = 0.005, *, process: Popen[Any] | None = None
) -> float:
    """Wait for something to be so; seconds that it took. AssertionError when it does not come, or a process ends."""
    start = time.monotonic()
    while not what():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() - start < patience(seconds), f"not so within {patience(seconds):g} s"
        time.sleep(every)
    return time.monotonic() - start


@contextmanager
def child(argv: Sequence[str], **options: Any) -> Iterator[Popen[Any]]:
    """A process for a with block, whose end waits for it. A test that fails kills it: nothing else may end it."""
    with Popen(argv, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextmanager
def meanwhile(step: Callable[[], object], every: float = 0.0) -> Iterator[None]:
    """Call a function again and again in a thread, for a with block, whose end waits for it. every: seconds between."""
    ended = Event()

    def go_on() -> None:
        while not ended.wait(every):
            step()

    thread = Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rc_timeout(exponent: int) -> int:
    """A timeout of RC, 4.096 us x 2^exponent. One that is too short for a machine sends again what was not lost."""
    return exponent + (_PATIENCE - 1).bit_length()


def bps(rate: int) -> int:
    """The rate of links that the NICs of a test are to fill, in bit/s."""
    return rate // _SLOWER


def rates(rate: int) -> dict[str, str]:
    """Both rates of a fabric file."""
    return {kind: f"{bps(rate)}bit" for kind in ("host", "fabric")}


def links(rate: int) -> list[str]:
    """Both rates of a fabric file, as overrides."""
    return [f"link.{kind}={value}" for kind, value in rates(rate).items()]


def slower(rate: int) -> list[str]:
    """The same for a preset that has this rate: nothing to override on a machine of usual speed."""
    return links(rate) if EMULATED else []


def commands() -> dict[int, list[str]]:
    """Process -> the words of its command, of all processes of this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes().decode(errors="replace").split("\0")[:-1]
    return found


def children_of(pid: int) -> list[int]:
    """Processes that a process started and that still run."""
    found: list[int] = []
    for task in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found
