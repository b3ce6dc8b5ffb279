"""What goes between a coordinator and its shards: values as JSON, marked functions, datagrams of carriers, losses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_interface, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Literal, cast

import numpy as np
import pytest

from heddle.base import values
from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.base.resources import HERE
from heddle.kernel.fib import Fib, NextHop
from heddle.lab.cutlinks import FarTrip, ShardCarrier
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import concat, operation, spread
from heddle.runtimes import shardcalls
from heddle.shards.carrier import SILENT_S, FarShard, opened, sealed
from heddle.switch.links.cuts import CutCount, TunnelUse, tunnel_uses
from heddle.switch.queues.cells import LAYOUTS
from tests.answers import Answers


def again(value: Any) -> Any:
    return values.load(json.loads(json.dumps(values.dump(value))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 0.5, "a text", b"\0\xff", [1, [2]], (1, "a", (2,)), {(1, "a"): {2, 3}}, frozenset({"x"}),
        Path("/a b/c"), ip_network("10.0.0.0/24"), ip_interface("fd00::1/64"), LabPart.FIBS | LabPart.DROPS,
        Problem("where", "what", "why", "hint"),
    ],
)  # fmt: skip
def test_a_value_is_the_same_on_the_other_side(value: Any) -> None:
    found = again(value)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("name", [*LAYOUTS])
def test_so_is_an_array_with_its_layout(name: str) -> None:
    table = np.zeros(5, LAYOUTS[name])
    table.view(np.uint8)[:] = np.arange(table.nbytes) % 251
    found = again(table)
    assert found.dtype == table.dtype and (found == table).all()


def test_a_text_that_names_anything_else_is_refused(answers: Answers) -> None:
    answers(values.load)
    with pytest.raises(ValueError, match=r"is not a value: TypeError: .*not '?int"):  # Python 3.13 says it otherwise
        values.load({"!": "path", "text": 1})


def test_what_a_text_unpacks_to_is_limited() -> None:
    for value in (bytes(1 << 20), [bytes(1 << 19)] * 2, np.zeros(1 << 17), {1: bytes(1 << 20)}):
        assert values.load(values.dump(value), room=1 << 20) is not None
        with pytest.raises(ValueError, match="when it is unpacked"):
            values.load(values.dump(value), room=(1 << 20) - 1)
    packed = values.dump(bytes(100))
    with pytest.raises(ValueError, match="not whole"):
        values.load({**packed, "text": packed["text"][:-5]})


def test_what_occurs_again_is_sent_once_and_is_one_object_on_the_other_side() -> None:
    over = tuple(NextHop(f"eth{port}", port, "169.254.0.1") for port in range(18))
    every = [Fib(name, dict.fromkeys(ip_network("10.0.0.0/16").subnets(new_prefix=24), over)) for name in "ab"]
    found = again(every)
    assert found == every and len({id(hops) for fib in found for hops in fib.routes.values()}) == 1
    assert len(json.dumps(values.dump(every))) < 32_000
    like = [NextHop("a", 1, "", 1, dead=False), NextHop("a", 1, "", cast(int, True), dead=False), (1,), (True,), (1.0,)]
    assert repr(again(like)) == repr(like), "equal is not the same"


def test_what_a_text_repeats_is_limited() -> None:
    bomb: Any = {"!": "tuple", "items": [0]}
    for number in range(60):  # each is twice the one before it
        bomb = {"!": "tuple", "items": [bomb, {"!": number}]}
    with pytest.raises(ValueError, match="repeats more than"):
        values.load(bomb)


def test_nesting_is_limited() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="RecursionError"):
        values.load(deep)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (list[int], [[], [1]], [None, ["x"], {1}, "1"]),
        (Mapping[str, tuple[int, ...]], [{}, {"a": (1, 2)}], [{"a": [1]}, {1: ()}, {"a": ("x",)}]),
        (tuple[str, float] | None, [None, ("a", 1), ("a", 0.5)], [("a", "b"), 1]),
        (frozenset[str], [frozenset("a")], [{"a"}, frozenset([1])]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (list[FarTrip], [[FarTrip("a", True, 1, 1)]], [[Problem("", "", "")]]),
        (Any, [1, None], []),
    ],
)
def test_a_result_has_the_type_that_its_function_returns(kind: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(values.conforms(each, kind) for each in good)
    assert not any(values.conforms(each, kind) for each in bad)


def test_the_type_of_a_call_is_that_of_its_function() -> None:
    assert values.result_kind("heddle.lab.cutlinks:carriers") == list[ShardCarrier]
    assert values.result_kind("heddle.shards.building:clock") is int


ROGUE = """
import os, re, sys
for number, _ in enumerate(sys.stdin.buffer):
    out = b'{"result": 5}\\n' if number < 5 else %s
    if isinstance(out, bytes):
        out = re.sub(rb'(?m)^{', b'{"number": %%d, ' %% (number + 1), out).replace(b", }", b"}")
    sys.stdout.buffer.write(out)
    sys.stdout.buffer.flush()
