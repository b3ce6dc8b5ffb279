"""A workshop unit whose task runs a program of the host's image: unit 06 sends a pause frame with its Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns.test_workshop_units import go_through


@pytest.mark.timeout(900)  # 20 commands, each of which enters containers
def test_a_unit_that_uses_a_program_in_a_container(
    name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_through("06-pfc", "containerlab", name, tmp_path, leftovers, monkeypatch)
