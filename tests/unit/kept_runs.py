"""Directories of runs for tests that need none: record, surroundings, evidence and queues over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heddle.base.problems import InputError
from heddle.predict.selftest import SelfTest
from heddle.runs.measured import write_evidence
from heddle.runs.runrecord import RunRecord, write_record
from heddle.runs.runtable import SizeRow
from heddle.runs.series import COLUMNS, Recorded, RowLabel, Series, write_series
from heddle.runs.store import open_runs
from heddle.runs.stored import StoredRun
from heddle.runs.surroundings import Surroundings, write_surroundings
from tests.unit import run_samples as samples

SELFTEST = SelfTest("agrees", "6.1.0", 1024)
AROUND = Surroundings(
    samples.FABRIC, "netns", SELFTEST, {"name": "tiny", "shape": "clos", "racks": 2, "ctsw": 2}, {}, {},
    {"Heddle": "0.1", "Linux": "6.1.0", "Python": "3.11.2", "FRR": "8.4.4"}, 2, "A Processor", 8 << 30,
)  # fmt: skip
LABELS = (
    RowLabel("rtsw1:eth3", 3, "lossless", 10**8, 40_000, 160_000),
    RowLabel("rtsw1:eth1", 3, "lossless", 10**8, xoff=60_000, xon=40_000),
)


def series() -> Series:
    """Two rows over ten buckets: an egress queue with marks and pauses, an ingress buffer that sent pauses."""
    columns = {name: np.zeros((2, 10), np.int64) for name in COLUMNS}
    columns["depth"][0], columns["peak"][0] = np.arange(10) * 10_000, np.arange(10) * 12_000
    columns["marks"][0, 4:] = 3
    columns["paused_ns"][0, 5] = 4_000_000
    columns["occupancy"][1], columns["occupancy_peak"][1], columns["pfc_sent"][1, 6] = 50_000, 61_000, 2
    return Series(np.linspace(0.01, 0.1, 10, dtype=np.float64), np.array([3, 11], np.int32), columns, 0.01, 10, 0.001)


def keep(
    place: Path, number: int = 1, record: RunRecord | None = None, *, around: Surroundings | None = AROUND,
    queues: Series | None = None, labels: Sequence[RowLabel] = LABELS,
) -> StoredRun:  # fmt: skip
    """A run's directory below `place`, opened."""
    path = place / f"{number:04}"
    path.mkdir(parents=True)
    record = replace(record or samples.record(), id=path.name)
    write_record(path, record)
    if around is not None:
        write_surroundings(path, around)
    if record.done:
        write_evidence(path, samples.result().flows, samples.evidence())
    write_series(path, Recorded("zone", "all-reduce over 4 ranks", 4000, tuple(labels), queues or series()))
    return open_runs([str(path)])[0]


def with_rows(record: RunRecord, *rows: SizeRow) -> RunRecord:
    """The record with other figures."""
    return replace(record, rows=rows)


def row(size: int, *iteration_us: float) -> SizeRow:
    """A size with these iterations."""
    mean = sum(iteration_us) / len(iteration_us)
    return SizeRow(size, mean, size / mean / 1e3, 1.5 * size / mean / 1e3, 0, iteration_us)


def refused(*words: str) -> str:
    """What is reported for words that mean no run."""
    try:
        open_runs(words)
    except InputError as error:
        return str(error)
    raise AssertionError(f"{words} mean a run")
