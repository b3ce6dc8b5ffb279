"""Read the counters of a lab by row: all rows, or only those that may have changed since the last reading.

In:  a lab's queues, mapped into memory (heddle/switch/queues/cells.py).
Out: rows, and the words of them that a record of queues needs. Peaks start at 0 again in every row that was read.
There are no system calls. The compiled code reads a row at a time; numpy does the same with more CPU time.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I64
from heddle.switch.compiled import layouts

# LEVELS: the value at a bucket's end. PEAKS: the maximum in it. COUNTS: the increase in it.
LEVELS: Final = ("depth", "occupancy")
PEAKS: Final = ("peak", "occupancy_peak")
COUNTS: Final = ("out_bytes", "marks", "drops", "pfc_sent", "pfc_received", "paused_ns")
COLUMNS: Final = (*LEVELS, *PEAKS, *COUNTS)


class LiveQueues(Protocol):
    """The mapped queues of a lab: structured arrays with one row per port and class (port id * 8 + class)."""

    @property
    def cells(self) -> npt.NDArray[Any]:
        """By egress port: depth, peak, out_bytes, marks, drops, ..."""

    @property
    def ingress(self) -> npt.NDArray[Any]:
        """By ingress port: occupancy, peak, ..."""

    @property
    def gates(self) -> npt.NDArray[Any]:
        """Pause frames that a port received, counted by the BPF program."""

    @property
    def agent(self) -> npt.NDArray[Any]:
        """Pause frames that the agent sent by a port, and how long the port's gates were closed."""


class Words:
    """The maps as words of 8 bytes, and the words to read. Few large numpy operations are faster than many small."""

    _READ: Final = {
        "cells": ("depth", "peak", "out_bytes", "marks", "drops"),
        "ingress": ("occupancy", "peak"),
        "gates": ("pfc_received", "last_ns"),
        "agent": ("pfc_sent", "paused_ns", "closed_since_ns"),
    }

    def __init__(self, live: LiveQueues) -> None:
        self.tables: list[I64] = []
        self.rows = len(live.cells)
        self._taken: list[int] = []  # words of all tables side by side that are read
        self._at: dict[str, slice] = {}  # `cells.drops` -> which of those read
        side = 0
        for name, fields in self._READ.items():
            table: npt.NDArray[Any] = getattr(live, name)
            words = table.dtype.itemsize // 8
            self.tables.append(table.view("<i8").reshape(self.rows, words))
            for field in fields:
                layout, offset = table.dtype[field], _offset(table.dtype, field)
                first, count = side + offset // 8, layout.itemsize // 8
                self._at[f"{name}.{field}"] = slice(len(self._taken), len(self._taken) + count)
                self._taken += range(first, first + count)
            side += words

    def read(self, rows: I64) -> I64:
        """The words of some rows, shape (rows, words)."""
        return np.concatenate([table.take(rows, axis=0) for table in self.tables], axis=1)[:, self._taken]

    def fields(self) -> ctypes.Array[layouts.FieldStruct]:
        """The words as the compiled code finds them, in the same order."""
        found = (layouts.FieldStruct * len(self._taken))()
        ends = np.cumsum([table.shape[1] for table in self.tables])
        for place, word in enumerate(self._taken):
            at = int(np.searchsorted(ends, word, side="right"))
            table = self.tables[at]
            found[place] = _field(table[:, word - int(ends[at]) + table.shape[1]])
        return found

    def column(self, raw: I64, name: str) -> I64:
        """One field, summed where it is several words (drops by cause)."""
        part = raw[:, self._at[name]]
        return part[:, 0] if part.shape[1] == 1 else part.sum(axis=1)

    def columns(self, raw: I64, now_ns: int) -> I64:
        """COLUMNS of one reading: levels, peaks, and counters since the lab came up.

        A gate that is closed at `now_ns` counts as paused until then.
        """
        table = np.empty((len(raw), len(COLUMNS)), np.int64)
        closed = self.column(raw, "agent.closed_since_ns")
        names = {"occupancy": "ingress.occupancy", "occupancy_peak": "ingress.peak", "pfc_sent": "agent.pfc_sent",
                 "pfc_received": "gates.pfc_received", "paused_ns": "agent.paused_ns"}  # fmt: skip
        for index, name in enumerate(COLUMNS):
            table[:, index] = self.column(raw, names.get(name, f"cells.{name}"))
        table[:, COLUMNS.index("paused_ns")] += np.where(closed > 0, np.maximum(0, now_ns - closed), 0)
        return table


