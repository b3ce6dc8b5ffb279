"""The pages of the manual that are made from the code, and the list of variables against the code that reads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.site import reference
from heddle.base.variables import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
OWN = {"HEDDLE_EXEC", "HEDDLE_PROGRAM", "HEDDLE_PLACE", "HEDDLE_FILES", "HEDDLE_FILES_ONLY"}  # Heddle sets them


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../../docs/{name}.md", reference.PAGES[name]())


def test_a_page_that_differs_or_is_missing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs/site", tmp_path / "site")
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    monkeypatch.setattr(reference, "PAGES", {name: reference.PAGES[name] for name in ("metrics", "causes")})
    assert reference.stale() == ["metrics", "causes"]
    reference.write()
    assert reference.stale() == []
    (tmp_path / "causes.md").write_text("older\n")
    assert reference.stale() == ["causes"]


def test_a_name_without_a_text_and_a_text_without_a_name_are_errors() -> None:
    with pytest.raises(ValueError, match=r"causes: missing, or not in the code: .*node-down"):
        reference._texts("causes", ["link-down"])
    with pytest.raises(ValueError, match="rows: missing, or not in the code: b, c"):
        reference._rows("rows", ["a", "b"], [["`a`, `c`", "text"]])


def test_every_variable_that_the_code_reads_is_listed() -> None:
    files = [ROOT / "inv", *(ROOT / "heddle").rglob("*.py")]
    read = {name for file in files for name in re.findall(r"""["'{$](HEDDLE_[A-Z_]+)["'}:]""", file.read_text())}
    assert read - OWN == {each.name for each in VARIABLES if each.name.startswith("HEDDLE_")}
