"""nccl-tests' JSON, file version 3 (`-J FILE.json`; src/util.cu of nccl-tests 2.19.6).

In:  a stored run. Out: one JSON document with its keys in their order. There, booleans are the texts `true` and
`false`, numbers have six decimals, and `root` is padded to six letters.
Its own tools/analyze_perf_json.py reads the times of iterations, which a run has always: of each iteration the time at
each rank (`per_process_max_times_us`: a rank is a process of one GPU), and that of the slowest (`times_us`).
NCCL does not run: `nccl_version` is 0, and `env` and `device_info` say what was emulated. Times are UTC.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from heddle.endpoints.runoptions import typed_options
from heddle.runs.exports.asked import Asked
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import Figures, SizeRow, stats_of
from heddle.runs.stored import StoredRun

_VERSION: Final = 3
_TIME: Final = "%Y-%m-%d %H:%M:%S"


def written(run: StoredRun, asked: Asked) -> bytes:
    """The file."""
    return json.dumps(document(run.record, asked), separators=(",", ":")).encode() + b"\n"


def document(record: RunRecord, asked: Asked) -> dict[str, Any]:
    """The document of a run; of a failed run, with the sizes that it had measured."""
    rows, skip = record.rows, asked.skip
    began = datetime.fromisoformat(record.when)
    measured = [each for row in rows for each in row.all]
    wrong = record.wrong
    okay = "unchecked" if asked.min_busbw is None else _truth(not asked.below(rows))
    return {
        "version": _VERSION,
        "start_time": began.strftime(_TIME),
        "args": [record.program, *_arguments(record)],
        "env": [f"HEDDLE_EMULATED_K={record.k}", f"HEDDLE_LAB={record.lab}", f"HEDDLE_RUN={record.id}"],
        "nccl_version": 0,
        "config": _config(record, skip),
        "results": [_result(record, row, skip) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": _truth(not wrong)},
        "average_bus_bandwidth": {
            "bandwidth": _six(fmean(each.busbw for each in measured)) if rows else "nan", "okay": okay,
        },
        "errors": list(record.failure),
        "end_time": (began + timedelta(seconds=record.seconds)).strftime(_TIME),
    }  # fmt: skip


def _arguments(record: RunRecord) -> Iterator[str]:
    """The sizes as nccl-tests has them, and the other options that are not the default as they are typed."""
    sizes = record.options.sizes
    yield from (f"--minbytes={sizes[0]}", f"--maxbytes={sizes[-1]}")
    yield from (f"--{name.replace('_', '')}={step}" for name, step in _step(sizes).items())
    for word, texts in typed_options(record.options).items():
        if word in ("size", "collective"):
            continue
        yield from (f"--{word.replace('_', '-')}={text}" for text in texts)


def _config(record: RunRecord, skip: int) -> dict[str, Any]:
    o = record.options
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": o.sizes[0],
        "maximum_bytes": o.sizes[-1],
        **_step(o.sizes),
        "warmup_iters": o.warmup,
        "iterations": o.iters,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": _truth(False),
        "per_iter_timing": _truth(True),
        "per_iter_skip": skip,
        "parallel_init": _truth(False),
        "devices": _devices(record),
    }


def _step(sizes: Sequence[int]) -> dict[str, int]:
    """The factor between sizes, or the bytes; sizes that have neither have the bytes between the first two."""
    factors = {high / low for low, high in pairwise(sizes)}
    if len(factors) == 1 and (factor := factors.pop()).is_integer() and factor > 1:
        return {"step_factor": int(factor)}
    return {"step_bytes": sizes[1] - sizes[0] if len(sizes) > 1 else 1 << 20}


def _devices(record: RunRecord) -> list[dict[str, Any]]:
    """The NIC of each rank in place of its GPU. group: its communicator."""
    group = {rank: place for place, ranks in enumerate(record.communicators) for rank in ranks}
    seen: Counter[str] = Counter()
    found = []
    for each in record.ranks:
        about = f"{each.port} {each.ip} behind {each.first_hop}, emulated by Heddle at 1/{record.k} of its rate"
        found.append({
            "rank": each.rank, "group": group.get(each.rank, 0), "pid": 0, "hostname": each.host,
            "device": seen[each.host], "device_hex": "0000:00:00", "device_info": about,
        })  # fmt: skip
        seen[each.host] += 1
    return found


def _result(record: RunRecord, row: SizeRow, skip: int) -> dict[str, Any]:
    pattern = record.options.pattern
    out_of_place, in_place = record.sides(row)
    return {
        "size": row.size,
        "count": record.count(row),
        "type": pattern.printed_type,
        "redop": pattern.redop,
        "root": f"{pattern.printed_root:6d}",
        **_side("out_of_place", out_of_place, skip),
        **_side("in_place", in_place, skip),
        "actual_iterations": len(row.iteration_us) or record.options.iters,
        "experiment_name": "",
    }  # fmt: skip


def _side(name: str, figures: Figures | None, skip: int) -> dict[str, Any]:
    """The measurement out of place, or in place; with the times and statistics of its iterations, if it has them."""
    if figures is None:
        return {name: None}
    found: dict[str, Any] = {
        name: {
            "time": _six(figures.time_us), "alg_bw": _six(figures.algbw), "bus_bw": _six(figures.busbw),
            "nwrong": float(figures.wrong),
        }
    }  # fmt: skip
    times = figures.slowest_us
    stats = stats_of(times, skip)
    if stats is None:
        return found
    each = {"per_process_max_times_us": [list(rank) for rank in figures.rank_us]} if len(figures.rank_us) > 1 else {}
    found[f"{name}_per_iter"] = {
        "skipped_iterations": stats.skipped,
        "min_us": stats.min_us, "max_us": stats.max_us, "avg_us": _six(stats.avg_us), "p50_us": stats.p50_us,
        "p95_us": stats.p95_us, "p99_us": stats.p99_us, "stdev_us": _six(stats.stdev_us), "cv_pct": _six(stats.cv_pct),
        "times_us": list(times), **each,
    }  # fmt: skip
    return found


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _six(value: float) -> float:
    return round(value, 6)
