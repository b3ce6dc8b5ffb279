"""The compiled reader of rows and its reference in numpy: the same rows and words from the same maps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.runs import rowreader, series
from heddle.runs.rowreader import CompiledRows, NumpyRows, Words
from heddle.switch.compiled import layouts
from heddle.switch.queues import cells

ROWS = 200
found = layouts.load()
needs_object = pytest.mark.skipif(isinstance(found, str), reason=str(found))


def maps() -> Any:
    return SimpleNamespace(
        **{name: np.zeros(ROWS, cells.LAYOUTS[name]) for name in ("cells", "ingress", "gates", "agent")}
    )


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
    lives = maps(), maps()
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


@needs_object
def test_what_was_read_does_not_change_with_the_next_reading() -> None:
    assert not isinstance(found, str)
    live = maps()
    reader = CompiledRows(found, live, Words(live))
    live.cells["depth"][7] = 4096
    rows, raw = reader.read(0, every=False)
    live.cells["depth"][:] = 1
    reader.read(0, every=False)
    assert rows[rows == 7].tolist() == [7] and Words(live).column(raw, "cells.depth")[rows == 7].tolist() == [4096]


def test_the_numpy_reader_is_used_where_there_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "load", lambda: "no compiled object for riscv64")
    live = maps()
    assert isinstance(rowreader.row_reader(live, Words(live)), NumpyRows)
    with series.Sampler(live):
        live.cells["depth"][9] = 5
