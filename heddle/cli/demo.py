"""`./inv demo`: the main use of Heddle in a minute. Low entropy makes ECMP uneven; hashing on the QP fixes it.

In:  an observer, and a function that prints each part of the result.
Out: DemoResult: three runs of the same all-reduce, each with the proof of its paths. The lab is removed at the end.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any, Final

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import LoadedFabric, load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.proof.verdict import PathsResult
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from heddle.runtimes.registry import get_runtime
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import parse_source_ports
from heddle.views.pathstext import uplinks

# All QPs of a NIC use one UDP source port, as on some NICs: then flows of a pair differ only in their QP number.
OPTIONS: Final = RunOptions(
    sizes=(1 << 20,), iters=2, warmup=1, placement="cyclic", source_ports=parse_source_ports("fixed")
)
_GAIN_EXPECTED: Final = 1.2


@dataclass(frozen=True, slots=True)
class Act:
    """One of the three runs."""

    title: str
    ecmp: str
    qps: int


ACTS: Final = (
    Act("ECMP by 5-tuple, 1 QP", "flow", 1),
    Act("ECMP by 5-tuple, 16 QPs", "flow", 16),
    Act("E-ECMP (5-tuple and destination QP), 16 QPs", "e-ecmp", 16),
)


@dataclass(frozen=True, slots=True)
class Played:
    """An act and its results."""

    act: Act
    run: RunRecord
    paths: PathsResult


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The three acts, and the seconds of the whole demo."""

    played: tuple[Played, ...]
    seconds: float

    @property
    def gain(self) -> float:
        """busbw of the last act over that of the first."""
        return self.played[-1].run.busbw / self.played[0].run.busbw

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Failures: wrong sums, paths that are not proven."""
        found = []
        for each in self.played:
            if each.run.wrong:
                found.append(Problem("", each.act.title, f"has {each.run.wrong} wrong elements"))
            if not each.paths.agree:
                found.append(Problem("", each.act.title, "has paths that are not proven", "\n".join(each.paths.notes)))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {
            "acts": [
                {
                    "title": p.act.title, "ecmp": p.act.ecmp, "qps": p.act.qps,
                    "results": p.run.to_json()["results"], "avg_busbw": p.run.busbw,
                    "mmr": p.paths.to_json()["mmr"], "agree": p.paths.agree,
                    "machine_limited": p.run.limited,
                }
                for p in self.played
            ],
            "gain": self.gain,
            "seconds": self.seconds,
            "emulated": {"k": self.played[0].run.k},
        }  # fmt: skip

    def text(self) -> str:
        """A table of the three runs, and the conclusion."""
        lines = [f"{'what ran':<46}{'busbw GB/s':>11}{'MMR bytes':>11}{'paths proven':>15}"]
        for p in self.played:
            proven = f"{len(p.paths.flows)} of {len(p.paths.flows)}" if p.paths.agree else "NO"
            lines.append(f"{p.act.title:<46}{p.run.busbw:>11.6f}{p.paths.mmr.bytes or 0:>11.2f}{proven:>15}")
        return "\n".join(
            [*lines, "", *(textwrap.fill(line, 98, break_on_hyphens=False) for line in self._lesson()), ""]
        )

    def _lesson(self) -> list[str]:
        """The conclusion, from the figures of this demo."""
        first, more, last = self.played
        change = more.run.busbw / first.run.busbw
        same = "did not change busbw" if 0.9 < change < 1.1 else f"gave {change:.2f} times the busbw"
        lines = [
            f"16 QPs {same}: with one UDP source port, a 5-tuple hash sends all QPs of a pair over the same path. The "
            f"busiest uplink carried {first.paths.mmr.bytes or 0:.1f} times the mean.",
            f"E-ECMP also hashes on the destination QP: the busiest uplink carried {last.paths.mmr.bytes or 0:.1f} "
            f"times the mean, and the all-reduce ran {self.gain:.2f} times as fast.",
        ]
        if self.gain < _GAIN_EXPECTED:
            lines.append(
                f"(Expected: at least {_GAIN_EXPECTED} times. Other programs may have slowed this machine down.)"
            )
        if any(p.run.overrun for p in self.played):
            lines.append("(The host CPU was the bottleneck in at least one run: do not trust its bandwidth.)")
        elif any(p.run.limited for p in self.played):
            lines.append("(The host CPU may have been the bottleneck in at least one run: see #UNRELIABLE above.)")
        return lines


def demo(observer: Observer, show: Callable[[str], None], name: str | None = None) -> DemoResult:
    """Run the three acts on preset `demo`. `show` prints each act when it ends.

    name: of the lab; None: a free one. Raises the errors of `up` and `run`; the lab is removed in any case.
    """
    began = time.monotonic()
    played: list[Played] = []
    name = name or free_name("demo")
    for ecmp, acts in groupby(ACTS, key=lambda act: act.ecmp):
        loaded = load_fabric("demo", name=name, overrides=[f"routing.ecmp={ecmp}"])
        with _running(loaded, observer) as lab:
            for act in acts:
                result = run(lab, replace(OPTIONS, qps=act.qps), observer)
                played.append(Played(act, result, paths_of(lab)))
                show(_scene(played[-1]))
    return DemoResult(tuple(played), time.monotonic() - began)


def free_name(stem: str) -> str:
    """`demo`, or the first free name of demo2, demo3, ...: a lab of the user is never touched."""
    runtime = get_runtime("netns")
    names = (stem if number == 1 else f"{stem}{number}" for number in count(1))
    free = (name for name in names if state.read_record(name) is None and not runtime.exists(name))
    return next(name for name in free if owners.owner_of(name) is None and owners.working_on(name) is None)


@contextmanager
def _running(loaded: LoadedFabric, observer: Observer) -> Iterator[Lab]:
    """A lab for a with block; it is removed at the end, also after an error."""
    name = loaded.fabric.name
    done = labs.up(loaded, observer=observer, rollback=True, source="demo")
    if not done.created:
        raise InputError(Problem("", f"lab {name}", "is running already", f"./inv down {name}"))
    try:
        yield done.lab
    finally:
        labs.down(name, observer)


def _scene(p: Played) -> str:
    verdict = "paths proven" if p.paths.agree else "PATHS NOT PROVEN"
    return "\n".join(
        [f"── {p.act.title} " + "─" * max(0, 96 - len(p.act.title)), p.run.table(short=True), *uplinks(p.paths),
         f"{verdict}: {len(p.paths.flows)} QPs, by prediction, kernel lookup and counters", ""]
    )  # fmt: skip
