"""JSON lines of NCCL's Inspector plugin: one object for each operation at each rank (format v4.0).

In:  a stored run with the time of each iteration at each rank. Out: lines as inspector_json.cc of NVIDIA/nccl writes
them, without its event trace; its perf_summary_exporter.py reads them from a file whose name ends with .log or .jsonl.
An operation is a timed iteration. Bandwidths are emulated. Inspector has a file for each process; here one file has
all ranks, whose host is in `hostname`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from heddle.runs.exports.asked import Asked
from heddle.runs.ncclnames import collective_name
from heddle.runs.runrecord import RunRecord
from heddle.runs.stored import StoredRun

_FORMAT: Final = "v4.0"
_RECORDED_BY: Final = "heddle"


def written(run: StoredRun, asked: Asked) -> bytes:
    """The file."""
    rows = run.record.rows
    if rows and not any(row.rank_us for row in rows):
        raise run.unusable("its Heddle was older, and did not record the times of each rank")
    return "".join(
        json.dumps(each, separators=(",", ":")) + "\n" for each in _operations(run.record, asked.skip)
    ).encode()


def _operations(record: RunRecord, skip: int) -> Iterator[dict[str, Any]]:
    """In the order of time: sizes, iterations, ranks. coll_sn counts the operations of a communicator."""
    o, now, number = record.options, 0.0, 0
    groups = record.communicators or (tuple(range(len(record.ranks))),)
    began_us = datetime.fromisoformat(record.when).timestamp() * 1e6
    factor = o.pattern.busbw_factor(len(groups[0]))
    for size, figures in ((row.size, each) for row in record.rows for each in row.all):
        for index in range(skip, len(figures.iteration_us)):
            number += 1
            now += max(times[index] for times in figures.rank_us)
            for place, ranks in enumerate(groups):
                nodes = len({record.ranks[rank].host for rank in ranks})
                same = zlib.crc32(f"{record.lab}/{record.id}/{place}".encode())  # in every export of the run
                about = {"id": f"0x{same:014x}", "comm_name": record.job or f"{record.lab}-{place}"}
                for number_there, rank in enumerate(ranks):
                    us = figures.rank_us[rank][index]
                    algbw = size / us / 1e3
                    yield {
                        "header": {**about, "rank": number_there, "n_ranks": len(ranks), "nnodes": nodes},
                        "metadata": {
                            "inspector_output_format_version": _FORMAT, "git_rev": f"heddle-{record.heddle}",
                            "rec_mechanism": _RECORDED_BY, "dump_timestamp_us": round(began_us + now),
                            "hostname": record.ranks[rank].host, "pid": rank,
                        },
                        "coll_perf": {
                            "coll": collective_name(o.collective), "coll_sn": number, "coll_msg_size_bytes": size,
                            "coll_exec_time_us": round(us), "coll_timing_source": "collective_cpu",
                            "coll_algobw_gbs": round(algbw, 6), "coll_busbw_gbs": round(algbw * factor, 6),
                        },
                    }  # fmt: skip
