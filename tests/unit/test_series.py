"""Queues over time: what a sampler makes of maps that change under it, by a clock that the test has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.runs import series
from heddle.runs import series as room
from heddle.runs.series import (
    COLUMNS,
    COUNTS,
    SERIES,
    Clock,
    CompiledRows,
    NumpyRows,
    Recorded,
    RowLabel,
    Sampler,
    Series,
    Words,
    changes,
    counted,
    read_series,
    write_series,
)
from heddle.switch.compiled import layouts
from heddle.switch.queues import cells

ROWS = 40
BUSY = 11  # a row


@dataclass
class Maps:
    """The maps of a lab that carries nothing, in this process's memory."""

    cells: Any = field(default_factory=lambda: np.zeros(ROWS, cells.CELL))
    ingress: Any = field(default_factory=lambda: np.zeros(ROWS, cells.INGRESS))
    gates: Any = field(default_factory=lambda: np.zeros(ROWS, cells.GATE))
    agent: Any = field(default_factory=lambda: np.zeros(ROWS, cells.AGENT))

    def arrive(self, count: int) -> None:
        """Bytes come, as the program `enqueue` enters them."""
        cell = self.cells[BUSY]
        cell["depth"] += count
        cell["peak"] = max(cell["peak"], cell["depth"])

    def leave(self, count: int) -> None:
        """Bytes go, as `dequeue` does it."""
        self.cells[BUSY]["depth"] -= count
        self.cells[BUSY]["out_bytes"] += count


@dataclass
class Sampled:
    """clock: of the sampler. series: what it saw, after the with block."""

    clock: SetClock
    sampler: Sampler

    @property
    def series(self) -> Series:
        return self.sampler.series()


@contextmanager
def sampled(maps: Maps, bucket_s: float = 0.005, cost_s: float = 0.0) -> Iterator[Sampled]:
    clock = SetClock(cost_s)
    sampler = Sampler(maps, bucket_s, clock=clock)
    with sampler:
        yield Sampled(clock, sampler)


def test_every_byte_mark_and_drop_is_in_some_bucket_and_idle_rows_in_none() -> None:
    maps = Maps()
    maps.cells["out_bytes"] = 10**9  # of earlier runs
    maps.cells["marks"][3] = 7
    with sampled(maps) as found:
        for _ in range(5):
            maps.arrive(9000)
            found.clock.forward(0.02)
            maps.leave(6000)
            maps.cells["marks"][BUSY] += 2
            maps.cells["drops"][BUSY][1] += 1
        found.clock.forward(0.02)
        maps.leave(15_000)
        found.clock.forward(0.001)
    series = found.series
    assert series.rows.tolist() == [BUSY]
    assert {name: int(series.columns[name].sum()) for name in ("out_bytes", "marks", "drops")} == {
        "out_bytes": 45_000, "marks": 10, "drops": 5,
    }  # fmt: skip
    assert series.columns["depth"][0][-1] == 0
    assert series.columns["peak"][0].max() == 21_000
    assert (np.diff(series.ends_s) > 0).all()


def test_a_peak_is_in_its_own_bucket() -> None:
    maps = Maps()
    with sampled(maps, 0.03) as found:
        maps.arrive(50_000)
        maps.leave(50_000)
        found.clock.forward(0.1)
    series = found.series
    assert series.ends_s.tolist() == pytest.approx([0.03, 0.06, 0.09, 0.1])
    assert series.columns["peak"][0].tolist() == [50_000, 0, 0, 0]
    assert series.columns["depth"].sum() == 0
    # Occupancy at the start of a bucket is in its peak.
    last, now = (np.zeros((1, len(COLUMNS)), np.int64) for _ in range(2))
    last[0, COLUMNS.index("depth")], now[0, COLUMNS.index("depth")] = 9000, 1000
    last[0, COLUMNS.index("occupancy")], now[0, COLUMNS.index("occupancy_peak")] = 500, 700
    assert dict(zip(COLUMNS, changes(now, last)[0].tolist(), strict=True)) == dict.fromkeys(COLUMNS, 0) | {
        "depth": 1000, "peak": 9000, "occupancy_peak": 700,
    }  # fmt: skip


def test_a_gate_that_is_still_closed_counts_as_paused_until_each_reading() -> None:
    maps = Maps()
    with sampled(maps) as found:
        began = found.clock.now_ns()
        maps.agent["closed_since_ns"][BUSY] = began
        found.clock.forward(0.06)
        maps.agent["paused_ns"][BUSY] += found.clock.now_ns() - began
        maps.agent["closed_since_ns"][BUSY] = 0
        maps.gates["last_ns"][BUSY] = found.clock.now_ns()
        found.clock.forward(0.02)
    paused = found.series.columns["paused_ns"][0]
    assert paused.sum() == 60_000_000
    assert paused.tolist()[:12] == [5_000_000] * 12, "a pause over many buckets is in each of them"


