"""`./inv explain TERM`: an entry of the glossary; without a term, all of them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

from heddle.base.tables import table
from heddle.cli.console import Console
from heddle.cli.glossary import Term, by_topic, find_term, glossary
from heddle.cli.verbs import verb

_WIDEST: Final = 100  # longer lines of prose are hard to read


@verb(help={"term": "a term, in any case: MMR, e-ecmp, queue pair; without one, all terms are listed"},
      positional=["term"])  # fmt: skip
def explain(out: Console, term: Sequence[str] = ()) -> None:
    """Explain a term of AI fabrics: what it is, why it matters, the command that shows it, and where to read more.

    The steps of one hash decision are in ./inv hashing --explain.
    """
    if not term:
        return out.result({"terms": [each.to_json() for each in glossary()]}, _all())
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
    for topic, entries in by_topic():
        parts += [table([topic.ljust(wide + 2), ""], [(f"  {each.name}", each.says) for each in entries]), ""]
    return "\n".join([*parts, "./inv explain TERM says why a term matters, and which command shows it."])
