"""The workers of a run: start them, send their tasks, synchronise them at the barriers of each size, and end them.

In:  the plan of each job, its transport, and the namespace of each host.
Out: of each job one report per worker, and the machine's load during each size. CheckError when a rank failed,
MachineError when a worker process ended early.
A job has a crew of its own, so its barriers are its own, too. Only the end is common: NICs receive until all jobs end.
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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.problems import CheckError, HeddleError, MachineError, Problem
from heddle.base.untrusted import LINE_BYTES, check_values
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.reports import SizeResult, WorkerMessage, WorkerReport
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.worker import Task
from heddle.host import capacity as machine
from heddle.host.capacity import Phase
from heddle.traffic.plan import Plan
from heddle.traffic.workload import Job

_WORKER: Final = "heddle.endpoints.worker"
_NAMED: Final = 4  # ranks of a worker that an error names
_MOST_WAITING: Final = 64  # messages: a worker sends two or three, and waits for its crew


class CrewMember:
    """One worker process, and the incomplete line that has been read from it."""

    def __init__(self, own: tuple[int, ...], ranks: str, argv: Sequence[str], ahead_ns: int) -> None:
        self.own, self.ranks = own, ranks  # as numbers, and in words
        self._ahead_ns = ahead_ns
        self.proc = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=resources.HERE.python_path,
            start_new_session=True,  # Ctrl-C must reach only the run, which ends its workers
        )
        self.inbox: deque[WorkerMessage] = deque()  # messages that were read and not handled yet
        self.still: tuple[Problem, ...] | None = None  # what its ranks wait for while its NICs are still
        self.waits: tuple[Problem, ...] | None = None  # what its ranks wait for, when it was asked
        self._rest = bytearray()
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
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        for message in map(self._message, lines):
            if message.error:
                raise CheckError(*message.error)
            if message.waits is not None:
                self.waits = message.waits
                continue
            if message.still is not None or message.moving:
                self.still = message.still
                continue
            self._reported = self._reported or message.report is not None
            self.inbox.append(message.earlier(self._ahead_ns))
        if len(self._rest) > LINE_BYTES or len(self.inbox) > _MOST_WAITING:
            raise self._refused("more than any worker does")
        return True

    def _message(self, line: bytes) -> WorkerMessage:
        """A line as a message. MachineError for one that is none: a worker in a shard may be anything."""
        try:
            check_values(line)
            return WorkerMessage.of_line(line)
        except ValueError as error:
            raise self._refused(f"a line that is no message: {str(error).splitlines()[0]}") from None

    def _refused(self, what: str) -> MachineError:
        hint = "does the pod have another version of Heddle? ./inv down LAB, then up, with the image of this version"
        return MachineError(Problem("", self.ranks, f"has sent {what}", hint))

    def end(self, within: float) -> None:
        """Wait for its end after its input was closed; kill it after `within` seconds."""
        assert self.proc.stdin is not None and self.proc.stdout is not None  # noqa: S101
        try:
            self.proc.wait(within)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.proc.stdout.close()


@dataclass(frozen=True)
class Homes:
    """Where the workers of a run are started: here, or in the shards of their hosts.

    shard_of: host -> its shard; empty when all hosts are here. start: shard and words after `python -m` -> a command.
    ahead_ns: shard -> how far its clock is ahead of this machine's.
    """

    shard_of: Mapping[str, str] = field(default_factory=dict)
    start: Callable[[str, Sequence[str]], list[str]] = lambda _, words: [sys.executable, "-m", *words]
    ahead_ns: Mapping[str, int] = field(default_factory=dict)

    def members(self, plan: Plan, workers: int) -> Iterator[CrewMember]:
        """Start the workers. workers: their number in all; each shard has at least one."""
        groups: dict[str, list[tuple[int, ...]]] = {}
        for together in plan.processes:
            groups.setdefault(self.shard_of.get(plan.endpoints[together[0]].host, ""), []).append(together)
        each = max(1, workers // max(1, len(groups)))
        for shard, processes in groups.items():
            for index in range(min(each, len(processes))):
                # Neighbours in the ring go to different workers, so that both ends of a transfer have a CPU.
                ranks = tuple(rank for together in processes[index::each] for rank in together)
                yield CrewMember(ranks, _named(plan, ranks), self.start(shard, [_WORKER]), self.ahead_ns.get(shard, 0))


def _named(plan: Plan, ranks: Sequence[int]) -> str:
    """`the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 and 6 more`."""
    first = ", ".join(f"rank {rank} on {plan.endpoints[rank].nic}" for rank in ranks[:_NAMED])
    return f"the worker of {first}" + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")


def _ended(ranks: str, code: int) -> Problem:
    """A worker that has ended early. code: as of Popen, negative for a signal; 128 more than it for one in a shard."""
    code = 128 - code if code > 128 else code
    if code >= 0:
        return Problem("", ranks, f"ended early (exit code {code})", "see its output above")
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    hint = "use smaller sizes if the kernel ran out of memory (dmesg shows this), or run it again"
    return Problem("", ranks, f"was ended by {name}", hint if name == "SIGKILL" else "run it again")


_END_S: Final = 3.0
_ANSWER_S: Final = 2.0  # for a worker to report what its ranks wait for
Part = TypeVar("Part")
_LONGEST_S: Final = 3600.0  # one wait for workers
Results = Mapping[int, SizeResult]  # by rank


SizeListener = Callable[["Crew", int, Results], None]


class Crew:
    """The worker processes that together run the ranks of one job.

    phases: the machine's load during each size. began_ns, ended_ns: the times of its first barrier, and of the check of
    its last size (CLOCK_MONOTONIC); 0 before.
    """

    def __init__(
        self, plan: Plan, transport: Transport, netns: Mapping[str, Path], workers: int, job: Job | None = None,
        homes: Homes | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.job = plan, Job("", plan.options) if job is None else job
        self.deadline = time.monotonic() + plan.max_seconds
        self.ready = False
        self.phases: list[Phase] = []
        self.began_ns = self.ended_ns = 0
        self._members: list[CrewMember] = []
        self._selector = selectors.DefaultSelector()
        paths, parameters = {host: str(path) for host, path in netns.items()}, transport.parameters()
        for member in (homes or Homes()).members(plan, workers):
            self._members.append(member)
            self._selector.register(member.out, selectors.EVENT_READ, member)
            member.send(TypeAdapter(Task).dump_json(Task(plan, member.own, paths, parameters, self.job.repeat)))

    def fileno(self) -> int:
        """A descriptor that can be read when a worker has sent something."""
        return self._selector.fileno()

    @property
    def seconds(self) -> float:
        """The sum over all sizes of the time from the barrier until the last rank was done."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def sizes(self) -> int | None:
        """How many measurements it makes, with all repetitions; None in the background."""
        return None if self.job.in_background else len(self.plan.passes) * self.job.repeat

    def allow(self) -> None:
        """Give it the whole time limit from now on."""
        self.deadline = time.monotonic() + self.plan.max_seconds

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

    def all(self, part: Callable[[WorkerMessage], Part | None]) -> Generator[None, None, list[Part]]:
        """Wait for the next message of every worker; return `part` of each, by worker. All must have that part."""
        while not all(member.inbox for member in self._members):
            yield
        found = [part(member.inbox.popleft()) for member in self._members]
        parts = [each for each in found if each is not None]
        if len(parts) < len(found):
            raise RuntimeError("a worker sent an unexpected message")
        return parts

    def listen(self) -> None:
        """Read what the workers have sent; CheckError when the job exceeds its time limit."""
        if time.monotonic() >= self.deadline:
            why = f"did not end within {self.plan.max_seconds:g} s"
            late = Problem("", "the run", why, "run ./inv validate to check that the fabric forwards")
            raise CheckError(late, *self._waits(self._members))
        for key, _ in self._selector.select(0):
            try:
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
            except HeddleError as error:
                self._selector.unregister(key.fileobj)
                others = [member for member in self._members if member is not key.data]
                # A rank cannot tell why nothing arrives at its peer; the NIC of the peer may know.
                asked = self._waits(others) if isinstance(error, MachineError) else self._foreign(others)
                raise type(error)(*error.problems, *asked) from None
        waits = [problem for member in self._members for problem in member.still or ()]
        if waits and all(member.still is not None for member in self._members):
            raise CheckError(*waits)

    def _waits(self, asked: Sequence[CrewMember]) -> list[Problem]:
        """Ask workers of a run that cannot continue what their ranks wait for. Those that do not answer are named."""
        self._ask(asked, b'{"waits": true}')
        found: list[Problem] = []
        for member in asked:
            silent = (Problem("", member.ranks, f"did not answer within {_ANSWER_S:g} s"),)
            found.extend(silent if member.waits is None else member.waits)
        return found

    def _foreign(self, asked: Sequence[CrewMember]) -> list[Problem]:
        """Ask workers whose NICs have dropped frames for another MAC."""
        self._ask(asked, b'{"foreign": true}')
        return [problem for member in asked for problem in member.waits or ()]

    def _ask(self, asked: Sequence[CrewMember], question: bytes) -> None:
        for member in asked:
            member.send(question)
        end = time.monotonic() + _ANSWER_S
        while any(member.waits is None for member in asked) and (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                try:
                    if key.data.read():
                        continue
                except HeddleError as error:
                    key.data.waits = tuple(error.problems)
                self._selector.unregister(key.fileobj)

    def tell(self, message: Mapping[str, bool]) -> None:
        """Send a message to all workers."""
        for member in self._members:
            member.send(json.dumps(message).encode())


class Crews:
    """The crews of all jobs of a run. began_ns: the first barrier of all. failed: the job in which an error was."""

    def __init__(self, crews: Sequence[Crew]) -> None:
        self.crews = crews
        self.began_ns = 0
        self.failed = ""
        self._by_name = {crew.job.name: crew for crew in crews}
        self._moved = False  # a crew became ready, began or ended: others may wait for that
        self._steps = 0
        self._stopping = False

    def run(
        self,
        observer: Observer,
        before_stop: Callable[[], None] = lambda: None,
        on_size: SizeListener = lambda crew, number, results: None,
    ) -> list[list[WorkerReport]]:
        """Start each job at its time, each size of it on all its ranks together, and check it when all have finished.

        Returns the reports of each job's workers. The step `run` begins here, and the caller ends it. before_stop:
        called when all jobs have ended, while their NICs still receive. on_size: called with a job and the number of
        a measurement (`Plan.passes`), when that was checked and before the next one begins.
        """
        works = {crew: self._work(crew, observer, before_stop, on_size) for crew in self.crews}
        reports: dict[Crew, list[WorkerReport]] = {}
        with selectors.DefaultSelector() as selector:
            for crew in works:
                selector.register(crew, selectors.EVENT_READ)
            while works:
                self._moved = False
                for crew in [*works]:
                    try:
                        next(works[crew])
                    except StopIteration as end:
                        reports[crew] = end.value
                        selector.unregister(crew)
                        del works[crew]
                if works and not self._moved:
                    # When something is due, if no worker sends anything before.
                    due = min(
                        [each.deadline if each.began_ns or not each.ready else self._begins(each) for each in works]
                    )
                    selector.select(min(_LONGEST_S, max(0.0, due - time.monotonic())))
                for crew in works:
                    try:
                        crew.listen()
                    except HeddleError as error:
                        self.failed = name = crew.job.name
                        if not name:
                            raise
                        named = (replace(each, where=each.where or f"job {name}") for each in error.problems)
                        raise type(error)(*named) from None
        return [reports[crew] for crew in self.crews]

    def _work(
        self, crew: Crew, observer: Observer, before_stop: Callable[[], None], on_size: SizeListener
    ) -> Generator[None, None, list[WorkerReport]]:
        """One job from its first message to its reports; a yield where it waits."""
        yield from crew.all(lambda message: message.ready or None)
        crew.ready = self._moved = True
        crew.deadline = NEVER
        if all(each.ready for each in self.crews):
            self.began_ns = time.monotonic_ns()
            observer.begin("run", sum(each.sizes or 0 for each in self.crews))
        while time.monotonic() < self._begins(crew):
            yield
        crew.began_ns, self._moved = time.monotonic_ns(), True
        crew.allow()
        passes, last, number = crew.plan.passes, crew.sizes, 0
        whole = len(passes) // len(crew.plan.options.sizes)  # measurements of a size
        others = [each for each in self.crews if not each.job.in_background]
        # In the background: until the others have ended, but whole sizes.
        while number != last and (last or number % whole or not number or not all(each.ended_ns for each in others)):
            (size, _), before = passes[number % len(passes)], machine.read()
            crew.tell({"go": True})
            uses = yield from crew.all(lambda message: message.use)
            crew.phases.append(Phase.between(size, before, machine.read(), uses))
            crew.tell({"check": True})
            number += 1
            if last is None:
                crew.allow()
            else:
                self._steps += 1
                observer.advance("run", self._steps)
            parts = yield from crew.all(lambda message: message.results if message.ready or message.done else None)
            on_size(crew, (number - 1) % len(passes), dict(sorted(row for part in parts for row in part.items())))
        crew.ended_ns, self._moved = time.monotonic_ns(), True
        crew.deadline = NEVER
        while not all(each.ended_ns for each in self.crews):
            yield
        if not self._stopping:
            self._stopping = True
            before_stop()
        crew.allow()
        crew.tell({"stop": True})
        return (yield from crew.all(lambda message: message.report))

    def _begins(self, crew: Crew) -> float:
        """When a job may begin (time.monotonic); NEVER while that is not known."""
        since = self._by_name[crew.job.after].ended_ns if crew.job.after else self.began_ns
        return since / 1e9 + crew.job.start_s if since else NEVER


def worker_count(plan: Plan) -> int:
    """The number of workers of a job: one per CPU, but at most one per rank, or per host with copies inside it."""
    return min(len(os.sched_getaffinity(0)), len(plan.processes))


@contextmanager
def crews_of(
    jobs: Sequence[tuple[Job, Plan, Transport]], netns: Mapping[str, Path], workers: Sequence[int],
    homes: Homes | None = None,
) -> Iterator[Crews]:  # fmt: skip
    """The workers of all jobs for the duration of a with block. workers: their number for each job."""
    with ExitStack() as stack:
        crews = []
        for (job, plan, transport), number in zip(jobs, workers, strict=True):
            crews.append(Crew(plan, transport, netns, number, job, homes))
            stack.callback(crews[-1].close)
        yield Crews(crews)