def test_a_reading_while_a_gate_opens_does_not_make_its_pause_longer() -> None:
    """The agent adds a pause to the sum, and then takes down that the gate is closed."""
    maps, second = Maps(), 10**9
    sampler = Sampler(maps, 0.01, clock=SetClock())
    with sampler:
        pass
    sampler._raw.clear()
    agent, start = maps.agent[BUSY], sampler._start_ns
    for after, summed, since in ((1, 0, start), (2, 2, start), (3, 2, 0), (4, 2, start + 3 * second), (5, 4, 0)):
        agent["paused_ns"], agent["closed_since_ns"] = summed * second, since
        rows = np.array([BUSY])
        sampler._raw.append((start + after * second, rows, sampler._words.read(rows)))
    found = sampler.series()
    assert found.columns["paused_ns"].sum() == 4 * second
    assert (found.columns["paused_ns"] >= 0).all()


def test_queues_before_a_runs_start_are_not_part_of_it() -> None:
    maps = Maps()
    with sampled(maps) as found:
        maps.arrive(4000)
        maps.leave(4000)
        found.clock.forward(0.02)
        began = found.clock.now_ns()
        maps.arrive(500)
        maps.leave(500)
        found.clock.forward(0.001)
    series = found.sampler.series(began)
    assert series.columns["out_bytes"].sum() == 500
    assert series.ends_s[0] > 0


