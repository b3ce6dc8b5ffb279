"""A run as CSV: one row for each size, always the same columns, with the settings that tell runs apart.

In:  a stored run. Out: CSV with a header. Times are microseconds; bandwidths are GB/s of 10^9 bytes, emulated, and `k`
is their scale. A figure that the run does not have is empty. Figures of iterations are of the first measurement.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, Final

from heddle.runs.exports.asked import Asked
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import Figures, SizeRow, stats_of
from heddle.runs.stored import StoredRun

_STATS: Final = ("min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "cv_pct")
COLUMNS: Final = (
    "lab", "run", "collective", "algorithm", "ranks", "qps", "hashing", "transport", "k",
    "size_bytes", "count", "type", "redop", "root", "time_us", "algbw_gbs", "busbw_gbs", "wrong",
    "in_place_time_us", "in_place_algbw_gbs", "in_place_busbw_gbs", "in_place_wrong", "iterations", *_STATS,
)  # fmt: skip


def written(run: StoredRun, asked: Asked) -> bytes:
    """The file."""
    text, record, o = io.StringIO(), run.record, run.record.options
    about = {
        "lab": record.lab, "run": record.id, "collective": o.collective, "algorithm": o.algorithm,
        "ranks": len(record.ranks), "qps": o.qps, "hashing": record.ecmp, "transport": o.transport, "k": record.k,
    }  # fmt: skip
    table = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    table.writeheader()
    for row in record.rows:
        table.writerow({**about, **_size(record, row, asked.skip)})
    return text.getvalue().encode()


def _size(record: RunRecord, row: SizeRow, skip: int) -> Mapping[str, Any]:
    pattern, stats = record.options.pattern, stats_of(row.first.slowest_us, skip)
    out_of_place, in_place = record.sides(row)
    return {
        "size_bytes": row.size, "count": record.count(row), "type": pattern.printed_type,
        "redop": pattern.redop, "root": pattern.printed_root,
        **_side("", out_of_place), **_side("in_place_", in_place),
        "iterations": len(row.iteration_us) or record.options.iters,
        **({} if stats is None else {name: round(getattr(stats, name), 3) for name in _STATS}),
    }  # fmt: skip


def _side(begin: str, figures: Figures | None) -> Mapping[str, Any]:
    if figures is None:
        return {}
    names = [f"{begin}{name}" for name in ("time_us", "algbw_gbs", "busbw_gbs", "wrong")]
    values = (round(figures.time_us, 3), f"{figures.algbw:.6g}", f"{figures.busbw:.6g}", figures.wrong)
    return dict(zip(names, values, strict=True))
