"""Figures of Heddle itself, measured on this machine: `./inv bench [WHAT]`. Ratios where machines differ, and absolute.

In:  which figures, and an observer.
Out: BenchResult. A figure that misses its target is shown so; nothing is raised, since machines are noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean

# It fills the machine; it downloads hundreds of megabytes; it takes a quarter of an hour.
_ONLY_BY_NAME: Final = ("scale", "vm-build", "diagnosis", "agreement")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its value and unit, what it was divided by if it is a ratio, and what it should be."""

    name: str
    value: float
    unit: str
    ratio_to: str = ""
    target: str = ""
    ok: bool | None = None  # None: only a reading


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All figures, in the order in which they were measured."""

    figures: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """`figures`, as DESIGN has them."""
        return {"figures": [asdict(figure) for figure in self.figures]}

    def text(self) -> str:
        """A line a figure."""
        mark = {True: "met", False: "MISSED", None: ""}
        rows = []
        for f in self.figures:
            ratio = f"  / {f.ratio_to}" if f.ratio_to else ""
            rows.append(f"{f.name:<46}{f.value:>9.3f} {f.unit:<9}{f.target:>9} {mark[f.ok]:<6}{ratio}".rstrip())
        return "\n".join(rows)


def at_most(name: str, value: float, unit: str, limit: float, ratio_to: str = "") -> Figure:
    """A figure that should not be above `limit`."""
    return Figure(name, value, unit, ratio_to, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, unit: str, limit: float, ratio_to: str = "") -> Figure:
    """A figure that should not be below `limit`."""
    return Figure(name, value, unit, ratio_to, f">= {limit:g}", value >= limit)


def bench(what: str, observer: Observer, runs: int | None = None) -> BenchResult:
    """Measure one group of figures, or `all`; InputError with the nearest word for a group that is not there.

    runs: how many runs `order` makes, or faults `diagnosis` sets; by default as many as the figure needs.
    """
    groups = _groups(runs)
    if what != "all" and what not in groups:
        raise InputError(
            Problem("", f"bench {what}", "is not a group of figures", did_you_mean(what, [*groups, "all"]))
        )
    if runs is not None and (what not in ("order", "diagnosis") or runs < 1):
        why = "is not a number of runs" if runs < 1 else f"is an option of `order` and `diagnosis`, not of `{what}`"
        raise InputError(Problem("", f"--runs {runs}", why, "./inv bench order --runs 100"))
    figures: list[Figure] = []
    for name in [each for each in groups if each not in _ONLY_BY_NAME] if what == "all" else [what]:
        observer.begin(f"bench {name}")
        try:
            figures.extend(groups[name](observer))
        except MachineError as error:
            if what != "all":
                raise
            observer.warn(f"bench {name} cannot be measured here: {error}")
        observer.end(f"bench {name}")
    return BenchResult(tuple(figures))


def _groups(runs: int | None) -> Mapping[str, Callable[[Observer], Iterable[Figure]]]:
    from tests.bench import (
        agreement,
        collectives,
        dcqcn,
        diagnosis,
        order,
        packetcost,
        predict,
        queues,
        scale,
        sharding,
        steady,
        te,
        telive,
        transports,
        trimming,
        vmplace,
    )

    groups: Final[Mapping[str, Callable[[Observer], Iterable[Figure]]]] = {
        "scale": scale.figures,
        "agreement": agreement.figures,
        "kubernetes": sharding.figures,
        "collectives": collectives.each_algorithm,
        "budget": collectives.budget,
        "steady": steady.figures,
        "dcqcn": dcqcn.figures,
        "diagnosis": partial(diagnosis.figures, runs=runs or diagnosis.FAULTS),
        "order": partial(order.figures, runs=runs or order.RUNS),
        "packets": packetcost.figures,
        "predict": predict.figures,
        "queues": queues.figures,
        "te": te.figures,
        "te-live": telive.figures,
        "transports": transports.figures,
        "trimming": trimming.figures,
        "vm": vmplace.figures,
        "vm-build": vmplace.build_figures,
    }
    return groups
