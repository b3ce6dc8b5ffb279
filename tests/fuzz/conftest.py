"""The fixture of fuzz tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.cases import Fuzz

SEED = 1


def pytest_report_header(config: pytest.Config) -> str:
    return f"fuzz seed: {config.getoption('--fuzz-seed')} (--fuzz-seed N chooses another one)"


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, tmp_path: Path) -> Fuzz:
    """The cases of a test. Their seed is --fuzz-seed SEED, or SEED:NUMBER for one case of it."""
    seed, _, only = str(request.config.getoption("--fuzz-seed")).partition(":")
    name = str(request.node.originalname).removeprefix("test_")
    return Fuzz(name, tmp_path, int(seed), int(only) if only else None)
