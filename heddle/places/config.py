"""The user's settings: ~/.config/heddle/config.yml, or $HEDDLE_CONFIG. Unknown keys are errors, as in a fabric file.

place: ssh:me@lab.example.org    # where verbs run without --place
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import InputError, Problem, Problems, nearest

VARIABLE: Final = "HEDDLE_CONFIG"
_KEYS: Final = {"place": "here, vm, or ssh:user@host[:port]"}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings; `wheres` has the file and line of each key."""

    place: str = "here"
    wheres: dict[str, str] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """`config.yml:3`."""
        return self.wheres.get(key, "")


def config_path() -> Path | None:
    """The config file; None when there is none, or when $HEDDLE_CONFIG is empty.

    InputError when $HEDDLE_CONFIG names a file that does not exist.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named:
            return None
        path = Path(named).expanduser()
        if not path.exists():
            hint = f"write it, or unset {VARIABLE}"
            raise InputError(Problem("", f"{VARIABLE}={named}", "is not an existing file", hint))
        return path
    path = _home() / "heddle" / "config.yml"
    try:
        return path if path.exists() else None
    except OSError:  # a home that this user may not enter
        return None


def _home() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:  # XDG Base Directory Specification: ignore a path that is not absolute
        return Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # no HOME, and no such user
        return Path("/nonexistent")


def read_config(path: Path) -> Config:
    """Read and check the file; InputError has every problem, with its line and a hint."""
    from heddle.spec.yamlfile import Document, parse, read_text

    source = _shown(path)
    text = read_text(path, source)
    if not _says_something(text):
        return Config()
    document: Document = parse(text, source)
    problems = Problems()
    for key, value in document.data.items():
        where = document.where((key,))
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(_KEYS)}"
            problems.add(where=where, what=key, why="is not a key of the config file", hint=hint)
        elif not isinstance(value, str):
            shown = f"{key}: {document.text((key,))}".rstrip(": ")
            problems.add(where=where, what=shown, why=_not_a_word(value), hint=f"write {_KEYS[key]}")
        else:
            _try_place(value, where, problems)
    problems.raise_if_any()
    place = document.data.get("place", "here")
    return Config(str(place), {key: document.where((key,)) for key in document.data})


def _says_something(text: str) -> bool:
    """False for a file with comments only, which is valid."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _not_a_word(value: Any) -> str:
    if value is None:
        return "has no value"
    return (
        "is a list" if isinstance(value, list) else "is a group of keys" if isinstance(value, dict) else "is not a text"
    )


def _try_place(text: str, where: str, problems: Problems) -> None:
    from heddle.places.address import check_kind, parse_address
    from heddle.places.kinds import HERE, KINDS
    from heddle.places.vm.kernels import kernel_named

    try:
        if text == HERE:
            return
        kind = check_kind(text, where, KINDS)
        if kind == "ssh":
            parse_address(text, where)
        elif rest := text.partition(":")[2]:
            kernel_named(rest, where, "place: vm:")
    except InputError as error:
        problems.found += error.problems


def _shown(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
