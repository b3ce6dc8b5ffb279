"""Rows of exact-match tables: CSV files, YAML files, and single entries.

In:  a file's name, or words (`rtsw1 50001 10.0.1.0/24 eth3`).
Out: switch -> (UDP source port, prefix) -> port, and the line of each row; every row that cannot be read is a problem.
rehash.check_exact checks that these switches, prefixes and ports exist.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final

from heddle.base.families import Network
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, Problems
from heddle.cli.helptexts import EXAMPLE_ROW
from heddle.spec.yamlfile import Document, ReadOptions, parse, read_text

COLUMNS: Final = ("switch", "sport", "prefix", "port")
_READING: Final = ReadOptions(max_bytes=16 << 20, values=2_000_000, kind="exact-match table", example="docs/hashing.md")

Row = tuple[str, list[str]]  # its file and line, and its words


@dataclass
class ExactRows:
    """The rows of all sources, and the mistakes in them."""

    tables: dict[str, dict[tuple[int, Network], str]] = field(default_factory=dict)
    where: dict[tuple[str, int, Network], str] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)

    def add(self, rows: Sequence[Row]) -> None:
        """Read rows; a duplicate, in this source or an earlier one, is a problem."""
        for place, words in rows:
            if len(words) != len(COLUMNS):
                what = " ".join(" ".join(words).split()) or "an empty row"  # an unclosed quote spans lines
                self.problems.add(
                    where=place,
                    what=what,
                    why=f"is not a row of {', '.join(COLUMNS)}",
                    hint=f"for example {EXAMPLE_ROW}",
                )
                continue
            switch, sport, prefix, port = words
            if not (sport.isascii() and sport.isdecimal()):
                hint = "use a UDP source port: 1 to 65535"
                self.problems.add(where=place, what=f"{switch} {sport}", why="is not a port number", hint=hint)
                continue
            try:
                key = int(sport), ip_network(prefix)
            except ValueError as error:
                self.problems.add(
                    where=place, what=prefix, why=f"is not a prefix: {error}", hint="for example 10.0.1.0/24"
                )
                continue
            if (switch, *key) in self.where:
                why = f"is a duplicate of {self.where[switch, *key]}"
                self.problems.add(where=place, what=f"{switch} {sport} {prefix}", why=why, hint="keep one of the two")
                continue
            self.where[switch, *key] = place
            self.tables.setdefault(switch, {})[key] = port


def entry_rows(texts: Sequence[str]) -> list[Row]:
    """The rows of --entry."""
    return [("--entry", text.replace(",", " ").split()) for text in texts]


def file_rows(path: str) -> list[Row]:
    """Rows of a table file: YAML by its suffix, else CSV with a header. InputError when it is neither."""
    text = read_text(real(path), path, _READING)
    if path.endswith((".yml", ".yaml")):
        return _yaml_rows(parse(text, path, _READING), path)
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    rows = [(f"{path}:{reader.line_num}", [cell.strip() for cell in row]) for row in reader if any(row)]
    if not rows or tuple(rows[0][1]) != COLUMNS:
        hint = f"write {','.join(COLUMNS)} as its first line"
        raise InputError(Problem(f"{path}:1", "the table", "has no line with the names of its columns", hint))
    return rows[1:]


def _yaml_rows(document: Document, path: str) -> list[Row]:
    entries = document.data.get("entries")
    example = ", ".join(f"{column}: {word}" for column, word in zip(COLUMNS, EXAMPLE_ROW.split(), strict=True))
    hint = f"entries: [{{{example}}}]"
    if set(document.data) != {"entries"} or not isinstance(entries, list):
        raise InputError(Problem(path, "the table", "is not a list of entries", hint))
    problems = Problems()
    rows: list[Row] = []
    for index, entry in enumerate(entries):
        place = document.where(("entries", index))
        if not isinstance(entry, dict) or set(entry) != set(COLUMNS):
            why = f"does not have the keys {', '.join(COLUMNS)}"
            problems.add(where=place, what=f"entries[{index}]", why=why, hint=hint)
            continue
        rows.append((place, [_word(entry[column]) for column in COLUMNS]))
    problems.raise_if_any()
    return rows


def _word(value: Any) -> str:
    return str(value).strip()
