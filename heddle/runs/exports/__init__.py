"""A stored run as a file that another tool reads: one format, one file here, one line in EXPORTS.

In:  StoredRun, also a failed or an interrupted one with the sizes that it measured. Out: the bytes of the file.
InputError when the run does not carry what the format needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from heddle.base.plugins import Registry
from heddle.runs.exports import inspector, nccljson, otg, perfetto, sizes
from heddle.runs.exports.asked import Asked
from heddle.runs.stored import StoredRun


@dataclass(frozen=True, slots=True)
class Export:
    """A format. what: for help. written: the bytes of the file."""

    what: str
    written: Callable[[StoredRun, Asked], bytes]


EXPORTS: Final[Registry[Export]] = Registry(
    "export",
    {
        "json": Export("nccl-tests' JSON, version 3, which its analyze_perf_json.py reads", nccljson.written),
        "csv": Export("a CSV file with one row for each size", sizes.written),
        "inspector": Export("JSON lines as NCCL's Inspector plugin writes them", inspector.written),
        "perfetto": Export("a trace of the run over time, for ui.perfetto.dev and chrome://tracing", perfetto.written),
        "otg": Export("a row for each QP in the columns of Open Traffic Generator, as JSON", otg.written),
    },
    Export,
)
