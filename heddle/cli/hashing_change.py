"""`./inv hashing`: show how every switch hashes, and change that in a running lab.

In:  the user's words: a mode, options as `key=value`, switches, rows of an exact-match table.
Out: a table and JSON; or a change, which is checked completely before it is made. Tables are CSV or YAML files, or
single entries; rehash.check_exact checks that their switches, prefixes and ports exist.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final

from heddle.base.families import Network
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.base.tables import table
from heddle.base.units import format_duration
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_ROW, EXAMPLE_SWITCHES, HASHING_COLUMNS
from heddle.fabric.checks import KeyPlaces, complaints_about
from heddle.fabric.hashmodes import EXACT_MATCH, MODES
from heddle.fabric.model import split_words
from heddle.lab import rehash
from heddle.lab.opening import open_lab
from heddle.lab.snapshot import LabPart
from heddle.spec.groups import InFile, as_file, group_of
from heddle.spec.keys import Strict
from heddle.spec.load import override
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, FIELDS, HashOptions, RoutingPolicy
from heddle.spec.yamlfile import Document, ReadOptions, parse, read_text
from heddle.switch.hashing.hashing import SwitchHashing

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab

ExactTables = dict[str, dict[tuple[int, Network], tuple[str, ...]]]  # switch -> its table
_KEYS: Final = ("seed", "resilient")  # of routing itself; all others are of routing.hash
_LEGAL: Final = (*group_of(HashOptions).model_fields, *_KEYS)
# Keys that have an effect in some modes only. Only `flow` uses the kernel's policy, and it has no user-defined field.
_OF_MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": ("flow",), "fields": ("flow",), "udf": tuple(mode for mode in MODES if mode != "flow"),
    "gap": ("flowlet", "adaptive"), "first": ("flowlet",), "choice": ("spray",),
}  # fmt: skip
_WIDE: Final = 100  # columns
COLUMNS: Final = ("switch", "sport", "prefix", "port", "backup")
_NEEDED: Final = COLUMNS[:4]
_ROW: Final = f"{', '.join(_NEEDED)}, and perhaps {COLUMNS[-1]}"
_READING: Final = ReadOptions(max_bytes=16 << 20, values=2_000_000, kind="exact-match table", example="docs/hashing.md")

Row = tuple[str, list[str]]  # its file and line, and its words


@dataclass(frozen=True, slots=True)
class HashingWords:
    """The words after `./inv hashing`."""

    mode: str | None = None
    switches: Sequence[str] = ()
    settings: Sequence[str] = ()
    table: str | None = None
    entries: Sequence[str] = ()
    clear: bool = False
    run: str | None = None  # of --explain


def explain_flow(out: Console, lab: str | None, flow: str, asked: HashingWords) -> None:
    """`./inv hashing --explain FLOW`. Exit 1 when the computation and a kernel differ."""
    if asked != HashingWords(run=asked.run):
        hint = "first ./inv hashing MODE, then ./inv hashing --explain FLOW"
        raise InputError(Problem("", "--explain", "takes no mode, and only the flags --run and --lab", hint))
    from heddle.runs.explain import explain

    found = explain(open_lab(lab), flow, asked.run)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.agree else 1


def run_hashing(out: Console, lab: str | None, asked: HashingWords) -> None:
    """Show how a lab's switches hash, or change it, and show that."""
    if asked.run is not None:
        hint = "./inv hashing --explain 266718 --run 3"
        raise InputError(Problem("", f"--run {asked.run}", "needs --explain", hint))
    where = open_lab(lab)
    if asked.mode is None:
        _check_nothing_else(asked)
    else:
        _set(where, asked.mode, asked)
    rows = _rows(where, _names(asked.switches) if asked.mode is None else ())
    out.result({"lab": where.name, "switches": [_json(row, stats) for row, stats in rows]}, _text(where.name, rows))


def _check_nothing_else(asked: HashingWords) -> None:
    given = {"--set": asked.settings, "--table": asked.table, "--entry": asked.entries, "--clear": asked.clear}
    wrong = [name for name, value in given.items() if value]
    if wrong:
        hint = f"./inv hashing {EXACT_MATCH if wrong[0] != '--set' else 'e-ecmp'} {wrong[0]} ..."
        raise InputError(Problem("", wrong[0], "needs a mode before it", hint))


