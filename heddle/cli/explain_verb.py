"""The verb `explain`: the terms of docs/glossary.yml, which of them a user's word means, and the pages of the manual.

Texts name a page by its path in a checkout, `docs/queues.md#pfc`. Where a wheel is installed, base/progname.py prints
`heddle explain docs/queues.md#pfc` in its place.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean, machine_errors, nearest
from heddle.base.resources import DOCS, HERE
from heddle.base.tables import table
from heddle.cli.argv import Option, Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb

_SOME: Final = 8  # terms that a hint names
_SHORT: Final = 3  # a shorter word is in too many terms by chance
_WIDEST: Final = 100  # longer lines of prose are hard to read


@verb(
    group="Learn",
    help={
        "term": Option(
            "a term, in any case: MMR, e-ecmp, queue pair; or a page of the manual: docs/queues.md#pfc; "
            "without one, all terms are listed",
            "heddle.cli.explain_verb:words_of_terms",
        )
    },
    positional=["term"],
    tool=Tool("Explain a term of AI fabrics; without a term, list all terms."),
)
def explain(out: Console, term: Sequence[str] = ()) -> None:
    """Explain a term of AI fabrics: what it is, why it matters, the command that shows it, and where to read more.

    With the name of a page it prints the page: ./inv explain docs/paths.md.
    The steps of one hash decision are in ./inv hashing --explain.
    """
    if not term:
        return out.result({"terms": [each.to_json() for each in glossary()]}, _all())
    if len(term) == 1 and is_page(term[0]):
        text = page_text(term[0])
        return out.result({"page": term[0], "text": text}, text)
    entry = find_term(term)
    return out.result({"terms": [entry.to_json()]}, entry_text(entry))


def _columns() -> int:
    """Columns for prose; also where stdout is a pipe, because people read it there, too."""
    return min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDEST


def entry_text(entry: Term) -> str:
    """An entry for people."""
    rows = {"why": entry.why, "see": entry.see.replace("`", ""), "more": f"docs/{entry.more}"}
    lines = [f"{name:<6}{line}" if not i else f"{'':<6}{line}"
             for name, text in rows.items()
             for i, line in enumerate(_wrapped(text, _columns() - 6))]  # fmt: skip
    return "\n".join([entry.title, "", *_wrapped(entry.says, _columns()), "", *lines])


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def _all() -> str:
    """Every term with its sentence, by topic."""
    wide = max(len(entry.name) for entry in glossary())
    parts = []
    for topic, entries in groupby(glossary(), key=lambda entry: entry.topic):
        parts += [table([topic.ljust(wide + 2), ""], [(f"  {each.name}", each.says) for each in entries]), ""]
    return "\n".join([*parts, "./inv explain TERM says why a term matters, and which command shows it."])


@dataclass(frozen=True, slots=True)
class Term:
    """One term. also: its other names; says: one sentence; why it matters; see: a command, between backquotes, that
    shows it in a running lab; more: a page, relative to docs/, perhaps with an anchor."""

    topic: str
    name: str
    also: tuple[str, ...]
    says: str
    why: str
    see: str
    more: str

    @property
    def title(self) -> str:
        """`MMR (max/mean ratio)`."""
        return f"{self.name} ({', '.join(self.also)})" if self.also else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All names; `Kmin and Kmax` is also each of the two."""
        parts = self.name.split(" and ")
        return (self.name, *self.also, *(parts if len(parts) > 1 else ()))

    @property
    def word(self) -> str:
        """The name as one word for a command line: `go-back-n`."""
        return self.name.lower().replace(" ", "-")

    def to_json(self) -> dict[str, Any]:
        return {
            "term": self.name, "also": list(self.also), "topic": self.topic, "text": self.says, "why": self.why,
            "see": self.see.replace("`", ""), "more": f"docs/{self.more}",
        }  # fmt: skip


@cache
def glossary() -> list[Term]:
    """The entries of docs/glossary.yml. MachineError when the installation does not have that file as it was."""
    import yaml

    path = HERE.content(DOCS) / "glossary.yml"
    try:
        topics = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (OSError, yaml.YAMLError) as error:
        raise MachineError(Problem(str(path), "the glossary", f"cannot be read: {error}")) from None
    return [
        Term(topic, name, tuple(entry.pop("also", ())), **entry)
        for topic, entries in topics.items()
        for name, entry in entries.items()
    ]


def words_of_terms() -> list[str]:
    """Each term as one word, for completion."""
    return [entry.word for entry in glossary()]


def find_term(words: Sequence[str]) -> Term:
    """The entry that the words mean, in any case and with or without hyphens; InputError when there is none."""
    typed = " ".join(words)
    names = {_key(name): entry for entry in reversed(glossary()) for name in reversed(entry.names)}
    wanted = _key(typed)
    for word in (wanted, wanted.removesuffix("s"), f"{wanted}s"):
        if word in names:
            return names[word]
    raise InputError(Problem("", f"explain {typed}", "is not in the glossary", _hint(typed, wanted, list(names))))


def _hint(typed: str, wanted: str, keys: Sequence[str]) -> str:
    """The nearest term, or terms that contain the word."""
    by_key = {_key(name): (name, entry) for entry in glossary() for name in entry.names}
    within = [
        entry.name for entry in glossary() if len(wanted) >= _SHORT and any(wanted in _key(n) for n in entry.names)
    ]
    if within:
        return f"terms with this word: {', '.join(within[:_SOME])}"
    if near := nearest(wanted, keys):
        name, entry = by_key[near]
        return f"did you mean {name}?" if name == entry.name else f"did you mean {name} ({entry.name})?"
    return "run ./inv explain to list all terms"


def _key(name: str) -> str:
    """Letters, digits and `#` only."""
    return re.sub(r"[^a-z0-9#]", "", name.lower())


_PAGE: Final = re.compile(r"(?:docs/)?(?P<name>[a-z0-9-]+)\.md(?:#(?P<anchor>[\w-]+))?")
_TITLE: Final = re.compile(r"(?P<level>#+) +(?P<title>.+)")
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
        if not code and (match := _TITLE.fullmatch(line)):
            yield at, len(match["level"]), match["title"].strip()


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