def test_fewer_or_longer_buckets_keep_sums_peaks_and_the_last_level(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = Maps()
    with sampled(maps, 0.001) as found:
        for _ in range(30):
            maps.arrive(2000)
            maps.leave(1500)
            found.clock.forward(0.003)
    series = found.series
    fewer = series.coarser(7)
    assert 4 <= len(fewer.ends_s) <= 7
    assert fewer.ends_s[-1] == series.ends_s[-1]
    for name in COUNTS:
        assert fewer.columns[name].sum() == series.columns[name].sum()
    assert fewer.columns["peak"].max() == series.columns["peak"].max()
    assert fewer.columns["depth"][0][-1] == 15_000
    assert series.coarser(10_000) is series
    # A long run gets longer buckets and loses nothing.
    monkeypatch.setattr(room, "_MOST", 8)
    maps = Maps()
    with sampled(maps, 0.001) as found:
        for _ in range(40):
            maps.arrive(1000)
            maps.leave(1000)
            found.clock.forward(0.003)
    series = found.series
    assert len(series.ends_s) <= 8
    assert series.columns["out_bytes"].sum() == 40_000
    assert series.bucket_s > 2 * series.asked_s


def test_reading_takes_a_small_part_of_a_processor_however_many_ports_there_are() -> None:
    """A reading that takes 4 ms of every 1 ms is taken less often, until it takes about a tenth of a processor."""
    maps = Maps(*(np.zeros(80_000, layout) for layout in (cells.CELL, cells.INGRESS, cells.GATE, cells.AGENT)))
    with sampled(maps, 0.001, cost_s=0.004) as found:
        found.clock.forward(4.0)
    series = found.series
    assert series.asked_s == 0.001 and series.bucket_s > 0.03
    assert 0.05 * 4 < series.cost_s < 0.125 * 4
    assert counted(maps, 0).shape == (80_000, len(COLUMNS))


def test_a_series_is_read_as_it_was_written(tmp_path: Path) -> None:
    maps = Maps()
    with sampled(maps) as found:
        maps.arrive(70_000)
        found.clock.forward(0.02)
    series = found.series
    label = RowLabel("rtsw1:eth3", 3, "lossless", 10**8, kmin=100_000, kmax=400_000)
    write_series(tmp_path, Recorded("zone", "incast", 4000, (label,), series))
    read = read_series(tmp_path)
    assert (read.lab, read.what, read.k, read.labels) == ("zone", "incast", 4000, (label,))
    assert {name: column.tolist() for name, column in read.series.columns.items()} == {
        name: column.tolist() for name, column in series.columns.items()
    }
    assert read.series.ends_s.tolist() == series.ends_s.tolist()
    assert [path.name for path in tmp_path.iterdir()] == [SERIES]


_PATIENCE_S = 60.0  # of the test, for the sampler's thread to take a reading: only a defect takes so long


class SetClock(Clock):
    """cost_s: processor time that each reading takes by this clock. No time goes by while the sampler reads."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._moved = threading.Condition()
        self._now = 10**12
        self._due: int | None = None  # when the sampler wants to read next; None while it reads
        self._cost, self._cpu = cost_s, 0.0

    def now_ns(self) -> int:
        return self._now

    def cpu_s(self) -> float:
        self._cpu += self._cost  # asked before a reading and after it
        return self._cpu

    def wait(self, end: threading.Event, seconds: float) -> bool:
        with self._moved:
            due = self._due = self._now + round(seconds * 1e9)
            self._moved.notify_all()
            while self._now < due and not end.is_set():
                self._moved.wait(0.001)  # who sets the event does not know of this condition
            self._due = None
        return end.is_set()

    def forward(self, seconds: float) -> None:
        """Let time go by. Every reading that becomes due meanwhile is taken, at its time."""
        target = self._now + round(seconds * 1e9)
        with self._moved:
            while True:
                assert self._moved.wait_for(lambda: self._due is not None, _PATIENCE_S), "the sampler does not wait"
                assert self._due is not None
                if self._due > target:
                    self._now = target
                    return
                self._now, self._due = self._due, None
                self._moved.notify_all()


found = layouts.load()
needs_object = pytest.mark.skipif(isinstance(found, str), reason=str(found))


def change(live: Any, chance: np.random.Generator, now: int) -> None:
    """What programs and agent may write between two readings: a few rows, any field."""
    for table in (live.cells, live.ingress, live.gates, live.agent):
        words = table.view("<i8").reshape(ROWS, -1)
        for _ in range(chance.integers(0, 6)):
            words[chance.integers(ROWS), chance.integers(words.shape[1])] = chance.integers(0, 1 << 62)
        for _ in range(chance.integers(0, 6)):
            words[chance.integers(ROWS)] = 0
    for _ in range(chance.integers(0, 3)):
        live.gates["last_ns"][chance.integers(ROWS)] = max(0, now - chance.integers(-5, 5))


@needs_object
@pytest.mark.parametrize("seed", range(4))
def test_both_read_the_same_rows_and_words_and_reset_the_same_peaks(seed: int) -> None:
    assert not isinstance(found, str)
    lives = Maps(), Maps()
    chances = np.random.default_rng(seed), np.random.default_rng(seed)
    readers = NumpyRows(lives[0], Words(lives[0])), CompiledRows(found, lives[1], Words(lives[1]))
    rows_read = 0
    for turn in range(300):
        every, now = turn % 50 == 0, 1000 * turn
        for live, chance in zip(lives, chances, strict=True):
            change(live, chance, now)
        (rows, raw), (fast_rows, fast_raw) = (reader.read(now, every=every) for reader in readers)
        np.testing.assert_array_equal(rows, fast_rows)
        np.testing.assert_array_equal(raw, fast_raw)
        for name in ("cells", "ingress", "gates", "agent"):
            np.testing.assert_array_equal(getattr(lives[0], name), getattr(lives[1], name))
        assert len(rows) == ROWS or not every
        rows_read += 0 if every else len(rows)
    assert 300 < rows_read < 300 * ROWS / 2


READERS: Final = (
    NumpyRows,
    pytest.param(lambda *about: CompiledRows(layouts.load(), *about), marks=needs_object),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("reader_of", READERS)
def test_a_row_that_drops_all_its_packets_is_read_when_it_drops_them_and_not_again(reader_of: Any) -> None:
    """A port that is down queues nothing: no depth and no peak shows its drops."""
    live = Maps()
    reader = reader_of(live, Words(live))
    reader.read(0, every=True)
    live.cells["drops"][BUSY, cells.CAUSES.index("down")] += 3
    live.cells["drop_bytes"][BUSY] += 3 * 4096
    rows, raw = reader.read(1000, every=False)
    assert dict(zip(rows.tolist(), Words(live).column(raw, "cells.drops").tolist(), strict=True))[BUSY] == 3
    assert BUSY not in reader.read(2000, every=False)[0]
    live.cells["drop_bytes"][BUSY] = 0  # counters were reset
    assert BUSY in reader.read(3000, every=False)[0]


@needs_object
def test_what_was_read_does_not_change_with_the_next_reading() -> None:
    assert not isinstance(found, str)
    live = Maps()
    reader = CompiledRows(found, live, Words(live))
    live.cells["depth"][7] = 4096
    rows, raw = reader.read(0, every=False)
    live.cells["depth"][:] = 1
    reader.read(0, every=False)
    assert rows[rows == 7].tolist() == [7] and Words(live).column(raw, "cells.depth")[rows == 7].tolist() == [4096]


def test_the_numpy_reader_is_used_where_there_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "load", lambda: "no compiled object for riscv64")
    live = Maps()
    assert isinstance(series.row_reader(live, Words(live)), NumpyRows)
    with series.Sampler(live):
        live.cells["depth"][9] = 5
