"""The pages of the manual: printed by `explain`, each in its place of the site, links and anchors that exist."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from docs.site import reference
from heddle.cli.argv import parse
from heddle.cli.checkout_verbs import loaded_from_elsewhere
from heddle.cli.explain_verb import headings, is_page, page_names, page_text, slug
from heddle.cli.program import commands_in, main
from tests.answers import Answers

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


def test_a_wrong_page_or_section_is_an_error_with_a_hint(answers: Answers) -> None:
    answers(page_text)


def broken_links(page: Path, anchors: Callable[[Path], set[str]]) -> Iterator[str]:
    for target, anchor, picture in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in (target or picture):
            continue
        path = (page.parent / (picture or target)).resolve() if picture or target else page
        if not path.exists():
            yield f"{target or picture}: no such file"
        elif anchor and anchor not in anchors(path):
            yield f"{target}#{anchor}: no such heading"


def anchors_of(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    return {slug(title) for _, _, title in headings(text)} | set(re.findall(r'id="([^"]+)"', text))


def test_links_and_anchors_exist(tmp_path: Path) -> None:
    anchors = cache(anchors_of)
    wrong = [f"{page.relative_to(ROOT)}: {each}" for page in PAGES for each in broken_links(page, anchors)]
    assert len(PAGES) > 50 and not wrong, "\n".join(wrong)
    # The test sees what is wrong.
    (page := tmp_path / "page.md").write_text("# One\n[a](#one) [b](#two) [c](none.md) ![d](none.svg) `[e](none)`\n")
    assert list(broken_links(page, anchors)) == [
        "#two: no such heading", "none.md: no such file", "none.svg: no such file",
    ]  # fmt: skip


def test_every_page_that_the_code_names_exists() -> None:
    files = [path for room in ("heddle", "labs", "topologies") for path in (ROOT / room).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".yml")]
    named = {name for text in texts for name in re.findall(r"\bdocs/([a-z-]+)\.md", text)}
    assert len(named) > 10
    assert {f"docs/{name}.md" for name in named} <= set(page_names())


def test_every_page_has_its_place_in_the_site() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(config[config.index("\nnav:") : config.index("\nnot_in_nav:")])["nav"]
    groups = {next(iter(each)): next(iter(each.values())) for each in nav}
    assert list(groups) == ["Home", "Tutorial", "Workshop", "How-to", "Reference", "Explanation"]
    placed = [page for group in groups.values() for page in pages_of(group)]
    # Those for who changes Heddle are in no menu; the home page leads to them.
    apart = config.partition("\nnot_in_nav: |\n")[2].split()
    home = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert apart and all(f"({page})" in home for page in apart)
    assert re.search(r"^```sh\n\./inv ", home, re.MULTILINE) and "](demo.svg)" in home  # a command, and its result
    # The search works on pages that are opened as files.
    found = re.search(r"^plugins: \[search, offline\].*\n.*polyfills: \[([^]]*)\]", config, re.MULTILINE)
    assert found is not None and (ROOT / "docs" / found[1]).is_file()
    pages = [name.removeprefix("docs/") for name in page_names()]
    units = [path.relative_to(ROOT).as_posix() for path in (ROOT / "labs").rglob("*.md")]
    assert sorted([*placed, *apart]) == sorted([*pages, *units])


def pages_of(group: object) -> Iterator[str]:
    """The pages of a part of the menu."""
    if isinstance(group, str):
        yield group
    elif isinstance(group, list):
        for each in group:
            yield from pages_of(next(iter(each.values())))


def test_what_a_page_loads_from_elsewhere_is_found(answers: Answers) -> None:
    answers(lambda tag: loaded_from_elsewhere(f"<html>{tag}</html>"))


def test_a_directory_with_other_files_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    (tmp_path / "thesis.txt").touch()
    assert main(vars(tasks), ["inv", "docs", "--out", str(tmp_path)]) == 2
    assert "has something else than an older site\n  hint: name a new or an empty directory" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


NEW = [
    "README.md",
    *(f"docs/{name}.md" for name in ("index", "first-fabric", "trust", "troubleshooting", "comparison")),
]
NEW += [f"docs/for-{reader}.md" for reader in ("engineers", "researchers", "ci")]


def test_commands_of_pages_are_taken_by_the_parser() -> None:
    import tasks

    verbs = {name: command.verb for name, command in commands_in(vars(tasks)).items()}
    for page in NEW:
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        lines = [part for line in blocks.splitlines() for part in re.split(r"&&|\|\|| > ", line)]
        inline = [
            found for found in re.findall(r"`(\./inv [^`]+)`", text) if not re.search(r"\b[A-Z]{3,}\b|\b[AB]\b", found)
        ]
        typed = [shlex.split(line, comments=True) for line in [*lines, *inline] if "./inv " in line]
        for words in typed:
            name, *rest = words[words.index("./inv") + 1 :]
            assert name in verbs, (page, words)
            assert not rest or parse(verbs[name], rest) is not None, page


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)))


def test_rows_of_a_table_have_as_many_cells_as_its_head() -> None:
    wrong = []
    for page in PAGES:
        tables = re.findall(r"(?:^\|.*\n)+", without_code_blocks(page.read_text(encoding="utf-8")), re.MULTILINE)
        for head, *rows in (table.splitlines() for table in tables):
            wrong += [f"{page.relative_to(ROOT)}: {row[:80]}" for row in rows if cells(row) != cells(head)]
    assert not wrong, "\n".join(wrong)


def without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_the_ratios_of_the_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    svg = (ROOT / "docs/demo.svg").read_text(encoding="utf-8")
    plain = html.unescape(re.sub("<[^>]+>", "", svg)).replace("\xa0", " ")
    rows = re.findall(r"^\| (E?-?ECMP [^|]+) \| ([0-9.]+) \| ([0-9.]+) █+ \| (\d+ of \d+) \|$", text, re.MULTILINE)
    found = [re.search(rf"{re.escape(what)} +([0-9.]+) +([0-9.]+) +(\d+ of \d+)", plain) for what, *_ in rows]
    shown = [each.groups() for each in found if each is not None]
    first = float(shown[0][0])
    assert [(f"{float(busbw) / first:.2f}", mmr, proven) for busbw, mmr, proven in shown] == [each[1:] for each in rows]
    assert len(rows) == 3


# Words of a page that people write, at most. The generated reference does not count.
LONGEST = 850
LONGER = {
    "README.md": 700,
    "docs/architecture.md": 1370,
    "docs/kubernetes.md": 1000,
    "docs/queues.md": 1100,
    "docs/hashing.md": 970,
    "docs/experiments.md": 920,
    "docs/bring-your-own.md": 900,
    "docs/workloads.md": 880,
    "docs/congestion-control.md": 870,
    "labs/06-pfc/README.md": 1050,
}
ALL_WORDS = 43_100


def test_pages_keep_to_their_budgets_of_words() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "labs").rglob("*.md")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    words = {name: len(text.split()) for name, text in texts.items() if not text.startswith(reference.MADE)}
    assert len(texts) - len(words) == len(reference.PAGES)
    assert {name: count for name, count in words.items() if count > LONGER.get(name, LONGEST)} == {}
    assert sum(words.values()) <= ALL_WORDS
