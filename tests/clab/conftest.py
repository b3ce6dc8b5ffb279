"""Tests of what exists in containers only, with the real engine and containerlab (fixture `engine`, tests/conftest.py).

Tests of tests/netns with the mark `containers` run in this suite, too. docs/testing-heddle.md lists them, and what
each proves of the contract that a runtime keeps.
"""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def engine_in_use(engine: None) -> None:
    """Every test here has an engine."""


@pytest.fixture(autouse=True)
def no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
