"""Kill everything that changes a lab, again and again, and look for what is left: `./inv soak`.

A round brings a lab up, kills one process at a random instant (or races verbs, or damages files), and types `down`.
Then nothing of the lab may be left, sysctls are as before, and another lab, whose hosts send counted packets all the
time, has lost none. Meanwhile memory is sampled.

In:  minutes, a seed, kinds. Out: SoakResult. The seed gives the kinds, instants and damage of all rounds.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from os import getpid
from pathlib import Path
from typing import Any, Final, NamedTuple

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.tables import table
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.switch.pfc import control as pfc
from tests import localshards
from tests.machine import until
from tests.soak.kinds import COUNTED, KINDS, Round, schedule
from tests.soak.leaks import Leaks, Slope
from tests.soak.memory import own_group, trouble
from tests.soak.neighbour import Neighbour
from tests.soak.victim import FABRIC, PATIENT, BadEndError, Victim, sysctls

_SHORTEST: Final = 0.1
_ATTEMPTS: Final = 3  # of a kill that comes too late
_SAMPLES_S: Final = 10.0  # between two samples of memory


@dataclass(frozen=True, slots=True)
class SoakResult:
    """wanted: kind -> rounds of the whole sequence. failures: with the command, the instant, and what was left."""

    seed: int
    wanted: Mapping[str, int]
    times: Mapping[str, int]
    left: Mapping[str, int]
    lost: Mapping[str, int]
    sent: int
    slopes: Sequence[Slope]
    failures: Sequence[str]

    @property
    def ok(self) -> bool:
        """Nothing was left or lost, and nothing grows."""
        return not self.failures and all(each.verdict != "LEAK" for each in self.slopes)

    def to_json(self) -> dict[str, Any]:
        kinds = {
            name: {"times": self.times[name], "wanted": wanted, "left": self.left[name], "lost": self.lost[name]}
            for name, wanted in self.wanted.items()
        }
        growth = [dict(zip(("what", "growth", "samples", "verdict"), each.row(), strict=True)) for each in self.slopes]
        return {
            "ok": self.ok, "seed": self.seed, "kinds": kinds, "packets": self.sent, "growth": growth,
            "failures": list(self.failures),
        }  # fmt: skip

    def text(self) -> str:
        """The table of kinds, that of growth, and the failures."""
        rows = [
            (name, f"{self.times[name]} of {wanted}", str(self.left[name]), str(self.lost[name]))
            for name, wanted in self.wanted.items()
        ]
        rows.append(("all", str(sum(self.times.values())), str(sum(self.left.values())), str(sum(self.lost.values()))))
        tables = [table(["kind", "times", "left", "packets lost beside"], rows), f"{self.sent} packets sent beside"]
        if self.slopes:
            tables.append(table(["growth", "per hour", "samples", ""], [each.row() for each in self.slopes]))
        return "\n\n".join([*tables, *self.failures, f"seed {self.seed}: {'passed' if self.ok else 'FAILED'}"])


@dataclass
class _Soak:
    """One soak that runs."""

    victim: Victim
    beside: Neighbour
    before: Mapping[str, str]
    times: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def round(self, kind: str, do: Round, number: int, seed: int) -> bool:
        """One round; False when its kill came too late. What an earlier one has left is under another name."""
        self.victim.name = f"k{getpid() % 10**5:05}{number % 10**5:05}"
        found, what, lab, hit = [], "", self.victim.name, True
        try:
            blow = do(self.victim, random.Random(f"{seed} {number}"))
            what, lab, hit = blow.text, blow.lab, blow.hit
            self.times[kind] += hit
        except Exception as error:  # whatever it is, the rounds go on
            found.append(f"{type(error).__name__}: {error}")
        self.victim.end()
        try:
            self.victim.run("down", lab)
        except BadEndError as error:
            found.append(str(error))
        left = self.victim.left(lab)
        left += [f"sysctl {key} = {value}" for key, value in sysctls().items() if self.before.get(key, value) != value]
        if left:
            with self.victim.here():
                lifecycle.down(lab, force=True)
            for place in (*self.victim.scratch.glob("state*"), self.victim.temporary):
                shutil.rmtree(place, ignore_errors=True)
        self.left[kind] += len(left)
        self.lost[kind] += (lost := self.beside.lost())
        found += [f"left: {each}" for each in left]
        found += [f"{lost} packets of the lab beside were lost"] if lost else []
        if found:
            self.failures.append("\n  ".join([f"round {number}, {kind} ({lab}): {what}", *found]))
        return hit


def soak(
    minutes: float, observer: Observer, *, kinds: Sequence[str] = (), seed: int | None = None, first: int = 1,
    times: Mapping[str, int] | None = None,
) -> SoakResult:  # fmt: skip
    """Rounds until the time is over. first: the round to begin with. times: how often each kind comes, then it ends.

    InputError for a kind that does not exist. Needs root.
    """
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    known = [*COUNTED, *KINDS]
    if not kinds and times is None and (why := trouble()):
        known.remove("memory")
        observer.warn(f"memory is left out: {why}")
    for kind in kinds:
        if kind not in known:
            raise InputError(Problem("", f"soak {kind}", "is not a kind of round", did_you_mean(kind, known)))
    if minutes < _SHORTEST or first < 1:
        raise InputError(Problem("", f"--minutes {minutes:g}", "is too short", "use --minutes 30"))
    observer.say(f"seed {seed}: ./inv soak {','.join(kinds)} --seed {seed} repeats this sequence".replace("  ", " "))
    began = time.monotonic()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-soak-")))
        before, victim, leaks = sysctls(), Victim(top / "victim"), Leaks(stack.enter_context(own_group()))
        beside = stack.enter_context(_beside(top / "beside", watched=times is None))
        stack.enter_context(contextmanager(localshards.registered)(victim.scratch / "shards"))
        running = _Soak(victim, beside.traffic, sysctls())
        every, steps = {name: often for name, (_, often) in KINDS.items()}, {}
        for name in [each for each in COUNTED if each in (kinds or times or known)]:
            steps[name] = COUNTED[name]()
            observer.say(f"round 0: {name} are counted")
            running.round(name, steps[name], 0, seed)
            every[name] = steps[name].count
        wanted = dict(times) if times is not None else {name: every[name] for name in kinds or known}
        for each in running.failures:
            observer.warn(each)
        names = beside.processes().keys()
        last, sampled = sum(wanted.values()) if times is not None else None, 0.0
        for number, kind in enumerate(schedule(seed, wanted), 1):
            if (last is not None and number > last) or time.monotonic() - began > minutes * 60:
                break
            do = steps[kind].next() if kind in steps else KINDS[kind][0]
            if number < first:
                continue
            observer.say(f"round {number}: {kind}")
            failed = len(running.failures)
            # The first time of a command shows how long it takes, so that it can be killed before its end.
            any(running.round(kind, do, number, seed) for _ in range(_ATTEMPTS))
            with suppress(AssertionError):  # agent and keeper replace each other
                until(lambda: beside.processes().keys() == names, 5)
            living = beside.processes()
            if living.keys() != names:
                running.failures.append(f"round {number}: of the lab beside only these run: {living}")
            for each in running.failures[failed:]:
                observer.warn(each)
            if time.monotonic() - sampled > _SAMPLES_S:
                leaks.sample(living)
                sampled = time.monotonic()
        sent = beside.traffic.sent
    failures = list(running.failures)
    failures += [
        f"after all: sysctl {key} = {value}" for key, value in sysctls().items() if before.get(key, value) != value
    ]
    return SoakResult(
        seed, wanted, running.times, running.left, running.lost, sent, leaks.slopes(), failures
    )  # fmt: skip


class _Beside(NamedTuple):
    """The lab beside, and the process of `te watch` in it."""

    name: str
    traffic: Neighbour
    watch: subprocess.Popen[str] | None

    def processes(self) -> dict[str, int]:
        """Those that live as long as the lab."""
        found, watch = pfc.alive(self.name), self.watch
        watching = watch.pid if watch is not None and watch.poll() is None else None
        pids = {"PFC agent": found.agent, "its keeper": found.keeper, "te watch": watching}
        return {name: pid for name, pid in pids.items() if pid}


@contextmanager
def _beside(scratch: Path, *, watched: bool) -> Iterator[_Beside]:
    place, name = Victim(scratch), f"kb{getpid() % 10**6}"
    with place.here():
        lab = lifecycle.up(load_fabric(FABRIC, name=name), timeout=float(PATIENT)).lab
    watch = place.start("te", "watch", "--interval", "2s", "--lab", name) if watched else None
    try:
        with Neighbour(lab) as traffic:
            yield _Beside(name, traffic, watch)
    finally:
        if watch is not None:
            watch.terminate()
            watch.communicate()
        with place.here():
            lifecycle.down(name)