def _set(lab: Lab, mode: str, asked: HashingWords) -> None:
    if mode not in MODES:
        raise InputError(Problem("", f"mode {mode}", "is not a hashing mode", did_you_mean(mode, MODES)))
    if mode != EXACT_MATCH and (asked.table or asked.entries or asked.clear):
        hint = f"./inv hashing {EXACT_MATCH} ..."
        raise InputError(
            Problem("", "--table, --entry and --clear", f"are for mode {EXACT_MATCH}, not for {mode}", hint)
        )
    switches = _names(asked.switches) or None
    options, seed = _options(lab.fabric, mode, asked.settings)
    tables, added = _tables(lab, asked)
    left = [name for name in (*tables, *added) if switches and name not in switches]
    if switches and left:
        why = f"names {left[0]}, but --switch does not"
        raise InputError(Problem("", "a row of the table", why, f"--switch {','.join([*switches, *left])}"))
    rehash.set_hashing(lab, mode, options, seed=seed, switches=switches, exact=tables, added=added)


def _names(typed: Sequence[str]) -> list[str]:
    """Names of switches: --switch can be repeated, and can have several names with commas."""
    names = list(split_words(typed))
    if typed and not names:  # an empty list must not mean all switches
        raise InputError(Problem("", f"--switch {typed[0]}", "names no switch", f"use --switch {EXAMPLE_SWITCHES}"))
    return names


class _Keys(Strict):
    """The part of a fabric file that `hashing --set` changes."""

    routing: Annotated[RoutingPolicy, InFile()]


def _options(fabric: Fabric, mode: str, settings: Sequence[str]) -> tuple[HashOptions, str | int]:
    """The file's options with the typed ones in their place, checked like a fabric file."""
    from heddle.spec.wording import examined

    document = Document({"routing": as_file(fabric.policy.routing)}, "")
    problems = Problems()
    override(document, f"routing.ecmp={mode}", problems)
    typed: list[str] = []
    for text in settings:
        path, equals, value = text.partition("=")
        # As in the fabric file, or the last word alone.
        key = path.strip().removeprefix("routing.").removeprefix("hash.")
        if not equals or not key:
            problems.add(
                where="--set", what=text or "an empty text", why="is not key=value", hint="write --set gap=20ms"
            )
            continue
        first = key.partition(".")[0]
        if first not in _LEGAL:
            mode_hint = "write the mode as a word: ./inv hashing e-ecmp"
            hint = mode_hint if key == "ecmp" else did_you_mean(key, _LEGAL)
            problems.add(where="--set", what=path.strip(), why="is not a key of hashing", hint=hint)
            continue
        typed.append(first)
        override(document, f"routing.{key if first in _KEYS else f'hash.{key}'}={value}", problems)
    found = examined(document, _Keys)
    problems.found += found.problems
    if found.value is None:
        raise InputError(*problems.found)
    routing = found.value.routing
    complaints = complaints_about(replace(fabric, policy=replace(fabric.policy, routing=routing)))
    problems.found += KeyPlaces(document, found.spoilt).problems(complaints)
    problems.raise_if_any()
    modes = {**_OF_MODES, "buckets": MODES if routing.hash.resilient else ()}
    for key in dict.fromkeys(typed):
        if mode not in modes.get(key, MODES):
            hint = f"use it with {' or '.join(modes[key])}" if modes[key] else "add --set resilient=true"
            problems.add(where="--set", what=key, why=f"has no effect under {mode}", hint=hint)
    problems.raise_if_any()
    return routing.hash, routing.seed


def _tables(lab: Lab, asked: HashingWords) -> tuple[ExactTables, ExactTables]:
    """Switch -> its whole new table; switch -> rows to add or change. A file replaces the tables of its switches."""
    rows, entries = ExactRows(), ExactRows()
    if asked.clear:
        names = _names(asked.switches) or [node.name for node in lab.fabric.switches]
        rows.tables |= {name: {} for name in names}
    if asked.table:
        rows.add(file_rows(asked.table))
    entries.where = dict(rows.where)  # a row of the file and of --entry is a duplicate
    entries.add(entry_rows(asked.entries))
    rows.problems.found += entries.problems.found
    for each in (rows, entries):
        try:
            rehash.check_exact(lab, each.tables, entries.where)
        except InputError as error:
            rows.problems.found += error.problems
    rows.problems.raise_if_any()
    return rows.tables, entries.tables


def _rows(lab: Lab, switches: Sequence[str]) -> list[tuple[SwitchHashing, Mapping[str, int]]]:
    names = [node.name for node in lab.fabric.switches]
    problems = Problems()
    for each in switches:
        if each not in names:
            why = f"is not a switch of {lab.name}"
            problems.add(where="--switch", what=each, why=why, hint=did_you_mean(each, names))
    problems.raise_if_any()
    now = lab.snapshot(LabPart.HASHING, switches or names)
    return [(now.hashing[name], now.statistics[name]) for name in switches or names]


def _json(row: SwitchHashing, stats: Mapping[str, int]) -> dict[str, Any]:
    data = row.to_json()
    exact = [dict(zip(COLUMNS, (row.switch, *each), strict=False)) for each in data["steering"]["exact"]]
    del data["steering"]
    return {**data, "exact": exact, "statistics": dict(stats)}


