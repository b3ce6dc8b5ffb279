"""The pages of the manual, docs/NAME.md: in a checkout as files, and in a wheel as package data.

Texts name a page by its path in a checkout, `docs/queues.md#pfc`. Where a wheel is installed, base/progname.py prints
`heddle explain docs/queues.md#pfc` in its place, which shows the page from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from heddle.base.problems import InputError, Problem, did_you_mean, machine_errors
from heddle.base.resources import DOCS, HERE

_PAGE: Final = re.compile(r"(?:docs/)?(?P<name>[a-z0-9-]+)\.md(?:#(?P<anchor>[\w-]+))?")
_HEADING: Final = re.compile(r"(?P<level>#+) +(?P<title>.+)")
_FENCE: Final = "```"


def is_page(text: str) -> bool:
    """Whether the text names a page: `docs/queues.md`, `queues.md#pfc`."""
    return _PAGE.fullmatch(text) is not None


def page_names() -> list[str]:
    """All pages, as `docs/queues.md`."""
    return sorted(f"{DOCS}/{path.name}" for path in HERE.content(DOCS).glob("*.md"))


def page_text(page: str) -> str:
    """The page, or the section that an anchor names. InputError when there is none; MachineError if unreadable."""
    match = _PAGE.fullmatch(page)
    name = f"{match['name']}.md" if match else page
    if f"{DOCS}/{name}" not in page_names():
        raise InputError(Problem("", page, "is not a page of the manual", did_you_mean(f"{DOCS}/{name}", page_names())))
    path = HERE.content(DOCS) / name
    with machine_errors(str(path)):
        text = path.read_text(encoding="utf-8")
    anchor = match["anchor"] if match else None
    if not anchor:
        return text
    lines = text.split("\n")
    found = list(headings(text))
    for number, (at, level, title) in enumerate(found):
        end = next((later for later, other, _ in found[number + 1 :] if other <= level), len(lines))
        if slug(title) == anchor or any(f'id="{anchor}"' in line for line in lines[at:end] if level > 1):
            return "\n".join(lines[at:end])
    hint = did_you_mean(anchor, [slug(title) for _, _, title in found])
    raise InputError(Problem("", page, "has no section of this name", hint))


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Line (from 0), level and title of each heading; lines of code are no headings."""
    code = False
    for at, line in enumerate(text.split("\n")):
        code ^= line.lstrip().startswith(_FENCE)
        if not code and (match := _HEADING.fullmatch(line)):
            yield at, len(match["level"]), match["title"].strip()


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
