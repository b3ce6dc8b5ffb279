"""What a measure of experiments is, and what it works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.base.events import Observer

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab
    from heddle.runs.runrecord import RunRecord
    from heddle.traffic.workload import Workload


@dataclass
class Measuring:
    """What a measure works with. options: those of the file, and defaults. lab: None for a measure that is not live.

    repeat: the number of this repeat, from 1. runs: the results that it made, in order.
    """

    fabric: Fabric
    options: Mapping[str, Any]
    observer: Observer
    lab: Lab | None = None
    repeat: int = 1
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def running(self) -> Lab:
        """The lab of a live measure. RuntimeError for another one."""
        if self.lab is None:
            raise RuntimeError("a measure with live=False has no lab")
        return self.lab

    def run(self, workload: Workload) -> Sequence[RunRecord]:
        """Run a workload on the lab, and keep the results; errors as of runs.run."""
        from heddle.runs.run import run_workload

        found = run_workload(self.running, workload, self.observer).jobs
        self.runs += found
        return found

    def collective(self, **options: Any) -> RunRecord:
        """Run one collective; the options are those of `./inv run`, by their words."""
        from heddle.endpoints.runoptions import run_options
        from heddle.traffic.workload import Workload

        (found,) = self.run(Workload.of(run_options(**options)))
        return found


@dataclass(frozen=True)
class Measure:
    """One measure. about: one sentence. figures: name -> meaning. options: name -> default, all that it takes.

    live: it needs a lab. seconds: of one repeat, for the estimate. call: makes it; HeddleError when it cannot.
    """

    about: str
    figures: Mapping[str, str]
    call: Callable[[Measuring], Mapping[str, float]]
    options: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True
    seconds: float = 10.0
