"""Cases of a fuzz test: each has a number, and its input follows from the seed, the test's name and that number.

    def test_captures(fuzz: Fuzz) -> None:
        fuzz.run(60_000, one)           # one(dice, place): write an input to `place`, then read it

`one` returns or raises nothing for an input that is read or refused as documented. Anything else is a failure: it is
saved with its input and with the command that repeats it, and the test goes on. Each case has a limit of CPU time, not
of wall time, which a busy machine would use up; the whole test has a limit of memory.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from tests.machine import patience

ROOT: Final = Path(__file__).resolve().parents[2]
One = Callable[[random.Random, Path], None]
CPU_S: Final = 5.0  # of one case
MEMORY: Final = 1 << 30  # bytes of address space that all cases may add
_BLOCKED_S: Final = 300.0  # of a case that only waits: a FIFO without a writer
_MOST: Final = 20  # failures that are saved
_KEPT: Final = Path(tempfile.gettempdir(), "heddle-fuzz")


class TooLongError(BaseException):
    """A case has used up its CPU time. No `except Exception` of the code under test catches it."""


@dataclass
class Fuzz:
    """The cases of one test. seed: of all inputs. only: the number of the one case to run; None runs all."""

    name: str
    place: Path
    seed: int
    only: int | None = None
    failures: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def run(self, count: int, one: One, cpu_s: float = CPU_S) -> None:
        """Run so many cases; pytest.fail with all failures."""
        began, slowest, cpu = time.monotonic(), (0.0, 0), time.process_time()
        numbers = range(count) if self.only is None else [self.only]
        with address_space(MEMORY):
            for number in numbers:
                before = time.process_time()
                self._case(number, one, patience(cpu_s))
                slowest = max(slowest, (time.process_time() - before, number))
                if len(self.failures) >= _MOST:
                    break
        print(
            f"fuzz {self.name}: {len(numbers)} cases, seed {self.seed}, {time.process_time() - cpu:.1f} s of CPU, "
            f"{time.monotonic() - began:.1f} s; slowest case {slowest[1]}: {slowest[0] * 1e3:.0f} ms"
        )
        if self.failures:
            kinds = "\n".join(f"  {count} x {kind}" for kind, count in self.kinds.most_common())
            pytest.fail("\n".join([f"{len(self.failures)} failures:", kinds, *self.failures]), pytrace=False)

    def command(self, number: int) -> str:
        """Repeats one case."""
        return f"./inv test fuzz -- -k {self.name} --fuzz-seed {self.seed}:{number}"

    def _case(self, number: int, one: One, cpu_s: float) -> None:
        place = self.place / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        dice = random.Random(f"{self.seed} {self.name} {number}")
        try:
            with cpu_limit(cpu_s):
                one(dice, place)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._keep(number, place, error)

    def _keep(self, number: int, place: Path, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        at = next((f for f in reversed(frames) if "/heddle/" in f.filename), frames[-1])
        where = f"{Path(at.filename).parent.name}/{Path(at.filename).name}:{at.lineno}"
        self.kinds[f"{type(error).__name__} at {where}"] += 1
        kept = _KEPT / f"{self.name}-{self.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        shutil.copytree(place, kept / "input", copy_function=_copied, symlinks=True)
        command = self.command(number)
        (kept / "failure.txt").write_text(f"{command}\n\n" + "".join(traceback.format_exception(error)))
        said = str(error).partition("\n")[0][:200]
        self.failures.append(f"{type(error).__name__}: {said}\n  at {where}; input: {kept}\n  again: {command}")


def _copied(source: str, to: str) -> str:
    """Copy a regular file; a FIFO or a device would block."""
    return shutil.copy(source, to) if Path(source).is_file() else to


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """TooLongError when a with block uses more CPU time than that, or waits for minutes."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"more than {seconds:g} s of CPU time" if number == signal.SIGPROF else "it waits for ever")

    before = {number: signal.signal(number, over) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _BLOCKED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """A with block may map so many bytes more than this process has now; then it gets a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
