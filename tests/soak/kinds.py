"""What a round of `./inv soak` does to a lab before `down`: each kind of kill, races of verbs, damaged files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Final

from heddle.base import owners, state
from heddle.base.problems import HeddleError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.status import LabStatus, status
from heddle.runtimes.netns_cleanup import namespaces_of
from heddle.shards.server import COMMAND
from heddle.switch.pfc import control as pfc
from tests import localshards
from tests.fuzz.mutate import damaged, odd_json
from tests.machine import patience, until
from tests.soak.memory import memory
from tests.soak.victim import FABRIC, PATIENT, Blow, Victim, finished

Round = Callable[[Victim, random.Random], Blow]

RUN: Final = ("run", "--lab", "NAME", "--collective", "all-reduce", "--size", "1M", "--iters", "4")
_RACERS: Final = (("up", FABRIC, "--name", "NAME"), ("down", "NAME"), ("status", "NAME"), ("status",), RUN)
_AT_ONCE: Final = 4
_EXPERIMENT: Final = {
    "title": "Soak",
    "fabric": {"use": FABRIC},
    "runs": {"one": {"run": {"collective": "all-reduce", "size": "256K", "iters": 2}}},
    "checks": {"bandwidth": {"value": "busbw(one)"}},
}
_DAMAGES: Final = 6  # of one lab

# In a process of its own: `up` of one fabric after the other, which kills itself before one of its steps. Prints the
# fabric that comes up, and the number of steps. CALLS: what is a step beside commands and what is reported.
_STEPS: Final = """
import importlib, itertools, os, signal, sys
from heddle.base.events import Silent
from heddle.base.process import Journal
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.status import LabStatus, status
from heddle.runtimes.netns_cleanup import namespaces_of

name, last, *fabrics = sys.argv[1:]
numbers = itertools.count(1)
done = 0

def step():
    global done
    done = next(numbers)
    if done == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

def before(function):
    return lambda *words, **more: (step(), function(*words, **more))[1]

class Steps(Silent):
    def begin(self, step_name, total=None):
        step()

def bring(fabric, observer):
    print(fabric, flush=True)
    lifecycle.up(load_fabric(TINY, name=name, overrides=fabric.split()), observer=observer, change=True, timeout=120)

if len(fabrics) > 1:
    bring(fabrics.pop(0), Silent())
Journal.note, Journal.comment = before(Journal.note), before(Journal.comment)
for path in CALLS:
    *places, called = path.split(".")
    owner = importlib.import_module("heddle_plugins.engineering.labchange")
    for each in places:
        owner = getattr(owner, each)
    setattr(owner, called, before(getattr(owner, called)))
for fabric in fabrics:
    bring(fabric, Steps())