def _text(lab: str, rows: Sequence[tuple[SwitchHashing, Mapping[str, int]]]) -> str:
    """One line per switch, within 100 columns: long options are in a table of their own."""
    header = ("switch", "mode", "seed", *HASHING_COLUMNS)
    lines = [
        (
            *(row.switch, row.mode, str(row.seed), str(row.policy), options_text(row)),
            *(str(len(row.steering.exact)), *(str(stats[k]) for k in ("steered", "fell_back", "repicks", "misses"))),
        )
        for row, stats in rows
    ]
    entries = [
        (row.switch, str(sport), str(prefix), *ports, *["-"] * (2 - len(ports)))
        for row, _ in rows
        for (sport, prefix), ports in row.steering.exact.items()
    ]
    tables = [table(header, lines) if lines else f"{lab} has no switches"]
    if max(map(len, tables[0].splitlines())) > _WIDE:
        at = header.index("options")
        tables = [table((*header[:at], *header[at + 1 :]), [(*line[:at], *line[at + 1 :]) for line in lines])]
        tables.append(table((header[0], header[at]), [(line[0], line[at]) for line in lines]))
    if rows:
        tables[-1] += f"\n{legend()}"
    if entries:
        tables.append(table(COLUMNS, entries))
    return "\n\n".join(tables)


def legend() -> str:
    """The meaning of the columns, below the table."""
    said = "; ".join(f"{name}: {what}" for name, what in HASHING_COLUMNS.items())
    return textwrap.fill(said, _WIDE, break_on_hyphens=False, break_long_words=False)


def options_text(row: SwitchHashing) -> str:
    """The options that have an effect in the switch's mode and differ from the default."""
    o, plain = row.options, DEFAULT_OPTIONS
    words: list[str] = []
    if row.mode == "flow" and not o.resilient:
        words += [o.policy] if o.policy != plain.policy else []
        words += ["+".join(name for name, bit in FIELDS.items() if o.fields & bit)] if o.fields != plain.fields else []
    elif row.mode != "flow" and o.udf != plain.udf:
        words.append(f"udf {o.udf.base}+{o.udf.offset}:{o.udf.bytes}")
    if row.mode == "flowlet":
        words += [f"gap {format_duration(o.gap_ns)}", f"by {o.first}"]
    if row.mode == "adaptive":
        words.append(f"gap {format_duration(o.gap_ns)}")
    if row.mode == "spray":
        words.append(o.choice)
    if o.resilient:
        words.append(f"{o.buckets} buckets")
    return ", ".join(words) or "-"


@dataclass
class ExactRows:
    """The rows of all sources, and the mistakes in them."""

    tables: ExactTables = field(default_factory=dict)
    where: dict[tuple[str, int, Network], str] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)

    def add(self, rows: Sequence[Row]) -> None:
        """Read rows; a duplicate, in this source or an earlier one, is a problem."""
        for place, words in rows:
            if not len(_NEEDED) <= len(words) <= len(COLUMNS):
                what = " ".join(" ".join(words).split()) or "an empty row"  # an unclosed quote spans lines
                self.problems.add(
                    where=place,
                    what=what,
                    why=f"is not a row of {_ROW}",
                    hint=f"for example {EXAMPLE_ROW}",
                )
                continue
            switch, sport, prefix, *ports = words
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
            self.tables.setdefault(switch, {})[key] = tuple(ports)


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
    if not rows or tuple(rows[0][1]) not in (_NEEDED, COLUMNS):
        hint = f"write {','.join(_NEEDED)} as its first line, and {COLUMNS[-1]} after them if rows have one"
        raise InputError(Problem(f"{path}:1", "the table", "has no line with the names of its columns", hint))
    return [(place, words if words[-1] else words[:-1]) for place, words in rows[1:]]  # a backup may be empty


def _yaml_rows(document: Document, path: str) -> list[Row]:
    entries = document.data.get("entries")
    example = ", ".join(f"{column}: {word}" for column, word in zip(COLUMNS, EXAMPLE_ROW.split(), strict=False))
    hint = f"entries: [{{{example}}}]"
    if set(document.data) != {"entries"} or not isinstance(entries, list):
        raise InputError(Problem(path, "the table", "is not a list of entries", hint))
    problems = Problems()
    rows: list[Row] = []
    for index, entry in enumerate(entries):
        place = document.where(("entries", index))
        if not isinstance(entry, dict) or set(entry) not in (set(_NEEDED), set(COLUMNS)):
            why = f"does not have the keys {_ROW}"
            problems.add(where=place, what=f"entries[{index}]", why=why, hint=hint)
            continue
        rows.append((place, [str(entry[column]).strip() for column in COLUMNS if column in entry]))
    problems.raise_if_any()
    return rows
