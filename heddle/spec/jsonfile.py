"""JSON as plain data with a line number for every key and value, as yamlfile.py reads YAML.

In:  the text of a JSON file. Out: Document, and the keys that the file has twice: as in other readers the last one
counts. Each single value stays a string: numbers and words as the file has them.
`json` checks the syntax; it gives no lines and hides keys that are there twice, so a second pass makes the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from heddle.base.printable import printable
from heddle.base.problems import InputError, Problem
from heddle.spec.yamlfile import MAX_DEPTH, Document, Mark, Trail

_TOKEN: Final = re.compile(r'\n|"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\]:,"]+')
_SHOWN: Final = 60  # characters of a value in a message


Repeated = tuple[Trail, int, int]  # a key, the line that does not count, and the line that does


def parse_json(text: str, source: str, most: int) -> tuple[Document, list[Repeated]]:
    """Read an object. InputError for what is not JSON, too deep a nesting, or more than `most` values."""
    if not text.strip():
        raise InputError(Problem(source, "the file", "is empty", "name a JSON file"))
    try:
        data = json.loads(text, parse_constant=_no_number, parse_int=str)  # str: of any length
    except json.JSONDecodeError as error:
        why = f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise InputError(Problem(f"{source}:{error.lineno}", f"column {error.colno}", why)) from None
    except RecursionError:
        raise InputError(Problem(source, "the file", f"is nested deeper than {MAX_DEPTH} levels")) from None
    except ValueError as error:
        raise InputError(Problem(source, "the file", f"has a number that cannot be read: {error}")) from None
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise InputError(Problem(source, "the file", f"holds {kind}, not keys and values"))
    reader = _JsonReader(source, _tokens(text), most)
    found = reader.read((), *next(reader.tokens))
    return Document(found, source, reader.marks), reader.repeated


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Every token but colons and commas, with its line."""
    line = 1
    for found in _TOKEN.finditer(text):
        if found[0] == "\n":
            line += 1
        else:
            yield found[0], line


def _word(piece: str) -> str:
    """The text of a key or a single value. Names are printed, and a line feed in one would begin another line."""
    if not piece.startswith('"'):
        return piece
    return printable(str(json.loads(piece)) if "\\" in piece else piece[1:-1])


@dataclass(slots=True)
class _JsonReader:
    """The data of tokens whose syntax is right."""

    source: str
    tokens: Iterator[tuple[str, int]]
    most: int
    marks: dict[Trail, Mark] = field(default_factory=dict)
    repeated: list[Repeated] = field(default_factory=list)

    def read(self, trail: Trail, piece: str, line: int) -> Any:
        where = f"{self.source}:{line}"
        if len(trail) > MAX_DEPTH:
            raise InputError(Problem(where, "the file", f"is nested deeper than {MAX_DEPTH} levels"))
        if len(self.marks) > self.most:
            raise InputError(Problem(where, "the file", f"has more than {self.most:,} values"))
        if piece == "[":
            self.marks[trail] = Mark(where)
            return [self.read((*trail, at), *each) for at, each in enumerate(self._until("]"))]
        if piece != "{":
            word = _word(piece)
            self.marks[trail] = Mark(where, word if len(word) <= _SHOWN else f"{word[: _SHOWN - 3]}...")
            return word
        self.marks[trail] = Mark(where)
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, at in self._until("}"):
            name = _word(key)
            here = (*trail, name)
            if name in lines:
                self.repeated.append((here, lines[name], at))
            lines[name] = at
            found[name] = self.read(here, *next(self.tokens))
            self.marks[here] = Mark(f"{self.source}:{at}", self.marks[here].text)
        return found

    def _until(self, end: str) -> Iterator[tuple[str, int]]:
        for token, line in self.tokens:
            if token == end:
                return
            yield token, line
