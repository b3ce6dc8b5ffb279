"""The tables and the fabric file of `./inv import sonic`. `./inv test golden -- --regen-goldens` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle_plugins.readers.sonic.fromsonic import fabric_yaml, import_sonic, import_text

HERE = Path(__file__).parent / "sonic"


def test_an_import_prints_exactly_these_tables_and_its_file_is_a_fabric(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(HERE)
    found = import_sonic("config_db.json", "zone")
    golden("readers/sonic/tables.log", f"{import_text(found.rows)}\n")
    text = fabric_yaml(found.data, found.sources, ["./inv import sonic config_db.json --onto zone"])
    golden("readers/sonic/zone.yml", text)
    file = tmp_path / "zone.yml"
    file.write_text(text)
    queues = load_fabric(str(file)).fabric.policy.queues
    assert queues.paused == (3, 4) and queues.ecn.curve(4) == (80_000, 400_000, 1.0)