class RowReader(Protocol):
    """Reads rows, and remembers which were not empty, and what each had dropped."""

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words (rows, words). since_ns: of the last reading, CLOCK_MONOTONIC.

        every: all rows; otherwise those where a packet arrived, waits or was dropped, or a pause arrived or goes on.
        """


class NumpyRows:
    """The reference, for any machine."""

    def __init__(self, live: LiveQueues, words: Words) -> None:
        self._live, self._words = live, words
        self._full = np.zeros(0, np.int64)  # rows that were not empty at the last reading
        self._dropped = np.zeros(words.rows, np.uint64)  # drop_bytes of all rows then

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words."""
        dropped = self._live.cells["drop_bytes"].copy()  # before the words: a later drop is read next time
        rows = np.arange(self._words.rows) if every else self._awake(since_ns, dropped)
        raw = self._words.read(rows)
        self._live.cells["peak"][rows] = 0
        self._live.ingress["peak"][rows] = 0
        full = (self._live.cells["depth"][rows] != 0) | (self._live.ingress["occupancy"][rows] != 0)
        self._full = rows[full]
        self._dropped[rows] = dropped[rows]
        return rows, raw

    def _awake(self, since_ns: int, dropped: npt.NDArray[np.uint64]) -> I64:
        live = self._live
        awake = (live.cells["peak"] != 0) | (live.cells["depth"] != 0) | (live.ingress["occupancy"] != 0)
        awake |= (live.ingress["peak"] != 0) | (live.agent["closed_since_ns"] != 0)
        awake |= live.gates["last_ns"] >= since_ns
        awake |= dropped != self._dropped  # a port that is down drops packets that it does not queue
        awake[self._full] = True
        return np.flatnonzero(awake)


class CompiledRows:
    """The same by the compiled code."""

    def __init__(self, code: ctypes.CDLL, live: LiveQueues, words: Words) -> None:
        self._code, self._live = code, live
        count, self._taken = words.rows, words.fields()
        self._full, self._dropped = np.zeros(count, np.uint8), np.zeros(count, np.int64)
        self._rows, self._raw = np.zeros(count, np.uint32), np.zeros((count, len(self._taken)), np.int64)
        tables = {"depth": (live.cells, "depth"), "peak": (live.cells, "peak"),
                  "occupancy": (live.ingress, "occupancy"), "occupancy_peak": (live.ingress, "peak"),
                  "closed_since_ns": (live.agent, "closed_since_ns"), "last_ns": (live.gates, "last_ns"),
                  "drop_bytes": (live.cells, "drop_bytes")}  # fmt: skip
        fields = {name: _field(table[field]) for name, (table, field) in tables.items()}
        state = self._full.ctypes.data, self._dropped.ctypes.data
        self._reader = layouts.ReaderStruct(count, len(self._taken), ctypes.addressof(self._taken), *state, **fields)
        self._out = (self._rows.ctypes.data, self._raw.ctypes.data)

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words."""
        found = self._code.hd_rows_read(self._reader, since_ns, every, *self._out)
        return self._rows[:found].astype(np.int64), self._raw[:found].copy()


def row_reader(live: LiveQueues, words: Words) -> RowReader:
    """The compiled reader if this machine can use it."""
    code = layouts.load()
    return NumpyRows(live, words) if isinstance(code, str) else CompiledRows(code, live, words)


def _field(view: npt.NDArray[Any]) -> layouts.FieldStruct:
    return layouts.FieldStruct(view.ctypes.data, view.strides[0])


def _offset(layout: np.dtype[Any], field: str) -> int:
    fields = layout.fields
    assert fields is not None  # noqa: S101  (a map's row is a struct)
    return int(fields[field][1])