print(done)
"""
_SMALL: Final = "racks=1 ctsw=1 hosts_per_rack=1"
# All that an edit can do: a rack and a spine come or go, and rates and thresholds change.
_TWO: Final = "racks=2 ctsw=2 hosts_per_rack=1"
_THREE: Final = "racks=3 ctsw=1 hosts_per_rack=1 link.fabric=50mbit queues.ecn.kmax=300KB"
_OF_CHANGE: Final = (
    "limits.MachineLimits.raise_for", "state.write_record", "linkstate.configure_bgp", "linkstate.wait",
    "end_processes", "remove_directories", "switch.reduce", "switch.extend", "trees.remove",
    "health.restore_all_routes", "reapply_queues", "record_loaded", "hashing.change",
    "NetnsRuntime.create_part", "NetnsRuntime.start_part", "_Change._step", "Lab.output",
)  # fmt: skip


@dataclass
class Steps:
    """`up` is killed at each entry of its journal, just before it is done, and as each step begins.

    The first round is not killed, and counts the steps. Then each has its turn, first those far apart. fabrics: keys of
    each; from the second on they change the running lab. Then `status` must know that, and `up` go on.
    """

    fabrics: Sequence[str] = (_SMALL,)
    calls: Sequence[str] = ()
    count: int = 0
    _turn: int = 0

    def next(self) -> Round:
        """The next step, also where its round is left out."""
        self._turn += 1
        return self

    def __call__(self, victim: Victim, dice: random.Random) -> Blow:
        step = 0
        if self.count:
            stride = next(
                each for each in range(max(1, self.count * 3 // 8), self.count + 2) if gcd(each, self.count) == 1
            )
            step = 1 + self._turn * stride % self.count
        script = _STEPS.replace("CALLS", repr(self.calls)).replace("TINY", repr(FABRIC))
        process = victim.start(victim.name, str(step), *self.fabrics, script=script)
        said, _ = process.communicate(timeout=patience(120))
        text = f"up killed at step {step} of {self.count}"
        if not self.count:
            assert process.returncode == 0, said
            self.count = int(said.split()[-1])
        elif process.returncode != -signal.SIGKILL:
            raise AssertionError(f"up was not killed at its step {step} of {self.count}: {said}")
        elif len(self.fabrics) > 1:
            text += f", with {said.splitlines()[-1]}" + _went_on(victim, said.splitlines()[-1], dice.random() < 0.7)
        return Blow(text, victim.name, hit=step > 0)


def _went_on(victim: Victim, keys: str, again: bool) -> str:
    """`status` tells what a kill left; with `again`, `up` makes the lab that was wanted."""
    before = _status(victim)
    if not again:
        return f"; then it was {before.state}"
    overrides = [word for key in keys.split() for word in ("--set", key)]
    words = ("up", FABRIC, "--name", "NAME", "--timeout", PATIENT, *overrides)
    victim.run(*words, ends=0)
    now, fabric = _status(victim), load_fabric(FABRIC, name=victim.name, overrides=keys.split()).fabric
    there = {path.name for path in namespaces_of(victim.name)}
    wanted = {f"heddle-{victim.name}-{node.name}" for node in fabric.nodes}
    assert now.state == "up" and there == wanted, f"after {before} came {now}, with {sorted(there)}"
    assert "is already up with this fabric" in victim.run(*words, ends=0)
    return f"; it was {before.state}, and up went on"


def _status(victim: Victim) -> LabStatus:
    """Up and whole, or broken with a reason."""
    victim.run("status", "NAME")
    with victim.here():
        (found,) = status(victim.name)
    assert found.faults if found.state == "broken" else found.converged, found
    return found


def up(victim: Victim, dice: random.Random) -> Blow:
    return victim.killed(dice, "up", FABRIC, "--name", "NAME")


def _verb(*choices: tuple[str, ...], what: str = "") -> Round:
    """Kill one of these verbs in a lab that is up."""

    def kill(victim: Victim, dice: random.Random) -> Blow:
        victim.up()
        return victim.killed(dice, *dice.choice(choices), what=what)

    return kill


def experiment(victim: Victim, dice: random.Random) -> Blow:
    """The lab is named after the process (plugins/experiments/running.py)."""
    path = victim.scratch / "soak.yml"
    path.write_text(json.dumps(_EXPERIMENT))
    return victim.killed(dice, "experiment", str(path), lab=lambda pid: f"exp{pid % 10**8}")


def agents(victim: Victim, dice: random.Random) -> Blow:
    """The PFC agent, its keeper, or both, while packets are sent."""
    victim.up()
    which, part = dice.choice(("agent", "keeper", "agent and keeper")), dice.random()
    process = victim.start(*RUN)
    until(lambda: process.poll() is not None or owners.working_on(victim.name) is not None, every=0.001)
    after = part * victim.usual.get(" ".join(RUN), 1.0)
    time.sleep(after)
    with victim.here():
        found = pfc.alive(victim.name)
    pids = [pid for name, pid in (("agent", found.agent), ("keeper", found.keeper)) if name in which and pid]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    finished(process)
    return Blow(f"{which} killed {after:.3f} s after the lock of a run", victim.name, hit=bool(pids))


def shards(victim: Victim, dice: random.Random) -> Blow:
    """A shard's agent, during `up` or a run of a fabric over two kernels."""
    with_run, part = dice.random() < 0.7, dice.random()
    text: list[str] = []

    def end() -> None:
        with suppress(AssertionError):  # the verb ended before
            until(lambda: _agents_of(victim), 20, every=0.002)
            time.sleep(part * (1.0 if with_run else 2.0))
            for pid in _agents_of(victim)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    text.append(f"the agent of a shard killed (process {pid})")

    with victim.here():
        loaded, killer = load_fabric(FABRIC, name=victim.name), threading.Thread(target=end)
        if with_run:
            lifecycle.up(loaded, runtime=localshards.NAME)
            killer.start()
            victim.run(*RUN)
        else:
            killer.start()
            with suppress(HeddleError):
                lifecycle.up(loaded, runtime=localshards.NAME)
        killer.join()
    return Blow("; ".join(text) or "no agent was found", victim.name, hit=bool(text))


def _agents_of(victim: Victim) -> list[int]:
    """Processes of commands in shards that their servers have started."""
    mine = f"HEDDLE_STATE_DIR={victim.scratch / 'shards' / victim.name}/".encode()
    found = []
    for path in sorted(Path("/proc").glob("[0-9]*/environ"), key=lambda each: int(each.parent.name)):
        with suppress(OSError):
            if mine in path.read_bytes() and (path.parent / "comm").read_text() == f"{COMMAND}\n":
                found.append(int(path.parent.name))
    return found


def races(victim: Victim, dice: random.Random) -> Blow:
    """Verbs at the same time, from two terminals each of two state directories."""
    chosen = [(dice.choice(("state", "state2")), dice.choice(_RACERS)) for _ in range(_AT_ONCE)]
    chosen[0] = (chosen[0][0], _RACERS[0])
    if dice.random() < 0.5:
        victim.up()
    begun = []
    for place, words in chosen:
        begun.append(victim.start(*words, state=place))
        time.sleep(dice.random() * 0.3)
    for process in begun:
        finished(process)
    for place in ("state", "state2"):  # the owner's, and the other's, whose record of a lab that is gone may be left
        victim.run("down", victim.name, state=place)
    return Blow(", ".join(f"{words[0]} ({place})" for place, words in chosen), victim.name)


