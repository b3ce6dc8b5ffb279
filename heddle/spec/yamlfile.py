"""YAML as plain data with a line number for every key. Errors are problems, not exceptions of the parser.

In:  the text of a small YAML file.
Out: Document: the data, and for every dotted path its line and its value as the user wrote it.
The reader works on the node tree, not on loaded data: only nodes have line numbers, and only there duplicate keys are
visible. Words are read as in YAML 1.2 (`no` and `on` are words; only true and false are booleans): the rules of YAML
1.1 surprise more users than they help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from heddle.base.files import open_regular
from heddle.base.problems import InputError, Problem, Problems, printable
from heddle.base.units import WHOLE_NUMBER

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 16
_LONGEST_KEY: Final = 255  # letters of a key that are read; the longest valid key is a node's name, with 63
# Ten times as fast, but its messages are others, and _HINTS has none for them: for large files only.
_C_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Step = str | int
Trail = tuple[Step, ...]


class Word(str):
    """A single value as the file has it. `plain`: without quotes, so that it keeps its type when it is rewritten."""

    __slots__ = ("plain",)

    def __new__(cls, text: str, *, plain: bool = True) -> Word:
        """Make a word whose string value is `text`."""
        word = super().__new__(cls, text)
        word.plain = plain
        return word

    plain: bool


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file. words: values stay strings (Word). merges: merge keys (`<<`) are followed, as in YAML 1.1.

    values: the limit after aliases are expanded (a YAML bomb is small on disk). example: a file for hints.
    """

    max_bytes: int = MAX_BYTES
    values: int = 20_000
    words: bool = False
    merges: bool = False
    kind: str = "fabric file"
    example: str = "topologies/tiny.yml"