"""
RESULTS = {
    "another type": (b'{"result": "x"}\n', "is a str"),
    "no JSON": (b"hello\n", "Expecting value"),
    "no mapping": (b"[1]\n", "is a list"),
    "no result": (b"{}\n", "result"),
    "deep": (b'{"result": ' + b"[" * 100_000 + b"\n", "nested too deeply"),
    "large number": (b'{"result": ' + b"9" * 10_000 + b"}\n", "4300"),
    "a program": (b'{"result": {"!": "data", "of": "heddle.cli.__main__:main", "fields": []}}\n', "not a class"),
    "a method of observers": (b'{"event": "__init__", "args": ["x"]}\n', "no line for the user"),
    "a line that is none": (b'{"event": "say", "args": [1]}\n', "no line for the user"),
    "an error without rows": (b'{"error": "InputError", "problems": 7}\n', "int"),
    "an error with wrong rows": (b'{"error": "InputError", "problems": [["a", "b", "c", "d", "e"]]}\n', "argument"),
    "an error without problems": (b'{"error": "InputError", "problems": []}\n', "without a problem"),
    "an endless line": (b"x" * (1 << 20), "a line of more than"),
    "endless events": (b'{"event": "say", "args": ["x"]}\n' * 200, "more than 100 events"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_shard_that_answers_anything_is_an_error_with_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shardcalls, "LINE_BYTES", 1 << 19)
    monkeypatch.setattr(shardcalls, "_MOST_EVENTS", 100)
    answer, why = RESULTS[name]
    (tmp_path / "answer").write_bytes(answer)
    with asked(f"open({str(tmp_path / 'answer')!r}, 'rb').read()") as agent:
        with pytest.raises(MachineError, match=rf"the answer of shard s2 cannot be used: .*{why}"):
            agent.call(CALL, Silent())
        agent._process.wait(10)  # nothing more is asked of it
        assert not agent.alive


def test_what_a_shard_says_is_bounded_and_steers_no_terminal(tmp_path: Path) -> None:
    said = json.dumps({"error": "CheckError", "problems": [["\x1b[2J", "w", "y", "h" * 10**6]]}) + "\n"
    (tmp_path / "answer").write_text(said)
    with asked(f"open({str(tmp_path / 'answer')!r}, 'rb').read()") as agent, pytest.raises(CheckError) as caught:
        agent.call(CALL)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 1 << 17
    with asked("os.write(2, b'x' * (1 << 22) + b'\\n\x1b[2Jlast\\n') and sys.exit(3)") as agent:
        with pytest.raises(MachineError, match=r"its agent has ended: \?\[2Jlast"):
            agent.call(CALL)
        assert len(agent._said) <= 1 << 16


CALL = {"call": "heddle.shards.building:clock", "args": [], "kwargs": {}}


@contextmanager
def asked(answer: str) -> Iterator[shardcalls.AgentCall]:
    """An agent that compares clocks, and then answers with the value of an expression."""

    def start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", ROGUE % answer]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    agent = shardcalls.AgentCall("s2", start, lambda: None)
    try:
        yield agent
    finally:
        agent.close()


def test_an_agent_calls_only_what_is_open() -> None:
    def start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = ["env", f"PYTHONPATH={HERE.python_path}", sys.executable, "-P", "-m", shardcalls.AGENT]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    agent = shardcalls.AgentCall("s1", start, lambda: None)
    stdin, stdout = agent._process.stdin, agent._process.stdout
    assert stdin is not None and stdout is not None
    try:  # as another coordinator would ask
        for name in ("os:getcwd", "heddle.base.state:labs", "heddle.runtimes.netns:NetnsRuntime", "labs"):
            request: dict[str, Any] = {"call": name, "lab": "x", "live": {}, "args": [], "kwargs": {}, "number": 99}
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            answer = json.loads(stdout.readline())
            assert answer["problems"] == [["", name, "is not an operation", ""]] and answer["error"] == "InputError"
    finally:
        agent.close()


def test_what_is_no_value_is_not_sent() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        values.dump(object())


@spread(concat, nodes=lambda names: names)
def _named(lab: Any, names: list[str]) -> list[str]:
    return [f"{lab.name}:{name}" for name in names]


def test_a_marked_function_runs_here_or_once_in_each_shard() -> None:
    asked: list[Any] = []

    def call(name: str, nodes: Any, args: Any, kwargs: Any, wait_s: float) -> list[list[str]]:
        asked.append((name, nodes, args, kwargs, wait_s))
        return [["s1"], ["s2"]]

    here = SimpleNamespace(name="x", runtime=SimpleNamespace(shards=lambda _: None))
    apart = SimpleNamespace(name="x", runtime=SimpleNamespace(shards=lambda _: SimpleNamespace(call=call)))
    assert _named(here, ["a", "b"]) == ["x:a", "x:b"] and asked == []
    assert _named(apart, ["a"]) == ["s1", "s2"]
    assert asked == [(f"{__name__}:_named", ["a"], (["a"],), {}, 0)]
    assert operation(_named) is not None and operation(test_what_is_no_value_is_not_sent) is None


def test_a_call_may_take_as_long_as_its_caller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for convergence within 2,000 s is not ended after the 900 s that the work of a call may take."""
    monkeypatch.setattr(shardcalls, "_ANSWER_S", 0.3)
    slow = "__import__('time').sleep(0.6) or b'{\"result\": 5}\\n'"
    with asked(slow) as agent:
        assert shardcalls.call_all([agent], lambda _: CALL, wait_s=60) == [5]
        with pytest.raises(MachineError, match=r"has not answered within 0\.3 s"):
            shardcalls.call_all([agent], lambda _: CALL)
    with asked(slow) as one, asked(slow) as two:
        assert shardcalls.call_all([one, two], lambda _: CALL, wait_s=60) == [5, 5]
    waits: list[float] = []

    def call(*words: Any) -> list[Any]:
        waits.append(words[-1])
        return []

    shards = SimpleNamespace(call=call)
    runtime, blueprint = SimpleNamespace(shards=lambda _: shards), SimpleNamespace(timeout=1234.0)
    lab = Lab("x", cast(Any, None), cast(Any, runtime), Path(), Path(), cast(Any, blueprint))
    lab.wait(timeout=2000)
    lab.wait()
    assert waits == [2000, 1234]


