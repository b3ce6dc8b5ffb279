"""Runs in a directory of the test's own, and a lab that has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heddle.runs.measured import write_evidence
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History
from tests.unit import run_samples as samples


def keep(history: History, record: RunRecord | None = None, payload: int = 0) -> str:
    """One more run; its ID. payload: bytes of another file in it."""
    with history.draft() as draft:
        write_evidence(draft, samples.result().flows, samples.evidence())
        if payload:
            (draft / "payload").write_bytes(bytes(payload))
        return history.keep(draft, record or samples.record()).id


def a_lab(history: History) -> Any:
    return SimpleNamespace(name="zone", dir=history.directory.parent, fabric=samples.FABRIC)