FABRIC_FILE: Final = ReadOptions()


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a key, and its value as the user wrote it (empty for a group or a list)."""

    where: str
    text: str = ""


@dataclass(slots=True)
class Document:
    """Plain data with a mark for every path in it."""

    data: dict[str, Any]
    source: str
    marks: dict[Trail, Mark] = field(default_factory=dict)

    def where(self, trail: Trail) -> str:
        """`zone.yml:14` for the path, or for its nearest parent that is in the file."""
        for length in range(len(trail), -1, -1):
            if trail[:length] in self.marks:
                return self.marks[trail[:length]].where
        return self.source

    def text(self, trail: Trail) -> str:
        """The value as written, or an empty string for a group, a list, or a key that is not there."""
        mark = self.marks.get(trail)
        return mark.text if mark else ""


def dotted(trail: Trail) -> str:
    """`queues.lossless[0]`."""
    out = ""
    for step in trail:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out


def read_text(path: Path, source: str, reading: ReadOptions = FABRIC_FILE) -> str:
    """The text of a UTF-8 file of limited size; InputError with the reason."""
    try:
        with open_regular(path) as file:
            raw = file.read(reading.max_bytes + 1)
    except FileNotFoundError:
        raise InputError(Problem("", source, "does not exist", "check the path")) from None
    except IsADirectoryError:
        raise InputError(Problem("", source, "is a directory", "name a file in it")) from None
    except OSError as error:
        raise InputError(Problem("", source, f"cannot be read: {error.strerror}")) from None
    if len(raw) > reading.max_bytes:
        why = f"is larger than {reading.max_bytes // 1024} KiB, the limit for any {reading.kind}"
        raise InputError(Problem("", source, why))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        why = f"is not UTF-8 text (byte 0x{raw[error.start]:02x})"
        raise InputError(Problem(f"{source}:{line}", "the file", why, "save it as UTF-8")) from None


def parse(text: str, source: str, reading: ReadOptions = FABRIC_FILE) -> Document:
    """Read a mapping; InputError carries every problem found (syntax, duplicate keys, depth, size, tags)."""
    node = _compose(text, source)
    if node is None:
        raise InputError(Problem(source, "the file", "is empty", f"{reading.example} is an example"))
    reader = _YamlReader(lambda n: _at(source, n.start_mark.line + 1), reading)
    data = reader.read(node, ())
    reader.problems.raise_if_any()
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        hint = f"write it as lines of key: value, as in {reading.example}"
        raise InputError(Problem(reader.at(node), "the file", f"holds {kind}, not keys and values", hint))
    return Document(data, source, reader.marks)


def parse_value(text: str, where: str, trail: Trail) -> tuple[Any, dict[Trail, Mark]]:
    """Read one value given outside a file (`--set queues.buffer=1MB`); marks all carry `where`."""
    node = _compose(text, where)
    if node is None:
        return None, {trail: Mark(where)}
    reader = _YamlReader(lambda _: where)
    data = reader.read(node, trail)
    reader.problems.raise_if_any()
    return data, reader.marks


def _at(source: str, line: int) -> str:
    # The value of a flag has no lines.
    return source if source.startswith("--") else f"{source}:{line}"


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        loader = _C_LOADER if len(text) > MAX_BYTES else yaml.SafeLoader
        # compose recurses once a level; the event stream does not, so depth is known before anything recurses.
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                where = _at(source, event.start_mark.line + 1) if event.start_mark else source
                raise InputError(Problem(where, "the file", f"is nested deeper than {MAX_DEPTH} levels"))
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        raise InputError(_syntax(error, text, source)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1])
        what = f"character U+{code:04X}"
        raise InputError(Problem(_at(source, line), what, "is not allowed in YAML", "remove it")) from None


# Message of the YAML parser -> hint for the most likely cause.
_HINTS: Final = {
    "mapping values are not allowed": "put a value with ': ' in quotes; if it is a key, check the indentation",
    "expected <block end>": "indent the keys of one group equally",
    "could not find expected ':'": "write a colon and a space between key and value",
    "unexpected end of stream": "close the quote that is still open",
    "expected ',' or '": "close the bracket that is still open, or add the missing comma",
    "undefined alias": "put a value that begins with * in quotes",
    "cannot start any token": "put a value that begins with this character in quotes",
}


def _syntax(error: yaml.MarkedYAMLError, text: str, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    where = _at(source, line)
    message = (error.problem or "something is not YAML here").strip()
    rows = text.splitlines()
    row = rows[line - 1] if line <= len(rows) else ""
    if "\t" in row[: len(row) - len(row.lstrip())] or "'\\t'" in message:
        return Problem(where, "the line", "is indented with a tab, which YAML forbids", "use spaces")
    if isinstance(error, yaml.composer.ComposerError) and "single document" in str(error.context):
        return Problem(where, "the file", "holds more than one document", "keep only the part above ---")
    hint = next((hint for words, hint in _HINTS.items() if words in message), "")
    shown = f"column {mark.column + 1}" if mark else "the line"
    return Problem(where, shown, f"is not YAML: {message}", hint)


_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")  # a quoted text can have them, as "\\0"
_MERGE: Final = "tag:yaml.org,2002:merge"
_TAGS: Final = frozenset({"!"}).union(
    f"tag:yaml.org,2002:{t}" for t in ("null", "bool", "int", "float", "str", "timestamp", "map", "seq")
)


def _scalar(node: yaml.Node) -> Any:
    word = str(node.value)
    if not isinstance(node, yaml.ScalarNode) or node.style or word in ("<<", "="):
        return word
    if word in _NULL:
        return None
    if word in _BOOL:
        return _BOOL[word]
    if WHOLE_NUMBER.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


def _shown(node: yaml.ScalarNode) -> str:
    """The value as written, shortened; with its quotes if only the quotes make it a string."""
    word = str(node.value)
    cut = word if len(word) <= 60 else word[:57] + "..."
    plain = yaml.ScalarNode(node.tag, word)
    return f'"{cut}"' if node.style in ("'", '"') and not isinstance(_scalar(plain), str) else cut


@dataclass(slots=True)
class _YamlReader:
    at: Callable[[yaml.Node], str]
    reading: ReadOptions = FABRIC_FILE
    marks: dict[Trail, Mark] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    values: int = 0

    def read(self, node: yaml.Node, trail: Trail) -> Any:
        self.values += 1
        if self.values > self.reading.values or len(trail) > MAX_DEPTH:
            most = self.reading.values
            why = f"has more than {most} values" if self.values > most else f"is nested deeper than {MAX_DEPTH} levels"
            hint = "write the values out instead of using aliases (*name)"
            raise InputError(Problem(self.at(node), "the file", f"{why} when its aliases are expanded", hint))
        self.marks.setdefault(trail, Mark(self.at(node)))
        if node.tag not in _TAGS and node.value not in ("<<", "="):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            self.problems.add(where=self.at(node), what=dotted(trail), why=f"has the tag {tag}, which is not supported")
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, trail))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*trail, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            if _NO_TEXT.search(node.value):
                why = "has a NUL or half a character (a surrogate), which no program accepts"
                self.problems.add(where=self.at(node), what=dotted(trail), why=why, hint="remove it")
            self.marks[trail] = Mark(self.marks[trail].where, printable(_shown(node)))
        return _word(node) if self.reading.words else _scalar(node)

    def _pairs(self, node: yaml.MappingNode, trail: Trail) -> Iterator[tuple[str, Any]]:
        seen: dict[str, str] = {}
        for key_node, value_node in self._merged(node) if self.reading.merges else node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                what = dotted(trail) or "the file"
                self.problems.add(where=self.at(key_node), what=what, why="has a list or a group as a key")
                continue
            if key_node.tag == _MERGE:
                hint = "write the keys out where they belong"
                self.problems.add(where=self.at(key_node), what="<<", why="(a merge key) is not supported", hint=hint)
                continue
            key = printable(str(key_node.value))[:_LONGEST_KEY] or '""'
            here = (*trail, key)
            where = self.at(key_node)
            if key in seen:
                line = seen[key].rpartition(":")[2]
                why = "is given twice" + (f", first in line {line}" if line.isdigit() else "")
                self.problems.add(where=where, what=dotted(here), why=why, hint="keep one of the two")
                continue
            seen[key] = where
            self.marks[here] = Mark(where)
            yield key, self.read(value_node, here)

    def _merged(self, node: yaml.MappingNode, depth: int = 0) -> list[tuple[yaml.Node, yaml.Node]]:
        """A mapping's own pairs, then merged pairs with other keys. Of several merged mappings the first one wins."""
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        for key, value in node.value:
            if key.tag == _MERGE:
                self.values += 1
                if self.values > self.reading.values or depth > MAX_DEPTH:
                    why = "merges too many values, or merges itself"
                    raise InputError(Problem(self.at(key), "<<", why, "write the keys out"))
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        self.problems.add(
                            where=self.at(key), what="<<", why="merges a value that is not a group of keys"
                        )
                        continue
                    have = {str(k.value) for k, _ in own}
                    own += [pair for pair in self._merged(source, depth + 1) if str(pair[0].value) not in have]
        return own


def _word(node: yaml.Node) -> Word | None:
    plain = isinstance(node, yaml.ScalarNode) and not node.style  # the C loader's is empty
    return None if plain and node.value in _NULL else Word(str(node.value), plain=plain)
