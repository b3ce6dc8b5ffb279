"""Calls into the shards of a lab: one agent for each, which lives as long as this process needs it.

In:  the name of an operation (heddle/lab/spread.py) and its arguments. Out: its result in each shard.
An agent is a process in the shard with a line of JSON for each call and each answer, so nothing listens on a socket.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

from heddle.base import problems, values
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, MachineError, Problem

AGENT: Final = "heddle.shards.agent"
CLOCK: Final = "heddle.shards.building:clock"
# What is changed live is in the coordinator's record, and goes with each call.
LIVE: Final = ("hashing", "engineering", "queues", "before_run")
OBSERVER: Final = {"observer": True}  # in place of an Observer among the arguments
_COMPARED: Final = 5
_END_S: Final = 5.0
_ERRORS: Final = {kind.__name__: kind for kind in (problems.CheckError, problems.InputError, MachineError)}


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on CLOCK_MONOTONIC of the machine where it is used: calls into shards translate it."""

    ns: int


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far CLOCK_MONOTONIC of a shard is ahead of this machine's. bound_ns: the error is at most that."""

    ahead_ns: int
    bound_ns: int


class Shards(Protocol):
    """The shards of one lab."""

    def clocks(self) -> Mapping[str, ClockOffset]:
        """Shard -> its clock, as compared when its agent started."""

    def of(self, node: str) -> str:
        """The shard of a node."""

    def module(self, shard: str, words: Sequence[str]) -> list[str]:
        """The command of this machine that runs a module of Heddle in a shard, with its streams."""

    def call(
        self, operation: str, nodes: Collection[str] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Call an operation in all shards at the same time, or in those that have one of the nodes.

        Its results, in the order of the shards. Errors of its kind, with the shard; MachineError for one that is lost.
        """


class AgentCall:
    """The agent of a shard. argv: the command of this machine that starts it; lost: why it may have ended."""

    def __init__(self, shard: str, argv: Sequence[str], lost: Callable[[], Problem | None]) -> None:
        self.shard, self._lost = shard, lost
        self._lock = threading.Lock()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the agent)
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        atexit.register(self.close)
        self.clock = min((self._compared() for _ in range(_COMPARED)), key=lambda each: each.bound_ns)

    def _compared(self) -> ClockOffset:
        """The clocks, by one exchange: the shard reads its clock between the question and the answer."""
        before = time.monotonic_ns()
        there = int(self.call({"call": CLOCK, "args": [], "kwargs": {}}))
        after = time.monotonic_ns()
        return ClockOffset(there - (before + after) // 2, (after - before) // 2)

    def call(self, request: Mapping[str, Any], observer: Observer | None = None) -> Any:
        """One call. request: data for JSON."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                raise self._ended() from None
            while line := self._process.stdout.readline():
                answer = json.loads(line)
                if "event" in answer:
                    if observer is not None:
                        getattr(observer, answer["event"])(*answer["args"])
                    continue
                if "error" in answer:
                    raise self._error(answer)
                return values.load(answer["result"])
            raise self._ended()

    def _error(self, answer: Mapping[str, Any]) -> Exception:
        kind = _ERRORS.get(answer["error"])
        if kind is None:
            return RuntimeError(f"shard {self.shard}: {answer['text']}")
        return kind(*(Problem(*row) for row in answer["problems"]))

    def _ended(self) -> HeddleError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        why = f"has ended: {said[-1]}" if said else "has ended"
        return MachineError(self._lost() or Problem("", f"the agent of shard {self.shard}", why))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        atexit.unregister(self.close)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def call_all(
    agents: Sequence[AgentCall], request: Callable[[AgentCall], Mapping[str, Any]], observer: Observer | None = None
) -> list[Any]:
    """Call several agents at the same time; errors of one kind are raised together. request: what each is sent."""
    if len(agents) == 1:
        return [agents[0].call(request(agents[0]), observer)]
    with ThreadPoolExecutor(max(1, len(agents)), thread_name_prefix="shards") as pool:
        futures = [pool.submit(agent.call, request(agent), observer) for agent in agents]
        errors = [error for each in futures if isinstance(error := each.exception(), HeddleError)]
        if errors:
            kind = type(errors[0])
            raise kind(*dict.fromkeys(problem for each in errors for problem in each.problems))
        return [each.result() for each in futures]
