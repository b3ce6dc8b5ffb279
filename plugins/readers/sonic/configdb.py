"""The tables of a config_db.json as they are read, and what becomes of each key.

In:  Document of a JSON file. Keys of the file are trails: (table, entry, field).
Out: `rows`, one ImportedKey for each key or group of equal keys, and `settings`: path of a fabric file -> value.
Sizes are bytes, as in the file; times are nanoseconds on hardware.
`json` checks the syntax; it gives no lines and hides keys that are there twice, so a second pass makes the Document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from heddle.base.ethernet import CLASSES
from heddle.base.problems import InputError, Problem, Problems, printable
from heddle.base.units import WHOLE_NUMBER
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


_MOST: Final = 2**63


@dataclass(frozen=True, slots=True)
class ImportedKey:
    """A key of the file. line, key, value: of its first entry; more: the number of other entries with the same value.

    paths: keys of the fabric file that it sets, none if it is not modelled. becomes: their value. why: the reason, or
    how the value was derived.
    """

    line: int
    key: str
    value: str
    more: int
    paths: tuple[str, ...]
    becomes: str = ""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "line": self.line, "key": self.key, "value": self.value, "entries": self.more + 1,
            "applied": bool(self.paths), "paths": [*self.paths], "becomes": self.becomes, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """One value of a field, with the entries that have it. classes: those in the entries' names; empty: none."""

    value: str
    classes: tuple[int, ...]
    trails: tuple[Trail, ...]
    ports: int

    @property
    def instead(self) -> str:
        """The reason that other entries are not modelled."""
        count = "1 port or entry has" if self.ports == 1 else f"{self.ports} ports or entries have"
        return f"all ports of the fabric are alike: they get {self.value or 'none'}, as {count}"


