"""The worker processes of a crew, and where they are started: here, or in the shards of their hosts.

In:  a plan, and the number of workers. Out: running processes, each with its ranks; their messages as values.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from heddle.base import resources
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.base.untrusted import LINE_BYTES, check_values
from heddle.endpoints.reports import WorkerMessage
from heddle.traffic.plan import Plan

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