def _odd(dice: random.Random, data: bytes) -> bytes:
    """A file that was cut, emptied, changed, or written by another version or another program."""
    found: list[bytes] = [
        data[: dice.randrange(len(data) + 1)],
        damaged(dice, data),
        dice.choice((b"", b"[]", b"{}", b"null", b'"x"', b"7", b"\0" * 64, b"{", b"[" * 100_000)),
    ]
    with suppress(ValueError):
        document = json.loads(data)
        found += [odd_json(dice, document), odd_json(dice, document)]
        if isinstance(document, dict):
            other = dice.choice(({"format": 99}, {"version": "0.0.1"}, {"phase": "x"}, {"phase": "ending"}))
            found.append(json.dumps({**document, **other}).encode())
    return dice.choice(found)


_READERS: Final[Sequence[tuple[str, ...]]] = (
    ("status",), ("status", "NAME"), ("up", FABRIC, "--name", "NAME"),
    (*RUN[:-4], "--size", "64K", "--iters", "1"),
    ("validate", "NAME"), ("fault", "list", "--lab", "NAME"), ("paths", "--lab", "NAME"), ("runs", "--lab", "NAME"),
    ("queues", "--lab", "NAME"), ("up", "--repair", "--name", "NAME"), ("te", "show", "--lab", "NAME"),
)  # fmt: skip


def damage(victim: Victim, dice: random.Random) -> Blow:
    """Files of a running lab are damaged, and verbs read them. Before `down` one is damaged and stays so."""
    victim.up()
    for words in (_READERS[3], ("fault", "rtsw1:eth1", "--loss", "1/1000", "--lab", "NAME")):
        victim.run(*words, ends=0)
    with victim.here():
        place = state.lab_dir(victim.name)
    kept = victim.scratch / "kept"
    shutil.copytree(place, kept)
    text = ""
    try:
        for _ in range(_DAMAGES):
            # The record and the faults are what most verbs read.
            files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.stat().st_size]
            first = [path for path in files if path.parent == place and path.suffix == ".json"]
            path = dice.choice(first if first and dice.random() < 0.6 else files or [place / "lab.json"])
            path.parent.mkdir(parents=True, exist_ok=True)
            odd = _odd(dice, path.read_bytes() if path.exists() else b"")
            path.write_bytes(odd)
            text = f"{path.relative_to(place)} damaged ({odd[:60]!r})"
            for words in dice.sample(_READERS, 3):
                try:
                    victim.run(*words)
                except Exception as error:
                    raise type(error)(f"{text}: {error}") from None
            if not any(each.name == path.name for each in kept.rglob("*")) or dice.random() < 0.8:
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(kept, place)
    finally:
        shutil.rmtree(kept)
    return Blow(text, victim.name)


_LAB: Final = ("--lab", "NAME")
_TIMED: Final = ("loss=1/64,from=0.1s,to=1s", "down,from=0.1s,to=1s")
# How often each is done, at least.
KINDS: Final[Mapping[str, tuple[Round, int]]] = {
    "up": (up, 50),
    "down": (_verb(("down", "NAME")), 20),
    "run": (_verb(RUN), 20),
    "te": (
        _verb(("te", "apply", "--workload", "all-to-all,qps=4", *_LAB), ("te", "watch", "--interval", "1s", *_LAB),
              what="te"), 20,
    ),
    "fault": (
        _verb((*RUN, "--fault", f"rtsw1:eth1,{_TIMED[0]}"), (*RUN, "--fault", f"rtsw1:eth1,{_TIMED[1]}")), 20,
    ),
    "experiment": (experiment, 20),
    "launch": (_verb(("launch", "--ranks", "4", *_LAB, "--", "python3", "traffic/programs/ring.py", "64", "2000")), 20),
    "agents": (agents, 20),
    "shards": (shards, 20),
    "memory": (memory, 20),
    "races": (races, 100),
    "damage": (damage, 20),
}  # fmt: skip
STEPS: Final = "steps"  # of `up`
CHANGE: Final = "change"  # steps of `up` of an edited fabric
COUNTED: Final[Mapping[str, Callable[[], Steps]]] = {  # as often as there are steps
    STEPS: Steps,
    CHANGE: lambda: Steps((_TWO, _THREE, _TWO), _OF_CHANGE),
}


def schedule(seed: int, chosen: Mapping[str, int]) -> Iterator[str]:
    """The kind of each round: all as often as wanted, in an order that follows from the seed; then again."""
    dice = random.Random(seed)
    while any(chosen.values()):
        rounds = [name for name, times in chosen.items() for _ in range(times)]
        dice.shuffle(rounds)
        yield from rounds
