"""A fabric with the queues, PFC and hashing of a SONiC switch.

In:  a config_db.json, the fabric that gets its keys, and `--set path=value` overrides, which have priority over both.
Out: SonicFabric. InputError with all problems; one about an imported value names the line of the JSON file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import yaml

from heddle.base.files import real
from heddle.base.problems import Problems, printable
from heddle.base.tables import table
from heddle.fabric.fabricfile import load_document
from heddle.fabric.model import Fabric
from heddle.spec.load import override, put, read_fabric
from heddle.spec.yamlfile import ReadOptions, read_text
from heddle_plugins.readers.sonic.configdb import ImportedKey, as_text, name_of, parse_json
from heddle_plugins.readers.sonic.convert import convert

_FILE: Final = ReadOptions(max_bytes=16 << 20, kind="config_db.json")
_BEFORE: Final = ("family", "link.", "scale", "shape")  # keys that imported values are derived from
_MOST_VALUES: Final = 1_000_000
# A line of a terminal around the output of `show runningconfiguration all` or `sonic-db-dump -n CONFIG_DB -y`.
_PROMPT: Final = re.compile(r"^[\w.-]+@[\w.-]+:[^\n]*?[$#]( [^\n]*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SonicFabric:
    """The result of an import.

    rows: what became of each key. data: the new fabric file. settings: the imported keys of it, by path; sources: the
    line and the key of the JSON file of each. fabric: the built one.
    """

    rows: tuple[ImportedKey, ...]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    fabric: Fabric


def import_sonic(file: str, onto: str, overrides: Sequence[str] = ()) -> SonicFabric:
    """Read a config_db.json and check the fabric with its keys. onto: a preset's name or a fabric file."""
    problems = Problems()
    document = read_fabric(onto, name=None, overrides=(), problems=problems)
    before = deepcopy(document)
    for each in overrides:
        if each.startswith(_BEFORE):  # others may be valid only together with imported keys
            override(before, each, problems)
    base = load_document(before, problems)
    scaled = any(each.partition("=")[0].strip() == "scale" for each in overrides)
    text = _PROMPT.sub("", read_text(real(file), file, _FILE))
    tables = parse_json(text, file, _MOST_VALUES)
    found = convert(*tables, base.spec, scaled=scaled)
    for path, (value, trail) in found.settings.items():
        put(document, tuple(path.split(".")), value, found.where(trail), f"{as_text(value)} ({name_of(trail)})")
    for each in overrides:
        override(document, each, problems)
    loaded = load_document(document, problems)
    return SonicFabric(
        rows=tuple(found.rows),
        data=document.data,
        settings={path: value for path, (value, _) in found.settings.items()},
        sources={path: f"{found.where(trail)} {name_of(trail)}" for path, (_, trail) in found.settings.items()},
        fabric=loaded.fabric,
    )


_LONGEST: Final = 40  # characters of a value in a table
_MOST: Final = 6  # names of one group
_INDENT: Final = "  "


def import_text(rows: Sequence[ImportedKey]) -> str:
    """Two tables: applied keys, and those that are not modelled. A row stands for entries with equal values."""
    applied = [each for each in rows if each.paths]
    left = [each for each in rows if not each.paths]
    parts = []
    if applied:
        lines = [(str(each.line), _key(each), _short(each.value), _target(each)) for each in applied]
        parts.append("\n".join(["applied", table(["line", "key", "value", "in the fabric file"], lines)]))
    if left:
        lines = [(str(each.line), _key(each), _short(each.value), each.why) for each in left]
        parts.append("\n".join(["not modelled", table(["line", "key", "value", "reason"], lines)]))
    return "\n\n".join(parts)


def _key(row: ImportedKey) -> str:
    return f"{row.key} (and {row.more} more)" if row.more else row.key


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _target(row: ImportedKey) -> str:
    """`queues.ecn.kmin: 40000 (reason)`; several keys of one group are written together."""
    groups: dict[str, list[str]] = {}
    for path in row.paths:
        above, _, last = path.rpartition(".")
        groups.setdefault(above, []).append(last)
    groups = {above: last if len(last) <= _MOST else [*last[:_MOST], "..."] for above, last in groups.items()}
    names = [f"{above}.{{{','.join(last)}}}" if len(last) > 1 else f"{above}.{last[0]}".lstrip(".")
             for above, last in groups.items()]  # fmt: skip
    return f"{', '.join(names)}: {row.becomes}" + (f" ({row.why})" if row.why else "")


def up_command(fabric: str, data: Mapping[str, Any], paths: Iterable[str], overrides: Sequence[str]) -> str:
    """The command that brings the fabric up with these keys, without a file.

    data: the new fabric file. paths: its imported keys. overrides: typed ones, `path=value`.
    """
    whole: dict[str, str] = {}
    for path in paths:
        above, _, last = path.rpartition(".")
        here = above if last.isdecimal() else path  # a map of numbers is one value
        value: Any = data
        for step in here.split("."):
            value = value[step]
        whole[here] = f"{here}={_flow(value)}"
    words = [*whole.values(), *overrides]
    return " \\\n  ".join([f"./inv up {shlex.quote(fabric)}", *(f"--set {shlex.quote(each)}" for each in words)])


def fabric_yaml(data: Mapping[str, Any], notes: Mapping[str, str], head: Sequence[str]) -> str:
    """A fabric file. notes: path -> comment behind its key. head: comments at the top."""
    return "\n".join([*(f"# {printable(line)}" for line in head), *_lines(data, "", notes), ""])


def _lines(data: Mapping[str, Any], above: str, notes: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    indent = _INDENT * above.count(".")
    for key, value in data.items():
        path = f"{above}{key}"
        note = f"  # {printable(notes[path])}" if path in notes else ""
        numbered = isinstance(value, dict) and all(
            str(each).isdecimal() and not isinstance(inner, dict) for each, inner in value.items()
        )
        if isinstance(value, dict) and value and not numbered:
            found += [f"{indent}{key}:{note}", *_lines(value, f"{path}.", notes)]
        else:
            found.append(f"{indent}{key}: {_flow(value)}{note}")
    return found


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 30, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