@dataclass(slots=True)
class ConfigDb:
    """The file, what has been decided about its keys, and the problems found in them."""

    document: Document
    tables: Mapping[str, Any]
    above: Trail = ()  # the trail of a group that has all tables
    rows: list[ImportedKey] = field(default_factory=list)
    settings: dict[str, tuple[Any, Trail]] = field(default_factory=dict)
    decided: set[Trail] = field(default_factory=set)
    problems: Problems = field(default_factory=Problems)
    _up: dict[str, bool] = field(default_factory=dict)
    _wrong: set[Trail] = field(default_factory=set)
    _groups: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def line(self, trail: Trail) -> int:
        """The line of a key, from 1."""
        return int(self.document.where((*self.above, *trail)).rpartition(":")[2])

    def where(self, trail: Trail) -> str:
        """`config_db.json:14`."""
        return self.document.where((*self.above, *trail))

    def wrong(self, trail: Trail, why: str, hint: str = "") -> None:
        """Add a problem at a key; the caller goes on to find more. Only the first of a key is kept."""
        if trail in self._wrong:
            return
        self._wrong.add(trail)
        self.decided.add(trail)
        text = self.document.text((*self.above, *trail))
        what = f"{name_of(trail)}: {text}" if text else name_of(trail)
        self.problems.found.append(Problem(self.where(trail), what, why, hint))

    def entries(self, table: str) -> Mapping[str, Mapping[str, Any]]:
        """The entries of a table by name; a problem for what is not a group of keys."""
        if table not in self._groups:
            found = self.tables.get(table, {})
            if not isinstance(found, dict):
                self.wrong((table,), "is not a group of keys")
                found = {}
            for name, each in found.items():
                if not isinstance(each, dict):
                    self.wrong((table, name), "is not a group of keys")
            self._groups[table] = {name: each for name, each in found.items() if isinstance(each, dict)}
        return self._groups[table]

    def text(self, table: str, entry: str, key: str) -> str | None:
        """A field's value; None if it is not there, or is no single value, which is a problem."""
        value = self.entries(table).get(entry, {}).get(key)
        if value is None or isinstance(value, str):
            return value
        self.wrong((table, entry, key), f"is a {'list' if isinstance(value, list) else 'group'}, but must be one value")
        return None

    def number(self, table: str, entry: str, key: str, low: int = 0, high: int = _MOST) -> int | None:
        """A whole number from low to high; None if it is not there or wrong, which is a problem."""
        text = self.text(table, entry, key)
        if text is None:
            return None
        if not WHOLE_NUMBER.fullmatch(text):
            self.wrong((table, entry, key), "is not a whole number")
        elif not low <= int(text) <= high:
            self.wrong((table, entry, key), f"is not from {low} to {high}")
        else:
            return int(text)
        return None

    def name(self, table: str, entry: str) -> str:
        """The entry that a reference means: `[TABLE|NAME]`, as older files have it, is NAME. Empty: it is not there."""
        word = entry.removeprefix(f"[{table}|").removesuffix("]")
        return word if word in self.entries(table) else ""

    def held(self, table: str, key: str) -> list[Held]:
        """The values of a field in all entries of a table, the one of the most ports first."""
        found: dict[tuple[str, tuple[int, ...]], list[Trail]] = {}
        for entry, fields in self.entries(table).items():
            if key in fields and (text := self.text(table, entry, key)) is not None:
                found.setdefault((text, self._classes(table, entry)), []).append((table, entry, key))
        groups = [
            Held(value, classes, tuple(trails), sum(self._ports(str(trail[1])) for trail in trails))
            for (value, classes), trails in found.items()
        ]
        return sorted(groups, key=lambda each: -each.ports)

    def _ports(self, entry: str) -> int:
        """The number of ports that an entry's name has; those that are down do not count where others are up."""
        if not self._up:
            states = {name: self.text("PORT", name, "admin_status") for name in self.entries("PORT")}
            up = {name for name, state in states.items() if state == "up"}
            self._up.update({name: name in up or not up for name in states})
            self._up[""] = True  # read once, also without a table PORT
        return sum(self._up.get(port, True) for port in entry.partition("|")[0].split(","))

    def _classes(self, table: str, entry: str) -> tuple[int, ...]:
        """`Ethernet0|3-4` -> 3, 4. Only the last part can be classes: a chassis has more parts before it."""
        _, bar, text = entry.rpartition("|")
        low, dash, high = text.partition("-")
        if not bar:
            return ()
        if not (low.isdecimal() and (high if dash else low).isdecimal() and len(text) <= 5):
            self.wrong((table, entry), "does not end with numbers of classes, as in Ethernet0|3-4")
            return (CLASSES,)
        found = tuple(range(int(low), int(high if dash else low) + 1))
        if not found:
            self.wrong((table, entry), f"has classes {text}, the higher one first", f"write {high}-{low}")
        return found or (CLASSES,)

    def of_class(self, groups: Iterable[Held], number: int) -> Held | None:
        """The value that most ports have for a class."""
        return next((each for each in groups if number in each.classes), None)

    def common(self, table: str, key: str) -> Held | None:
        """The value that most ports have; the others are listed as not modelled."""
        first, *rest = [*self.held(table, key), None]
        for each in rest:
            if each is not None and first is not None:
                self.leave(each.trails, first.instead)
        return first

    def apply(self, trails: Sequence[Trail], settings: Mapping[str, Any], why: str = "") -> None:
        """Set keys of the fabric file by these entries, which have equal values."""
        for path, value in settings.items():
            self.settings[path] = (value, trails[0])
        self.read(trails, tuple(settings), ", ".join(dict.fromkeys(map(as_text, settings.values()))), why)

    def read(self, trails: Sequence[Trail], paths: Sequence[str], becomes: str, why: str = "") -> None:
        """These entries, which have equal values, take part in keys that another entry sets."""
        self._row(trails, tuple(paths), becomes, why)

    def leave(self, trails: Sequence[Trail], why: str) -> None:
        """These entries, which have equal values, are not modelled."""
        self._row(trails, (), "", why)

    def leave_keys(self, entry: Trail, keys: Sequence[str], why: str) -> None:
        """Several keys of an entry, of which it has at least one, are not modelled."""
        trails = [(*entry, key) for key in keys]
        self.decided.update(trails)
        self.leave_all(entry, ", ".join(keys), why, min(map(self.line, trails)))

    def leave_all(self, trail: Trail, value: str, why: str, line: int = 0) -> None:
        """A table or an entry is not modelled. value: what it contains, in words. line: if it is not its own."""
        self.decided.add(trail)
        self.rows.append(ImportedKey(line or self.line(trail), name_of(trail), value, 0, (), "", why))

    def _row(self, trails: Sequence[Trail], paths: tuple[str, ...], becomes: str, why: str) -> None:
        first = trails[0]
        self.decided.update(trails)
        here: Any = self.tables
        for step in first:
            here = here[step]
        value = ", ".join(here) if isinstance(here, list) and all(isinstance(x, str) for x in here) else ""
        value = here if isinstance(here, str) else value
        self.rows.append(ImportedKey(self.line(first), name_of(first), value, len(trails) - 1, paths, becomes, why))


def name_of(trail: Trail) -> str:
    """`BUFFER_PG|Ethernet0|3-4|profile`: a key as SONiC's commands write it."""
    return "|".join(str(step) for step in trail) or "the file"


def as_text(value: Any) -> str:
    """A value as a fabric file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
