"""The forecast of time against arithmetic, live runs, and published results of simulators: one ratio for each pair.

`./inv bench agreement` measures the live runs and prints the ratios. `python -m tests.bench.agreement` also writes
docs/results/agreement.csv, from which docs/agreement.md is generated. A ratio is time / forecast.
Published: docs/results/htsim.csv, with its source. A run that is UNRELIABLE is made once more; if it is so again, its
ratio is shown, and is not in the median and the worst.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from heddle.base.events import Observer, Silent
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.outages import link_down
from heddle.lab.rehash import put_in_force, set_hashing, take_out
from heddle.offline.columns import cutting
from heddle.offline.forecast import Ask
from heddle.runs.run import run_workload
from heddle.runs.together import WorkloadResult
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.workload import Workload
from heddle_plugins.engineering.te import PARTS, of_run, plan_for
from heddle_plugins.time.forecast import time_forecast

from . import Figure, at_most

RESULTS: Final = Path(__file__).resolve().parents[2] / "docs/results/agreement.csv"
HTSIM: Final = RESULTS.with_name("htsim.csv")
_LAB: Final = "benchag"
_MEDIAN, _WORST = 1.05, 1.10


@dataclass(frozen=True)
class Setup:
    """A fabric: preset and overrides."""

    name: str
    preset: str
    overrides: tuple[str, ...]

    def fabric(self) -> Fabric:
        return load_fabric(self.preset, name=_LAB, overrides=self.overrides).fabric


@dataclass(frozen=True)
class Case:
    """A workload on a fabric. text: a workload file; down: a port. exact: arithmetic of each job's iteration."""

    name: str
    setup: Setup
    text: str
    mode: str = "flow"
    down: str = ""
    exact: Callable[[Fabric], Sequence[float]] | None = None

    @property
    def ask(self) -> Ask:
        return Ask(mode=self.mode, down=(self.down,) if self.down else ())

    @cache  # noqa: B019
    def workload(self) -> Workload:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "work.yml")
            path.write_text("iters: 3\nwarmup: 1\n" + self.text)
            return load_workload(str(path)).workload

    def forecast(self, fabric: Fabric) -> list[float]:
        """Seconds of an iteration of each job."""
        return [job.sizes[0].seconds for job in time_forecast(fabric, self.workload(), self.ask, Silent()).jobs]


def _rate(mbit: int) -> tuple[str, ...]:
    return f"link.host={mbit}mbit", f"link.fabric={mbit}mbit"


EVEN: Final = Setup("1:1", "demo", _rate(20))
HALF: Final = Setup("2:1", "tiny", ("racks=2", "ctsw=2", "hosts_per_rack=4", *_rate(25)))
RAIL: Final = Setup("rails", "rail", ("hosts_per_pod=2", "nics_per_host=4", *_rate(25)))
ZONE: Final = Setup("zone", "zone", _rate(25))


def _wire(fabric: Fabric, payload: int, qps: int = 1) -> float:
    """Seconds of a message at a NIC's rate."""
    frames = cutting(fabric, qps, "split", 1 << 30).frames(np.array([payload // qps] * qps))
    return 8 * int(frames.sum()) / fabric.nics[0].rate_bps


_RING: Final = "collective: all-reduce\nsize: 1M\nplacement: cyclic\nqps: 4\n"
CASES: Final = (
    Case("ring", EVEN, "collective: all-reduce\nsize: 1M\n"),
    Case("ring, 4 QPs, cyclic", EVEN, _RING),
    Case("ring, e-ecmp", EVEN, _RING, "e-ecmp"),
    Case("ring, pinned", EVEN, _RING, "pinned"),
    Case("ring, te", EVEN, _RING, "te"),
    Case("halving-doubling", EVEN, "collective: all-reduce\nalgorithm: halving-doubling\nsize: 1M\nqps: 4\n"),
    Case("tree", EVEN, "collective: all-reduce\nalgorithm: tree\nsize: 1M\nqps: 4\n"),
    Case("broadcast, chain", EVEN, "collective: broadcast\nsize: 1M\n"),
    Case("all-to-all", EVEN, "collective: all-to-all\nsize: 1M\n"),
    Case("incast of 4", EVEN, "collective: incast\nsize: 500K\nranks: 5\n"),
    Case("incast of 4, admission", EVEN, "collective: incast\nsize: 500K\nranks: 5\nadmission: on\n"),
    Case("two jobs: ring, all-to-all", EVEN, """\
qps: 4
size: 1M
jobs:
  a: {collective: all-reduce, ranks: "0:16:2"}
  b: {collective: all-to-all, ranks: "1:16:2"}
"""),
    Case("shift", HALF, "matrix: shift:4\nsize: 1M\nqps: 4\n"),
    Case("all-to-all", HALF, "collective: all-to-all\nsize: 1M\n"),
    Case("ring, cyclic", HALF, "collective: all-reduce\nsize: 1M\nplacement: cyclic\nqps: 4\n"),
    Case("ring, admission", HALF, "collective: all-reduce\nsize: 500K\nadmission: on\n"),
    Case("shift, a link down", HALF, "matrix: shift:4\nsize: 500K\nqps: 4\n", down="rtsw1:eth1"),
    Case("two jobs: rings, one after 1 s", HALF, """\
size: 1M
share_nics: true
jobs:
  a: {collective: all-reduce}
  b: {collective: all-reduce, placement: cyclic, start: 1s}
"""),
    Case("hierarchical", RAIL, "collective: all-reduce\nalgorithm: hierarchical\nsize: 4M\n"),
    Case("ring, a link down", ZONE, _RING, down="rtsw1:eth1"),
)  # fmt: skip
