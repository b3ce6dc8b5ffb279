"""The pytest plugin where only the wheel is installed: pytest finds it by its entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.netns.test_plugin import NOTE_NAMES, TEN_LINES, names
from tests.userplace import UserPlace
from tests.wheels import install


@pytest.mark.deep
def test_a_failure_with_only_the_wheel_names_the_program(
    wheel: Path, tmp_path: Path, leftovers: Callable[[str], list[str]]
) -> None:
    """Tests that pass with only the wheel: test_example_pipeline.py."""
    made = install(wheel, tmp_path / "the environment")
    place = UserPlace.below(tmp_path, test_mine=TEN_LINES.replace("1.8", "0.1"), conftest=NOTE_NAMES)
    place = replace(place, python=made.python)
    done = place.pytest("-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert leftovers(names(place)[-1]) == []
    assert "more      heddle paths shows all queue pairs" in done.stdout
    assert "./inv" not in done.stdout
