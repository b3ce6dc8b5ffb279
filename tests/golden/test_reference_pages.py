"""The pages of the manual that are made from the code, and the list of variables against the code that reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base.variables import VARIABLES
from heddle.cli.program import commands_in
from tests.golden import referencepages

ROOT = Path(__file__).resolve().parents[2]
OWN = {"HEDDLE_EXEC", "HEDDLE_PROGRAM", "HEDDLE_PLACE", "HEDDLE_FILES", "HEDDLE_FILES_ONLY"}  # Heddle sets them


def page(name: str) -> str:
    if name == "verbs":
        import tasks

        return referencepages.verbs_page(commands_in(vars(tasks)))
    return referencepages.keys_page() if name == "fabric-keys" else referencepages.codes_page()


@pytest.mark.parametrize("name", ["verbs", "fabric-keys", "exit-codes-and-variables"])
def test_a_page_of_the_reference_is_what_the_code_says(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../../docs/{name}.md", page(name))


def test_every_variable_that_the_code_reads_is_listed() -> None:
    files = [ROOT / "inv", *(ROOT / "heddle").rglob("*.py")]
    read = {name for file in files for name in re.findall(r"""["'{$](HEDDLE_[A-Z_]+)["'}:]""", file.read_text())}
    assert read - OWN == {each.name for each in VARIABLES if each.name.startswith("HEDDLE_")}
