"""Calls into the shards of a lab: one agent for each, which lives as long as this process needs it.

In:  the name of an operation (heddle/lab/spread.py), or of a part of kind `shardcall`, and its arguments.
Out: its result in each shard.
An agent is a process in the shard with a line of JSON for each call and each answer, so nothing listens on a socket.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol, runtime_checkable

from heddle.base import problems, state, values
from heddle.base.events import Observer
from heddle.base.plugins import parts
from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.untrusted import LINE_BYTES, parsed
from heddle.runtimes.clusterkind import ShardCommand

AGENT: Final = "heddle.shards.agent"
CLOCK: Final = "heddle.shards.building:clock"
OPEN: Final = ("heddle.shards.building",)  # every public function there may be called
KIND: Final = "shardcall"  # parts of this kind may be called, by their names
# What is changed live is in the coordinator's record, and goes with each call.
LIVE: Final = ("hashing", "engineering", "queues", "before_run")
OBSERVER: Final = {"observer": True}  # in place of an Observer among the arguments
_COMPARED: Final = 5
_END_S: Final = 5.0
_EVENTS: Final = ("say", "warn")
_NOT_FOUND: Final = 127  # exit code: there is no such command
_IMAGE: Final = "build the image of this version: ./inv image --archive FILE (docs/kubernetes.md); then ./inv down, up"
_ANSWER_S: Final = 900.0  # for the work of a call; a pod that sends and never answers is ended, too
_CLOCK_S: Final = 60.0  # for the first one, which waits for the start of the agent
_MOST_EVENTS: Final = 10_000  # of one call
_MOST_SAID: Final = 1 << 16  # bytes of a text
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
        self, operation: str, nodes: Collection[str] | None, args: Sequence[Any], kwargs: Mapping[str, Any],
        wait_s: float = 0.0,
    ) -> list[Any]:  # fmt: skip
        """Call an operation in all shards at the same time, or in those that have one of the nodes.

        wait_s: how long it may wait for something, in addition to its work.
        Its results, in the order of the shards. Errors of its kind, with the shard; MachineError for one that is lost.
        """


@runtime_checkable
class EventObserver(Protocol):
    """An Observer that knows more events of a call. kinds: the type of the value of each."""

    kinds: Mapping[str, Any]
    event: Callable[[str, Any], None]


class AgentCall:
    """The agent of a shard. start: starts it, with a pipe for its errors; lost: why it may have ended.

    located: names the shard in a problem of its machine. What it sends is checked: a shard may be of another version,
    or not be ours. All sizes and times are limited.
    """

    def __init__(
        self, shard: str, start: Callable[[IO[bytes]], ShardCommand], lost: Callable[[], Problem | None],
        located: Callable[[Problem], Problem] = lambda problem: problem,
    ) -> None:  # fmt: skip
        self.shard, self._lost, self._located = shard, lost, located
        self._lock, self._calls = threading.Lock(), 0
        self._said = b""  # the end of its standard error
        self._late = ""
        errors, far = os.pipe()
        self._listener = threading.Thread(target=self._listen, args=(errors,), daemon=True)
        self._listener.start()
        with os.fdopen(far, "wb") as stream:
            self._process = start(stream)
        atexit.register(self.close)
        self.clock = min((self._compared() for _ in range(_COMPARED)), key=lambda each: each.bound_ns)

    def _listen(self, errors: int) -> None:
        with os.fdopen(errors, "rb") as stream:
            while piece := os.read(stream.fileno(), 1 << 16):
                self._said = (self._said + piece)[-_MOST_SAID:]

    def _compared(self) -> ClockOffset:
        """The clocks, by one exchange: the shard reads its clock between the question and the answer."""
        before = time.monotonic_ns()
        there: int = self.call({"call": CLOCK, "args": [], "kwargs": {}}, within=_CLOCK_S)
        after = time.monotonic_ns()
        return ClockOffset(there - (before + after) // 2, (after - before) // 2)

    def call(self, request: Mapping[str, Any], observer: Observer | None = None, within: float = _ANSWER_S) -> Any:
        """One call. request: data for JSON. MachineError for an answer that is none, or after `within` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101
        name = request["call"]
        part = parts(KIND).get(name)
        kind = values.result_kind(name if part is None else part.target)
        with self._lock, self._ending_after(within):
            self._calls += 1
            try:
                self._process.stdin.write(json.dumps({**request, "number": self._calls}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                raise self._ended() from None
            for _ in range(_MOST_EVENTS):
                if not (line := self._process.stdout.readline(LINE_BYTES)):
                    raise self._ended()
                try:
                    answer = _answer(line)
                    if answer["number"] != self._calls:  # of a call that Ctrl-C has interrupted
                        continue
                    if "event" in answer:
                        _tell(observer, answer)
                        continue
                    if "error" in answer:
                        error = self._error(answer)
                    else:
                        return values.load(answer["result"], kind)
                except (ValueError, TypeError, KeyError, RecursionError) as wrong:
                    if self._late:
                        raise self._ended() from None
                    raise self._refused(f"{wrong or type(wrong).__name__}") from None
                raise error
            raise self._refused(f"more than {_MOST_EVENTS} events")

    @contextmanager
    def _ending_after(self, seconds: float) -> Iterator[None]:
        """End the agent after some seconds: then its output ends, and so the call."""

        def end() -> None:
            self._late = f"has not answered within {seconds:g} s"
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def tell(self, line: bytes) -> None:
        """Write a line beside a call in progress; the function that is called reads it. Nothing when it has ended."""
        assert self._process.stdin is not None  # noqa: S101
        with suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _error(self, answer: Mapping[str, Any]) -> HeddleError:
        kind = _ERRORS.get(answer["error"])
        if kind is None:  # a defect of Heddle in the shard, or so it says
            why = f"has failed:\n{str(answer['text'])[-_MOST_SAID:]}"
            return MachineError(Problem("", f"shard {self.shard}", why, "report this text, and what you typed"))
        problems = [Problem(*(str(each)[:_MOST_SAID] for each in row)) for row in answer["problems"]]
        if not problems:
            raise ValueError("an error without a problem")
        return kind(*(self._located(each) if kind is MachineError else each for each in problems))

    def _refused(self, why: str) -> MachineError:
        """The error of an answer that is none. Nothing more is asked of that agent."""
        self._process.kill()
        hint = "does the pod have another version of Heddle? ./inv down LAB, then up, with the image of this version"
        return MachineError(Problem("", f"the answer of shard {self.shard}", f"cannot be used: {why[:200]}", hint))

    def _ended(self) -> HeddleError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._listener.join(_END_S)
        said = self._said.decode(errors="replace").strip().splitlines()
        if self._process.poll() == _NOT_FOUND:
            why = "has no server of agents: its image is of an older Heddle"
            return MachineError(self._located(Problem("", "its pod", why, _IMAGE)))
        why = self._late or (f"has ended: {said[-1]}" if said else "has ended")
        return MachineError(self._lost() or self._located(Problem("", "its agent", why, "run it again")))

    def kill(self) -> None:
        """End it now: a call in progress raises."""
        self._process.kill()

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
        self._listener.join(_END_S)


def _answer(line: bytes) -> Mapping[str, Any]:
    if not line.endswith(b"\n"):
        raise ValueError(f"a line of more than {LINE_BYTES} bytes" if len(line) == LINE_BYTES else "a line is cut off")
    answer = parsed(line)
    if not isinstance(answer, dict):
        raise TypeError(f"is a {type(answer).__name__}")
    return answer


def _tell(observer: Observer | None, answer: Mapping[str, Any]) -> None:
    """Pass on a line for the user, or an event that the observer knows."""
    (text,) = answer["args"]
    if isinstance(observer, EventObserver) and answer["event"] in observer.kinds:
        observer.event(answer["event"], values.load(text, observer.kinds[answer["event"]]))
        return
    if answer["event"] not in _EVENTS or not isinstance(text, str):
        raise ValueError("is no line for the user")
    if observer is not None:
        (observer.say if answer["event"] == "say" else observer.warn)(text[:_MOST_SAID])


def removed(lab: str) -> Problem | None:
    """That `down` removes a lab, or has removed it; None when it does not."""
    record = state.read_record(lab)
    if record is not None and record.phase != "ending":
        return None
    return Problem("", f"lab {lab}", "was removed by ./inv down", "./inv up starts it again")


def call_all(
    agents: Sequence[AgentCall], request: Callable[[AgentCall], Mapping[str, Any]], observer: Observer | None = None,
    wait_s: float = 0.0,
) -> list[Any]:  # fmt: skip
    """Call several agents at the same time; errors of one kind are raised together. request: what each is sent."""
    within = _ANSWER_S + wait_s
    if len(agents) == 1:
        return [agents[0].call(request(agents[0]), observer, within)]
    with ThreadPoolExecutor(max(1, len(agents)), thread_name_prefix="shards") as pool:
        futures = [pool.submit(agent.call, request(agent), observer, within) for agent in agents]
        errors = [error for each in futures if isinstance(error := each.exception(), HeddleError)]
        if errors:
            kind = type(errors[0])
            raise kind(*dict.fromkeys(problem for each in errors for problem in each.problems))
        return [each.result() for each in futures]
