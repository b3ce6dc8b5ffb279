"""The pages of the manual: printed by `explain`, each in its place of the site, links and anchors that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from heddle.base.problems import InputError
from heddle.cli.manual import headings, is_page, page_names, page_text, slug
from heddle.cli.program import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "labs").rglob("README.md"))]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s#]*)(?:#([^)\s]+))?\)|!\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)


def test_a_page_and_a_section_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    assert main(vars(tasks), ["inv", "explain", "docs/queues.md#pfc"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## PFC\n")
    assert "\n## " not in text
    assert main(vars(tasks), ["inv", "explain", "queues.md", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == page_text("docs/queues.md")
    assert not is_page("e-ecmp") and not is_page("../secret.md")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("docs/queue.md", r"is not a page of the manual\n  hint: did you mean docs/queues\.md\?"),
        ("docs/queues.md#pcf", r"has no section of this name\n  hint: did you mean pfc\?"),
    ],
)
def test_a_wrong_page_or_section_is_an_error_with_a_hint(page: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        page_text(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    for target, anchor, picture in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in (target or picture):
            continue
        path = (page.parent / (picture or target)).resolve() if picture or target else page
        assert path.exists(), f"{target or picture}: no such file"
        if anchor:
            text = path.read_text(encoding="utf-8")
            there = {slug(title) for _, _, title in headings(text)} | set(re.findall(r'id="([^"]+)"', text))
            assert anchor in there, f"{target}#{anchor}: no such heading"


def test_every_page_that_the_code_names_exists() -> None:
    files = [path for room in ("heddle", "labs", "topologies") for path in (ROOT / room).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".yml")]
    named = {name for text in texts for name in re.findall(r"\bdocs/([a-z-]+)\.md", text)}
    assert len(named) > 10
    assert {f"docs/{name}.md" for name in named} <= set(page_names())


def test_every_page_has_its_place_in_the_site() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(config[config.index("\nnav:") :])["nav"]
    groups = {next(iter(each)): next(iter(each.values())) for each in nav}
    assert list(groups) == ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Developer"]
    placed = [page for group in groups.values() if isinstance(group, list) for each in group for page in each.values()]
    pages = [name.removeprefix("docs/") for name in page_names()]
    assert sorted([*placed, "index.md"]) == sorted([*pages, "labs/README.md"])
