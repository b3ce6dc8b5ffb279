"""Fabric file -> FabricSpec. All errors of the file are reported together.

In:  a preset's name or a path, and `--set path=value` overrides.
Out: a Document, and its FabricSpec or one Problem per error, with file, line, dotted path, value, reason and hint.
Checks that need the built fabric come later: heddle/fabric/fabricfile.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.files import real, short_path
from heddle.base.problems import InputError, Problem, Problems, nearest
from heddle.spec.impairments import KINDS

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec
    from heddle.spec.wording import Examined
    from heddle.spec.yamlfile import Document, Trail


_SOME: Final = 8  # a hint names at most so many files
# Groups of two values, `host` and `fabric`, for which a fabric file may write one value.
FOR_ALL_LINKS: Final = frozenset(("link", key) for key in ("length", *KINDS))
_TOPOLOGY: Final = ".clab.yml"  # the end of a containerlab topology's file name


def presets() -> list[str]:
    """Names of the fabrics that Heddle ships, sorted: `topologies/NAME.yml`, without `NAME.clab.yml`."""
    return sorted(p.stem for p in _presets().glob("*.yml") if not p.name.endswith(_TOPOLOGY))


def _presets() -> Path:
    return resources.HERE.content(resources.TOPOLOGIES)


def read_fabric(name_or_path: str, *, name: str | None, overrides: Sequence[str], problems: Problems) -> Document:
    """Read a preset or a fabric file, and apply the overrides. Only the overrides are checked here.

    name: replaces the file's name (`--name`). overrides: `path=value` each (`--set`).
    """
    from heddle.spec.yamlfile import parse, read_text

    path, source = find_fabric(name_or_path)
    document = parse(read_text(path, source), source)
    if isinstance(document.data.get("topology"), dict):
        hint = f"run ./inv up {shlex.quote(source)}"
        raise InputError(Problem(source, "the file", "is a containerlab topology, not a fabric file", hint))
    for text in overrides:
        override(document, text, problems)
    if name is not None:
        put(document, ("name",), name, "--name")
    return document


def examined_fabric(document: Document) -> Examined[FabricSpec]:
    """The spec, with the shape that the file names. For an unknown shape, the nearest one checks the other keys."""
    from heddle.spec.shapes import DEFAULT, SHAPES
    from heddle.spec.wording import Examined, examined, in_order, not_one_of

    shape = document.data.get("shape", DEFAULT)
    if shape is None or isinstance(shape, dict | list) or shape in SHAPES:
        return examined(document, SHAPES.get(shape, SHAPES[DEFAULT]) if isinstance(shape, str) else SHAPES[DEFAULT])
    text = document.text(("shape",)) or str(shape)
    problem = Problem(document.where(("shape",)), f"shape: {text}", *not_one_of(list(SHAPES), text))
    rest = {key: value for key, value in document.data.items() if key != "shape"}
    found = examined(replace(document, data=rest), SHAPES[nearest(text, SHAPES) or DEFAULT])
    return Examined(found.value, in_order([problem, *found.problems]), found.spoilt | {"shape"})


def find_fabric(name_or_path: str) -> tuple[Path, str]:
    """The file, and its name in problems: the path as typed, or a preset's path relative to the working directory.

    InputError with the nearest name as a hint, when there is no such preset or file.
    """
    known = presets()
    if name_or_path in known:
        path = _presets() / f"{name_or_path}.yml"
        return path, short_path(path)
    path = real(name_or_path)
    if not name_or_path:
        raise InputError(Problem("", "the fabric", "has no name", f"use a preset: {', '.join(known)}"))
    try:
        path.stat()
        there = True
    except PermissionError:  # this user may not enter a parent directory
        why = "cannot be read: Permission denied"
        raise InputError(Problem("", name_or_path[:200], why, "copy it to where this user can read it")) from None
    except (OSError, ValueError):  # it does not exist, or its name is too long or has a NUL
        there = False
    if there:
        return path, name_or_path
    if path.suffix in (".yml", ".yaml") or "/" in name_or_path:
        beside = _beside(path)
        near = nearest(path.name, [*known, *beside])
        meant = near if near in known else str(path.with_name(near)) if near else ""
        some = ", ".join(beside[:_SOME]) + (", ..." if len(beside) > _SOME else "")
        hint = f"files in that directory: {some}" if beside else f"use a preset: {', '.join(known)}"
        hint = f"did you mean {meant}?" if meant else hint
        raise InputError(Problem("", name_or_path[:200], "does not exist", hint))
    beside = _beside(path)
    near = next((b for b in beside if Path(b).stem == name_or_path), "") or nearest(name_or_path, [*beside, *known])
    hint = f"presets: {', '.join(known)}; write a file with its path, as in my/fabric.yml"
    hint = f"did you mean {near}?" if near else hint
    raise InputError(Problem("", name_or_path[:200], "is neither a preset nor a file", hint))


def _beside(path: Path) -> list[str]:
    """Names of the YAML files in this path's directory."""
    try:
        return sorted(p.name for p in path.parent.iterdir() if p.suffix in (".yml", ".yaml"))
    except (OSError, ValueError):
        return []


