"""Fabric file -> FabricSpec, with every error of the file shown at once.

In:  a preset's name or a path, and `--set path=value` overrides.
Out: FabricSpec. InputError carries one Problem an error, with file, line, dotted path, value, reason and a hint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topologies.problems import InputError, Problem, Problems, did_you_mean

if TYPE_CHECKING:
    from topologies.spec import FabricSpec
    from topologies.yamlfile import Document, Trail

PRESETS: Final = Path(__file__).resolve().parent / "presets"


def presets() -> list[str]:
    """Names of the fabrics that come with Heddle, sorted."""
    return sorted(p.stem for p in PRESETS.glob("*.yml"))


def load_fabric(name_or_path: str, *, name: str | None = None, overrides: Sequence[str] = ()) -> FabricSpec:
    """Read a preset or a fabric file, apply the overrides, and check everything.

    name: replaces the file's name (`--name`). overrides: `path=value` each (`--set`), applied before the checks.
    Raises InputError with all problems found.
    """
    from pydantic import ValidationError

    from topologies.spec import FabricSpec
    from topologies.wording import problems_of
    from topologies.yamlfile import parse, read_text

    path, source = _find(name_or_path)
    document = parse(read_text(path, source), source)
    problems = Problems()
    for override in overrides:
        _override(document, override, problems)
    if name is not None:
        _put(document, ("name",), name, "--name")
    try:
        spec = FabricSpec.model_validate(document.data)
    except ValidationError as error:
        problems.found += problems_of(error, document, FabricSpec)
    problems.raise_if_any()
    return spec


def _find(name_or_path: str) -> tuple[Path, str]:
    """The file, and what to call it in problems: the path as typed, or a preset's path seen from here."""
    known = presets()
    if name_or_path in known:
        path = PRESETS / f"{name_or_path}.yml"
        seen = os.path.relpath(path)
        return path, seen if not seen.startswith("..") else str(path)
    path = Path(name_or_path).expanduser()
    if not name_or_path:
        raise InputError(Problem("", "the fabric", "has no name", f"presets: {', '.join(known)}"))
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name too long, a NUL in it
        there = False
    if there:
        return path, name_or_path
    if path.suffix in (".yml", ".yaml") or "/" in name_or_path:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, beside) if beside else f"or take a preset: {', '.join(known)}"
        raise InputError(Problem("", name_or_path[:200], "is not a file here", hint))
    hint = did_you_mean(name_or_path, known)
    hint = hint if hint.startswith("did") else f"presets: {', '.join(known)}; a file needs its path, as my/fabric.yml"
    raise InputError(Problem("", name_or_path[:200], "is neither a preset nor a file", hint))


def _override(document: Document, text: str, problems: Problems) -> None:
    from topologies.yamlfile import parse_value

    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        hint = "write it as --set routing.ecmp=flow"
        problems.add(where="--set", what=text or "an empty text", why="is not path=value", hint=hint)
        return
    trail: Trail = tuple(path.split("."))
    try:
        data, marks = parse_value(value, "--set", trail)
    except InputError as error:
        problems.found += error.problems
        return
    document.marks.update(marks)
    _put(document, trail, data, "--set", keep_marks=True)


def _put(document: Document, trail: Trail, value: object, where: str, *, keep_marks: bool = False) -> None:
    from topologies.yamlfile import Mark

    here = document.data
    for depth, step in enumerate(trail[:-1], 1):
        inner = here.get(str(step))
        if not isinstance(inner, dict):  # not there, or no group: what was typed last wins
            inner = here[str(step)] = {}
            document.marks[trail[:depth]] = Mark(where)
        here = inner
    here[str(trail[-1])] = value
    if not keep_marks:
        document.marks[trail] = Mark(where, str(value))
