"""The figures that one run of an experiment gives to expressions: of a live run, of a prediction, of a measure.

In:  the results of a run with the verdict on its paths; a Prediction; or what a measure returned.
Out: `value` of a name with keywords; runs/figures.py has what each name means. UnknownValueError when the run does not
have it, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from heddle.base.conditions import UnknownValueError
from heddle.base.tables import many
from heddle.base.units import format_size, parse_size
from heddle.runs.figures import (
    FIGURES,
    Keys,
    LinkShare,
    counters,
    figures_with,
    link_figure,
    links_of_paths,
    links_of_prediction,
    part_figure,
)  # fmt: skip
from heddle.runs.runrecord import reasons

if TYPE_CHECKING:
    from heddle.offline.result import Prediction
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import SizeRow


class RunFigures(Protocol):
    """What a run gives. proven: None where it has no paths."""

    @property
    def ids(self) -> Sequence[str]:
        """IDs of its stored runs."""

    @property
    def proven(self) -> bool | None:
        """Whether its paths are proven."""

    @property
    def doubt(self) -> str:
        """Why no verdict rests on them: the text of an Unfit (runs/runrecord.py); empty if one may."""

    def value(self, name: str, keys: Keys) -> float:
        """A figure. UnknownValueError with the reason when the run does not have it."""

    def to_json(self) -> dict[str, float]:
        """Every figure that needs no keyword."""


@dataclass
class LiveFigures:
    """Of a live run: the result of each job, and the verdict on the paths of all. ids: of the stored runs."""

    jobs: Sequence[RunRecord]
    paths: PathsResult | None
    ids: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = [job.id for job in self.jobs]
        self._links = [] if self.paths is None else [*links_of_paths(self.paths)]

    @property
    def proven(self) -> bool:
        """Whether three sources agree on the path of every flow."""
        return self.paths is not None and self.paths.agree

    @property
    def doubt(self) -> str:
        """Wrong data before a busy machine before unproven paths, which `proven` tells as well; names a path."""
        found = {each.kind: each.why for job in self.jobs for each in reasons(job)}
        whys = [] if self.paths is None else [each.why for each in self.paths.flows if each.why]
        if whys:
            found["unproven"] = f"{many(len(whys), 'path')} not proven: {whys[0]}"
        return found.get("wrong data") or found.get("unreliable") or found.get("unproven", "")

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the run, of one of its jobs, or of one of its sizes."""
        figure = FIGURES.get(name)
        if figure is not None and figure.links is not None:
            return link_figure(name, self._links, keys)
        jobs = [job for job in self.jobs if keys.get("job", job.job) == job.job]
        if not jobs:
            names = ", ".join(job.job for job in self.jobs)
            raise UnknownValueError(f"the run has no job {keys['job']}; jobs: {names or 'one without a name'}")
        found: float | None
        if figure is None:
            known = [job.counters[name] for job in jobs if name in job.counters]
            found = part_figure(jobs[0], name) if "." in name else sum(known) if known else None
        elif figure.size is not None:
            if len(jobs) > 1:
                raise UnknownValueError(f'several jobs have {name}; choose one: {name}(run, job="{jobs[0].job}")')
            found = figure.size(_row(jobs[0], keys))
        elif figure.summed:
            values = [each for job in jobs if (each := figure.of(job)) is not None]
            found = sum(values) if len(values) == len(jobs) else None
        else:
            found = figure.of(jobs[0])
        if found is None:
            raise UnknownValueError(f"the run has no {name}")
        return float(found)

    def to_json(self) -> dict[str, float]:
        """Every figure that the run has; those of sizes at the largest size, of the first job."""
        found, first, sizes = {}, self.jobs[0].job, figures_with("size")
        for name in dict.fromkeys([*figures_with("size", "run", "links"), *counters()]):
            with suppress(UnknownValueError):
                found[name] = self.value(name, {"job": first} if name in sizes else {})
        return found


def _row(job: RunRecord, keys: Keys) -> SizeRow:
    if "size" not in keys:
        return job.largest
    try:
        size = parse_size(keys["size"])
    except ValueError as error:
        raise UnknownValueError(f"size {keys['size']} {str(error).partition('; ')[0]}") from None
    found = next((row for row in job.rows if row.size == size), None)
    if found is None:
        sizes = ", ".join(format_size(row.size) for row in job.rows)
        raise UnknownValueError(f"the run has no size {keys['size']}; sizes: {sizes}")
    return found


@dataclass
class OfflineFigures:
    """Of a prediction, in its first mode."""

    prediction: Prediction
    ids: Sequence[str] = ()
    proven: bool | None = None
    doubt: str = ""

    @cached_property
    def _links(self) -> Sequence[LinkShare]:
        return [*links_of_prediction(self.prediction)]

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the prediction."""
        figure = FIGURES[name]
        if figure.links is not None:
            return link_figure(name, self._links, keys)
        found = None if figure.predicted is None else figure.predicted(self.prediction, keys)
        if found is None:
            raise UnknownValueError(f"the prediction has no {name}")
        return float(found)

    def to_json(self) -> dict[str, float]:
        found = {}
        for name in figures_with("predicted", "links"):
            with suppress(UnknownValueError):
                found[name] = self.value(name, {})
        return found


@dataclass
class OwnFigures:
    """What a measure returned. proven: of its runs; None if it made none."""

    values: Mapping[str, float]
    ids: Sequence[str] = ()
    proven: bool | None = None
    doubt: str = ""

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the measure."""
        if name not in self.values:
            raise UnknownValueError(f"the measure gave no {name}; it gave: {', '.join(self.values)}")
        return float(self.values[name])

    def to_json(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items()}
