"""What is below here needs the real engine and containerlab; fixture `engine` of tests/conftest.py has both."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def engine_in_use(engine: None) -> None:
    """Every test here has an engine."""


@pytest.fixture(autouse=True)
def no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
