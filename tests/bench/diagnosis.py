"""How often a diagnosis is right: faults of many kinds at random places, one or two at a time, in `zone` and `dc`.

Each fault is in force during a run and during the diagnosis. The loads are light, or fill queues. Right: the verdict
has the cause and the object. Of two faults: both are named, or one is named and the other is listed as not judged, as
where the first one hides it. Wrong: the verdict is a fault that is not there. Else it is not established. Healthy
fabrics must raise no alarm.

Where all switches have one seed, polarisation is the cause: to set the seed of a single switch would not help. Where a
single switch has another one, its seed is the cause, also if the switch is polarised by it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from heddle.base.events import Observer, Silent
from heddle.base.problems import HeddleError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.run import run
from heddle.runs.store import History
from heddle.traffic.options import RunOptions
from heddle_plugins.engineering.diagnosis.case import Finding
from heddle_plugins.engineering.diagnosis.diagnosis import Diagnosis, diagnose
from heddle_plugins.engineering.runsection import verdict_text
from tests import incidents

from . import Figure, at_least, at_most

FAULTS: Final = 60
SEED: Final = "HEDDLE_BENCH_SEED"
_LAB: Final = "benchdiag"
_FABRICS: Final = ("zone", "dc")
_LOADS: Final[tuple[Mapping[str, Any], ...]] = (
    {"collective": "all-reduce", "sizes": (1 << 20,), "iters": 3, "qps": 2},
    {"collective": "all-to-all", "sizes": (1 << 19,), "iters": 3},
    {"collective": "permutation", "sizes": (1 << 19,), "iters": 4, "qps": 4},
    {"collective": "incast", "sizes": (1 << 20,), "iters": 3},  # busy: full queues, marks and pauses
    {"collective": "all-to-all", "sizes": (1 << 21,), "iters": 3, "qps": 8},
)
_DOUBLE: Final = 3  # one of so many is two faults at once
_HEALTHY: Final = 6  # one for each of so many faults
_NONE: Final = "none"


def figures(observer: Observer, runs: int) -> Iterator[Figure]:
    """runs: faults. The seed is HEDDLE_BENCH_SEED, else random; it is printed."""
    seed = int(os.environ.get(SEED, "") or random.SystemRandom().randrange(1 << 16))
    observer.say(f"diagnosis: seed {seed} ({SEED}={seed} repeats it)")
    rng = random.Random(seed)
    table: Counter[tuple[str, str]] = Counter()
    longest, wrong, false_alarms, healthy = 0.0, 0, 0, 0
    for at, fabric in enumerate(_FABRICS):
        share = (runs + len(_FABRICS) - 1 - at) // len(_FABRICS)
        labs.up(load_fabric(fabric, name=_LAB), observer=Silent(), rollback=True)
        try:
            for number, kind in enumerate(_kinds(fabric, share, rng)):
                lab = open_lab(_LAB)
                some = [kind(lab, rng)]
                if some[0].cause and number % _DOUBLE == 0:
                    more = (each(lab, rng) for each in rng.sample(incidents.BESIDE, len(incidents.BESIDE)))
                    some.append(next(each for each in more if each.cause != some[0].cause))
                found, seconds = _tried(lab, some, rng.choice(_LOADS))
                longest = max(longest, seconds)
                said, right = _judged(found, some) if len(some) == 1 else _judged_both(found, some)
                name = " and ".join(each.cause for each in some) or _NONE
                table[name, said if right else f"{said}!"] += 1
                healthy += name == _NONE
                false_alarms += name == _NONE and found.fault
                missed = name != _NONE and found.fault and not any(_judged(found, [each])[1] for each in some)
                wrong += missed
                where = "; ".join(", ".join(sorted(each.objects)[:2]) for each in some)
                mark = "right" if right else "WRONG" if missed else "not established"
                observer.say(f"{fabric} {name} {where}: {mark}: {verdict_text(found)}, {seconds:.1f} s")
        finally:
            labs.down(_LAB, Silent())
    for line in _lines(table):
        observer.say(line)
    faults = sum(count for (cause, _), count in table.items() if cause != _NONE)
    good = sum(count for (cause, said), count in table.items() if cause not in (_NONE,) and not said.endswith("!"))
    yield at_least("diagnosis: right cause and object", good / max(1, faults), "share", 0.9, f"{faults} faults")
    yield at_most("diagnosis: wrong verdict", wrong / max(1, faults), "share", 0.02)
    yield at_most("diagnosis: false alarms", float(false_alarms), f"of {healthy}", 0)
    yield at_most("diagnosis: the longest", longest, "s", 30.0)


def _kinds(fabric: str, count: int, rng: random.Random) -> list[Any]:
    """Every kind as often as the others, in random order, with healthy runs in between."""
    every = [*incidents.KINDS, *([incidents.polarised] if fabric == "dc" else [])]
    rng.shuffle(every)
    found = [every[at % len(every)] for at in range(count)] + [incidents.healthy] * max(1, count // _HEALTHY)
    rng.shuffle(found)
    return found


def _tried(lab: Lab, some: Sequence[incidents.Incident], load: Mapping[str, Any]) -> tuple[Diagnosis, float]:
    """A run with one fault or two, and its diagnosis with the seconds that it took."""
    with ExitStack() as stack:
        for each in some:
            stack.enter_context(each.around())
        options = {key: value for each in some for key, value in each.options.items()}
        with suppress(HeddleError):  # a run may fail for its fault; it is kept
            run(lab, RunOptions(**{**load, **options}), Silent())
        began = time.monotonic()
        history = History.of(lab)
        found = diagnose(history.read(history.ids()[-1]), lab, Silent())
        return found, time.monotonic() - began


def _judged(found: Diagnosis, some: Sequence[incidents.Incident]) -> tuple[str, bool]:
    """The cause that the verdict has, and whether it is right."""
    verdict, incident = found.verdict, some[0]
    if verdict is None or not found.fault:
        return _NONE, not incident.cause
    return verdict.cause, _names(verdict, incident)


def _judged_both(found: Diagnosis, some: Sequence[incidents.Incident]) -> tuple[str, bool]:
    """The causes of two faults that are named, and whether the rest is listed as not judged."""
    named = [each.cause for each in some if any(_names(finding, each) for finding in found.findings)]
    open_ = [each.cause for each in some if each.cause not in named]
    return " and ".join(named) or _NONE, bool(named) and all(cause in found.not_checked for cause in open_)


def _names(finding: Finding, incident: incidents.Incident) -> bool:
    places = {finding.object, *(finding.also if finding.cause == "polarisation" else ())}
    return finding.cause == incident.cause and bool(places & incident.objects)


def _lines(table: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """The confusion table: a line for each kind, with the verdicts. An `!` marks a wrong cause or object."""
    yield "set                  verdicts (! is not right)"
    for cause in sorted({cause for cause, _ in table}):
        row = [f"{said} {count}" for (one, said), count in sorted(table.items()) if one == cause]
        yield f"{cause:<20} {', '.join(row)}"
