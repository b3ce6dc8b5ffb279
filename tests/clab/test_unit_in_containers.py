"""Workshop units that use containers differently from unit 01, which tests/netns takes through containers.

Unit 06 runs a program of the host's image: its Python sends a pause frame. Unit 07 has runs between containers, with
admission, with DCQCN, and with a slow receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns.test_workshop_units import go_through


@pytest.mark.deep
@pytest.mark.timeout(900)  # 20 commands, each of which enters containers
@pytest.mark.parametrize("unit", ["06-pfc", "07-admission-and-dcqcn"])
def test_a_unit_in_containers(
    unit: str, name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_through(unit, "containerlab", name, tmp_path, leftovers, monkeypatch)