def _said(boot: str, number: int, *, seen: str = "me", link: tuple[int, int] = (3, 7), **more: Any) -> dict[str, Any]:
    words = {"boot": boot, "number": number, "down": [3], "link": link, "seen": seen}
    return {**words, "sent_ns": 5, "echo_ns": 0, "held_ns": 0, **more}


def _far() -> FarShard:
    return FarShard(0.0, frozenset({(3, 7), (4, 8)}))


def test_a_datagram_needs_the_key() -> None:
    key, data = bytes(32), {"boot": "a"}
    datagram = sealed(key, data)
    assert opened(key, datagram) == data
    assert opened(bytes(31) + b"x", datagram) is None and opened(key, datagram[:-1] + b" ") is None
    assert [opened(key, datagram[:size]) for size in range(len(datagram))] == [None] * len(datagram)


def test_only_the_newest_datagram_of_the_present_process_is_taken() -> None:
    far = _far()
    assert far.hear(_said("a", 1), 10.0, "me") and far.down == {3}
    assert not far.hear(_said("a", 1), 11.0, "me"), "a copy"
    assert far.hear(_said("a", 5, down=[]), 11.0, "me")
    assert not far.hear(_said("a", 4), 11.0, "me") and far.down == frozenset(), "overtaken by a newer one"
    assert far.hear(_said("b", 1, down=[4]), 11.0, "me") and far.down == {4}
    assert not far.hear(_said("a", 9), 11.5, "me"), "of a process that was replaced"
    assert far.alive(11 + SILENT_S - 0.1) and not far.alive(11 + SILENT_S)


def test_a_shard_that_was_never_heard_counts_as_dead_as_soon_as_one_that_is_silent() -> None:
    assert _far().alive(SILENT_S - 0.1) and not _far().alive(SILENT_S)


def test_what_was_recorded_before_this_process_started_has_no_effect() -> None:
    """Else a replayed datagram of a former process would make the present one an old one, for ever."""
    far = _far()
    assert not far.hear(_said("b", 1, seen=""), 1.0, "me") and far.seen == "b"  # to be told that it was heard
    assert far.hear(_said("b", 2), 1.1, "me")
    assert not far.hear(_said("a", 900, seen="my last process"), 1.2, "me")
    assert far.hear(_said("b", 3), 1.3, "me") and far.seen == "b"


def test_a_datagram_from_elsewhere_has_no_effect() -> None:
    far = _far()
    for link in ((7, 3), (3, 8), (5, 7)):  # our own ones sent back; of another pair of shards
        assert not far.hear(_said("a", 1, link=link), 1.0, "me") and not far.seen


def test_a_datagram_that_was_held_back_has_no_effect() -> None:
    far, now = _far(), time.monotonic_ns()
    assert far.hear(_said("a", 1, echo_ns=now - 10**6), 1.0, "me") and 10**6 <= far.rtt_ns < 10**9
    assert not far.hear(_said("a", 2, echo_ns=now - 10**10), 1.5, "me") and far.heard_s == 1.0
    assert far.hear(_said("a", 3, echo_ns=now - 10**10, held_ns=10**10), 2.0, "me")


def test_losses_of_a_tunnel_have_bounds_from_readings_at_different_times() -> None:
    def reading(sent: int, received: int) -> list[CutCount]:
        return [CutCount("a:eth1", "b:eth1", sent, 0, 7, 0), CutCount("b:eth1", "a:eth1", 7, 0, received, 0)]

    quiet = tunnel_uses([reading(10, 8), reading(10, 8)])
    assert quiet == [TunnelUse("a:eth1", 10, 2), TunnelUse("b:eth1", 7, 0)]
    assert tunnel_uses([reading(10, 9), reading(12, 11)])[0] == TunnelUse("a:eth1", 12, 0, 3), "on their way, or lost"
    assert tunnel_uses([reading(10, 9), reading(12, 11), reading(12, 11)])[0] == TunnelUse("a:eth1", 12, 1)