def override(document: Document, text: str, problems: Problems) -> None:
    """Put `path=value` of --set into a document that is not yet checked. Its errors are added to `problems`."""
    from heddle.spec.yamlfile import parse_value

    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        hint = "write it as --set routing.ecmp=flow"
        problems.add(where="--set", what=text or "an empty string", why="is not path=value", hint=hint)
        return
    trail: Trail = tuple(path.split("."))
    try:
        data, marks = parse_value(value, "--set", trail)
    except InputError as error:
        problems.found += error.problems
        return
    document.marks.update(marks)
    put(document, trail, data, "--set", keep_marks=True)


def put(
    document: Document, trail: Trail, value: object, where: str, text: str | None = None, *, keep_marks: bool = False
) -> None:
    """Set a key of a document that is not yet checked. where, text: its place and value in messages."""
    from heddle.spec.yamlfile import Mark

    here = document.data
    for depth, step in enumerate(trail[:-1], 1):
        inner = here.get(str(step))
        if not isinstance(inner, dict):  # missing, or not a group: the last override wins
            # One value for all links remains that of the kind of link that the override does not name.
            for_all = inner is not None and trail[:depth] in FOR_ALL_LINKS
            inner = here[str(step)] = dict.fromkeys(("host", "fabric"), inner) if for_all else {}
            document.marks[trail[:depth]] = Mark(where)
        here = inner
    here[str(trail[-1])] = value
    if not keep_marks:
        document.marks[trail] = Mark(where, str(value) if text is None else text)


def settings_of(keys: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Path -> value of nested keys; a mapping whose keys are numbers, as of `queues.dscp`, is a value."""
    for key, value in keys.items():
        if isinstance(value, Mapping) and value and all(isinstance(each, str) for each in value):
            yield from settings_of(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def value_text(path: str, value: object) -> str | None:
    """A Python value as YAML that is read back as the same value; None for what YAML does not have."""
    if isinstance(value, str):
        return value if _plain(path, value) else json.dumps(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        parts = [json.dumps(each) if isinstance(each, str) else value_text(path, each) for each in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    if isinstance(value, Mapping):
        pairs = [
            (str(key), json.dumps(each) if isinstance(each, str) else value_text(path, each))
            for key, each in value.items()
        ]
        return None if any(text is None for _, text in pairs) else f"{{{', '.join(f'{k}: {t}' for k, t in pairs)}}}"
    return None


def _plain(path: str, text: str) -> bool:
    """Whether a text needs no quotes to be read as itself; then problems show it as it was typed."""
    from heddle.spec.yamlfile import parse_value  # the plugin imports this module, and PyYAML is slow to load

    try:
        return bool(parse_value(text, "", (path,))[0] == text)
    except InputError:
        return False
