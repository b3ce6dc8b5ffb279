"""Pictures of the manual: one that is older than what it shows is found, and so is one that was changed by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from heddle.base.problems import CheckError
from heddle.cli import checkout_verbs
from heddle.cli.console import Console
from tests.browser import docpictures
from tests.browser.docpictures import DIGESTS, SHOWN, stale


def test_no_picture_is_older_than_what_it_shows() -> None:
    assert stale() == {}, f"run {docpictures.MADE_BY}"


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of docs/ that is looked at instead."""
    shutil.copytree(docpictures.DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("*.md", "results"))
    monkeypatch.setattr(docpictures, "DOCS", tmp_path / "docs")
    return tmp_path / "docs"


def test_a_picture_that_was_replaced_removed_or_added_is_named(docs: Path) -> None:
    with (docs / "demo.svg").open("a") as file:
        file.write("<!-- by hand -->")
    (docs / "dashboard.png").unlink()
    shutil.copy(docs / "dcqcn.png", docs / "new.png")
    assert stale() == {
        "dashboard.png": "is missing",
        "demo.svg": f"is not the file that {docpictures.MADE_BY} has written",
        "new.png": "is made by no function of tests/browser/docpictures.py",
    }
    with pytest.raises(CheckError) as found:
        checkout_verbs._generated(Console(), write=False)
    said = {" ".join(str(each).split()) for each in found.value.problems}
    assert f"docs/dashboard.png is missing hint: run {docpictures.MADE_BY}" in said
    (docs / DIGESTS).unlink()
    assert stale().keys() == {*SHOWN, "new.png"}


@pytest.mark.parametrize(
    ("change", "older"),
    [
        (("heddle.runs.runtable.RunHead.program", property(lambda _: "all-reduce")), {"demo.svg"}),
        (("heddle.runs.parts.PARTS", {"a new part": object}), {"demo.svg"}),
        (("heddle.views.picturelayout.MARKS", {0.0: "0 %", 0.36: "36 %"}), {"report-fabric.png", "dashboard.png"}),
        (("heddle.views.queuepicture.MARKED", "#00ff00"), {"report-queue.png", "dcqcn.png", "trimming.png"}),
    ],
)
def test_a_change_of_what_is_drawn_makes_the_picture_old(
    change: tuple[str, object], older: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = change
    before = stale()
    monkeypatch.setattr(name, value)
    if name.endswith("PARTS"):
        monkeypatch.setattr(docpictures, "PARTS", value)
    assert {name: why for name, why in stale().items() if name not in before} == dict.fromkeys(
        older, "is older than what it shows"
    )


def test_the_dashboard_is_its_scripts_and_comments_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = docpictures.page_text()
    for folder in ("templates", "plugins/dashboard/templates"):
        shutil.copytree(docpictures.ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(docpictures, "ROOT", tmp_path)
    script = tmp_path / "plugins/dashboard/templates/panels.js"
    text = script.read_text()
    script.write_text(f"// a comment more\n{text}")
    assert docpictures.page_text() == before
    script.write_text(text.replace('"busbw GB/s (emulated)"', '"busbw"'))
    assert docpictures.page_text() != before
