"""What was sent in a run and what was counted: `evidence.json` in the run's directory.

In:  the flow rows of a result, and the Evidence that was collected around the run.
Out: the same, read again. heddle/proof/evidencefile.py knows how evidence looks in a file; rows look as FlowRow does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import state
from heddle.proof import evidencefile
from heddle.proof.evidence import Evidence
from heddle.runs.readable import UnreadableError, read_object
from heddle.runs.results import FlowRow

EVIDENCE: Final = "evidence.json"
_FLOWS: Final = TypeAdapter(tuple[FlowRow, ...])


def write_evidence(directory: Path, flows: Sequence[FlowRow], evidence: Evidence) -> None:
    """Write evidence.json, as a whole or not at all."""
    rows = _FLOWS.dump_python(tuple(flows), mode="json")
    state.write_json(directory / EVIDENCE, {"flows": rows, "evidence": evidencefile.to_json(evidence)})


def read_evidence(directory: Path) -> tuple[tuple[FlowRow, ...], Evidence]:
    """Read evidence.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / EVIDENCE)
    try:
        flows, evidence = _FLOWS.validate_python(data["flows"]), evidencefile.from_json(data["evidence"])
        if not len(evidence.oracle) == len(evidence.sent) == len(flows):
            raise ValueError("flows without evidence")
        return flows, evidence
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError):
        raise UnreadableError(f"{EVIDENCE} is damaged, or of another version of Heddle") from None
