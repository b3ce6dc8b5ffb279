"""Fixtures that several modules of unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.runs.store import KEEP_BYTES, KEEP_RUNS, History


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.delenv(KEEP_RUNS, raising=False)
    monkeypatch.delenv(KEEP_BYTES, raising=False)
    return History("zone", tmp_path / "runs")
