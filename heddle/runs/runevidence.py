"""Flows and evidence of a run: `evidence.json` in the run's directory.

In:  the flow rows of a result, and the Evidence that was collected around the run.
Out: the same, read again. heddle/proof/evidencefile.py defines the format of evidence and flows; this module adds the
counters of receivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from heddle.base import state
from heddle.proof import evidencefile
from heddle.proof.evidence import Evidence
from heddle.runs.files import read_object, undamaged
from heddle.runs.measured import FlowRow

EVIDENCE: Final = "evidence.json"


@dataclass(frozen=True, slots=True)
class _Received:
    """The part of a FlowRow that evidence does not have."""

    ce: int
    counters: Mapping[str, int]


_RECEIVED: Final = TypeAdapter(tuple[_Received, ...])


def write_evidence(directory: Path, flows: Sequence[FlowRow], evidence: Evidence) -> None:
    """Write evidence.json atomically. flows: those of the evidence, in its order."""
    rows = _RECEIVED.dump_python(tuple(_Received(row.ce, row.counters) for row in flows), mode="json")
    state.write_json(directory / EVIDENCE, {"received": rows, "evidence": evidencefile.to_json(evidence)})


def read_evidence(directory: Path) -> tuple[tuple[FlowRow, ...], Evidence]:
    """Read evidence.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / EVIDENCE)
    with undamaged(EVIDENCE):
        received, evidence = _RECEIVED.validate_python(data["received"]), evidencefile.from_json(data["evidence"])
        if not len(evidence.oracle) == len(evidence.sent) == len(received):
            raise ValueError("flows without evidence")
        taken = evidence.received or (None,) * len(evidence.sent)
        rows = zip(evidence.sent, received, taken, strict=True)
        return tuple(FlowRow(sent, each.ce, each.counters, count) for sent, each, count in rows), evidence
