"""The place that the user chose: `--place`, else that of the config file, else this machine.

The config file is ~/.config/heddle/config.yml, or $HEDDLE_CONFIG. Unknown keys are errors, as in a fabric file.

    place: ssh:me@lab.example.org    # where verbs run without --place

A new kind of place: one file, and one line in KINDS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base.extras import SSH, require
from heddle.base.problems import InputError, Problem, Problems, nearest
from heddle.places.address import EXAMPLE, parse_address, shown_place
from heddle.places.call import Place

HERE: Final = "here"
VARIABLE: Final = "HEDDLE_CONFIG"
_KEYS: Final = {"place": "here, vm, or ssh:user@host[:port]"}
_ALONE: Final = frozenset({"vm"})  # kinds that need nothing after their name


def _ssh(text: str, where: str) -> Place:
    address = parse_address(text, where)  # mistakes in the address are reported first
    require(SSH)
    from heddle.places.session import SshPlace

    return SshPlace(address)


def _vm(text: str, where: str) -> Place:
    from heddle.places.vm.kernels import DEFAULT, kernel_named

    kernel = kernel_named(text.partition(":")[2] or DEFAULT, where, "place: vm:" if where else "--place vm:")
    require(SSH)
    from heddle.places.vm.place import VmPlace

    return VmPlace(kernel)


KINDS: Final[Mapping[str, Callable[[str, str], Place]]] = {"ssh": _ssh, "vm": _vm}


def place_for(typed: str | None) -> Place | None:
    """The place that was typed, else that of the config file; None: this machine.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    if typed is not None:
        return place_named(typed, "")
    path = _config_path()
    return _configured(path) if path else None


def place_named(text: str, where: str) -> Place | None:
    """The place that a text names, None for `here`; InputError for any other text. where: its file and line."""
    kind, colon, rest = text.partition(":")
    if text == HERE:
        return None
    if kind in KINDS and (colon or kind in _ALONE):
        return KINDS[kind](text, where)
    why, hint = "is not a place", EXAMPLE
    if not text:
        why = "is empty"
    elif not colon and (near := nearest(text, [HERE, *KINDS])):
        hint = "did you mean here?" if near == HERE else EXAMPLE
    elif colon and (near := nearest(kind, KINDS)):
        why, hint = f"is not a place: {kind} is not known", f"did you mean {near}:{rest}?"
    elif "@" in text or (not colon and "." in text):
        why, hint = "does not name the kind of place", f"did you mean ssh:{text}?"
    raise InputError(Problem(where, shown_place(text, where), why, hint))


def _config_path() -> Path | None:
    """The config file; None when there is none, or when $HEDDLE_CONFIG is empty.

    InputError when $HEDDLE_CONFIG names a file that does not exist.
    """
    named = os.environ.get(VARIABLE)
    if named is None:
        base = os.environ.get("XDG_CONFIG_HOME", "")
        try:  # XDG Base Directory Specification: ignore a path that is not absolute
            path = (Path(base) if base.startswith("/") else Path.home() / ".config") / "heddle" / "config.yml"
            return path if path.exists() else None
        except (OSError, RuntimeError):  # a home that this user may not enter; no HOME, and no such user
            return None
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.exists():
        hint = f"write it, or unset {VARIABLE}"
        raise InputError(Problem("", f"{VARIABLE}={named}", "is not an existing file", hint))
    return path


def _configured(path: Path) -> Place | None:
    """The place in a config file; InputError has every problem, with its line and a hint."""
    from heddle.spec.yamlfile import parse, read_text

    try:
        source = f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        source = str(path)
    text = read_text(path, source)
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return None  # comments only
    document = parse(text, source)
    place: Place | None = None
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
            try:
                place = place_named(value, where)
            except InputError as error:
                problems.found += error.problems
    problems.raise_if_any()
    return place


def _not_a_word(value: Any) -> str:
    kinds = {"NoneType": "has no value", "list": "is a list", "dict": "is a group of keys"}
    return kinds.get(type(value).__name__, "is not a text")
