"""The workers of a run: start them, send their tasks, synchronise them at the barriers of each size, and end them.

In:  a plan, its transport, and the namespace of each host.
Out: one report per worker, and the machine's load during each size. CheckError when a rank failed, MachineError when a
worker process ended early.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.problems import CheckError, HeddleError, MachineError, Problem
from heddle.endpoints.ranks import SizeResult
from heddle.endpoints.reports import WorkerMessage, WorkerReport
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.worker import Task
from heddle.host import capacity as machine
from heddle.host.saturation import Phase
from heddle.traffic.plan import Plan

_WORKER: Final = "heddle.endpoints.worker"
_END_S: Final = 3.0
_ANSWER_S: Final = 2.0  # for a worker to report what its ranks wait for
_NAMED: Final = 4  # ranks of a worker that an error names
Part = TypeVar("Part")
# A size, and what each rank measured there.
SizeListener = Callable[[int, Mapping[int, SizeResult]], None]


class _Member:
    """One worker process, and the incomplete line that has been read from it."""

    def __init__(self, ranks: str) -> None:
        self.ranks = ranks  # in words
        self.proc = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=resources.HERE.python_path,
            start_new_session=True,  # Ctrl-C must reach only the run, which ends its workers
        )
        self.inbox: deque[WorkerMessage] = deque()  # messages that were read and not handled yet
        self.still: tuple[Problem, ...] | None = None  # what its ranks wait for while its NICs are still
        self.waits: tuple[Problem, ...] | None = None  # what its ranks wait for, when it was asked
        self._rest = b""
        self._reported = False

    @property
    def out(self) -> int:
        """The descriptor of its standard output."""
        assert self.proc.stdout is not None  # noqa: S101  (a pipe was requested)
        return self.proc.stdout.fileno()

    def send(self, line: bytes) -> None:
        """Send it a line. If it has ended, `read` will find out."""
        assert self.proc.stdin is not None  # noqa: S101
        with suppress(BrokenPipeError):
            self.proc.stdin.write(line + b"\n")
            self.proc.stdin.flush()

    def read(self) -> bool:
        """Read its output; False when it has ended after its report, as it should.

        CheckError when a rank failed, MachineError when the worker has ended before.
        """
        chunk = os.read(self.out, 1 << 16)
        if not chunk:
            if self._reported:  # other workers may still be writing theirs
                return False
            raise MachineError(_ended(self.ranks, self.proc.wait()))
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for message in map(WorkerMessage.of_line, lines):
            if message.error:
                raise CheckError(*message.error)
            if message.waits is not None:
                self.waits = message.waits
                continue
            if message.still is not None or message.moving:
                self.still = message.still
                continue
            self._reported = self._reported or message.report is not None
            self.inbox.append(message)
        return True

    def end(self, within: float) -> None:
        """Wait for its end after its input was closed; kill it after `within` seconds."""
        assert self.proc.stdin is not None and self.proc.stdout is not None  # noqa: S101
        try:
            self.proc.wait(within)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.proc.stdout.close()


class Crew:
    """The worker processes that together run the ranks of one plan.

    phases: the machine's load during each size. began_ns: the time of the first barrier.
    """

    def __init__(self, plan: Plan, transport: Transport, netns: Mapping[str, Path], workers: int) -> None:
        self._plan = plan
        self._deadline = time.monotonic() + plan.max_seconds
        self.phases: list[Phase] = []
        self.began_ns = 0  # CLOCK_MONOTONIC
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        paths, parameters = {host: str(path) for host, path in netns.items()}, transport.parameters()
        order = [rank for members in plan.communicators for rank in members]
        for index in range(workers):
            # Neighbours in the ring go to different workers, so that both ends of a transfer have a CPU.
            ranks = tuple(order[index::workers])
            member = _Member(_named(plan, ranks))
            self._members.append(member)
            self._selector.register(member.out, selectors.EVENT_READ, member)
            member.send(TypeAdapter(Task).dump_json(Task(plan, ranks, paths, parameters)))

    def run(
        self,
        observer: Observer,
        before_stop: Callable[[], None] = lambda: None,
        on_size: SizeListener = lambda size, results: None,
    ) -> list[WorkerReport]:
        """Start each size on all ranks together, and check it when all have finished; return a report per worker.

        The step `run` begins here, and the caller ends it. before_stop: called when all ranks are done, while their
        NICs still receive. on_size: called with each size when it is checked, before the next one begins.
        """
        sizes = self._plan.options.sizes
        for number, size in enumerate(sizes, start=1):
            results = self._all(lambda message: message.results if message.ready else None)
            if number == 1:
                observer.begin("run", len(sizes))
                self.began_ns = time.monotonic_ns()
            else:
                on_size(sizes[number - 2], _merged(results))
            before = machine.read()
            self._broadcast({"go": True})
            uses = self._all(lambda message: message.use)
            self.phases.append(Phase.between(size, before, machine.read(), uses))
            self._broadcast({"check": True})
            observer.advance("run", number)
        on_size(sizes[-1], _merged(self._all(lambda message: message.results if message.done else None)))
        before_stop()
        self._broadcast({"stop": True})
        return self._all(lambda message: message.report)

    @property
    def seconds(self) -> float:
        """The sum over all sizes of the time from the barrier until the last rank was done."""
        return sum(phase.seconds for phase in self.phases)

    def close(self) -> None:
        """End all workers."""
        for member in self._members:
            assert member.proc.stdin is not None  # noqa: S101
            with suppress(BrokenPipeError):
                member.proc.stdin.close()
        end = time.monotonic() + _END_S
        for member in self._members:
            member.end(max(0.0, end - time.monotonic()))
        self._selector.close()

    def _all(self, part: Callable[[WorkerMessage], Part | None]) -> list[Part]:
        """Wait for the next message of every worker; return `part` of each, by worker. All must have that part."""
        while not all(member.inbox for member in self._members):
            self._listen()
        found = [part(member.inbox.popleft()) for member in self._members]
        parts = [each for each in found if each is not None]
        if len(parts) < len(found):
            raise RuntimeError("a worker sent an unexpected message")
        return parts

    def _listen(self) -> None:
        """Wait until a worker sends something; CheckError when the run exceeds its time limit."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            why = f"did not end within {self._plan.max_seconds:g} s"
            late = Problem("", "the run", why, "run ./inv validate to check that the fabric forwards")
            raise CheckError(late, *self._waits(self._members))
        for key, _ in self._selector.select(left):
            try:
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
            except MachineError as error:
                self._selector.unregister(key.fileobj)
                others = [member for member in self._members if member is not key.data]
                raise MachineError(*error.problems, *self._waits(others)) from None
        waits = [problem for member in self._members for problem in member.still or ()]
        if waits and all(member.still is not None for member in self._members):
            raise CheckError(*waits)

    def _waits(self, asked: Sequence[_Member]) -> list[Problem]:
        """Ask workers of a run that cannot continue what their ranks wait for. Those that do not answer are named."""
        for member in asked:
            member.send(b'{"waits": true}')
        end = time.monotonic() + _ANSWER_S
        while any(member.waits is None for member in asked) and (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                try:
                    if key.data.read():
                        continue
                except HeddleError as error:
                    key.data.waits = tuple(error.problems)
                self._selector.unregister(key.fileobj)
        found: list[Problem] = []
        for member in asked:
            silent = (Problem("", member.ranks, f"did not answer within {_ANSWER_S:g} s"),)
            found.extend(silent if member.waits is None else member.waits)
        return found

    def _broadcast(self, message: Mapping[str, bool]) -> None:
        for member in self._members:
            member.send(json.dumps(message).encode())


def _named(plan: Plan, ranks: Sequence[int]) -> str:
    """`the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 and 6 more`."""
    first = ", ".join(f"rank {rank} on {plan.endpoints[rank].nic}" for rank in ranks[:_NAMED])
    return f"the worker of {first}" + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")


def _ended(ranks: str, code: int) -> Problem:
    """A worker that has ended early. code: as of Popen, negative for a signal."""
    if code >= 0:
        return Problem("", ranks, f"ended early (exit code {code})", "see its output above")
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    hint = "use smaller sizes if the kernel ran out of memory (dmesg shows this), or run it again"
    return Problem("", ranks, f"was ended by {name}", hint if name == "SIGKILL" else "run it again")


def _merged(results: Sequence[Mapping[int, SizeResult]]) -> dict[int, SizeResult]:
    """The ranks of all workers, in order."""
    return dict(sorted((rank, each) for part in results for rank, each in part.items()))


def worker_count(plan: Plan) -> int:
    """The number of workers: one per CPU, but at most one per rank."""
    return min(len(os.sched_getaffinity(0)), len(plan.endpoints))


@contextmanager
def crew_of(plan: Plan, transport: Transport, netns: Mapping[str, Path], workers: int) -> Iterator[Crew]:
    """Workers for the duration of a with block."""
    crew = Crew(plan, transport, netns, workers)
    try:
        yield crew
    finally:
        crew.close()
