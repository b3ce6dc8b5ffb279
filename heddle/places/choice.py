"""The place that the user chose: `--place`, else that of the config file, else this machine.

The config file is ~/.config/heddle/config.yml, or $HEDDLE_CONFIG. Unknown keys are errors, as in a fabric file.

    place: ssh:me@lab.example.org    # where verbs run without --place

A new kind of place: one file, and one line in KINDS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from heddle.base.extras import SSH, require
from heddle.base.files import expanded
from heddle.base.problems import InputError, Problem
from heddle.places.call import Place, parse_address, place_error

HERE: Final = "here"
VARIABLE: Final = "HEDDLE_CONFIG"
_KEY: Final = "place"
_ALONE: Final = frozenset({"vm"})  # kinds that need nothing after their name


def _ssh(text: str, where: str) -> Place:
    address = parse_address(text, where)  # mistakes in the address are reported first
    require(SSH)
    from heddle_plugins.places.session import SshPlace

    return SshPlace(address)


def _vm(text: str, where: str) -> Place:
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named

    kernel = kernel_named(text.partition(":")[2] or DEFAULT, where, "place: vm:" if where else "--place vm:")
    require(SSH)
    from heddle_plugins.places.vm.place import VmPlace

    return VmPlace(kernel)


KINDS: Final[Mapping[str, Callable[[str, str], Place]]] = {"ssh": _ssh, "vm": _vm}


def place_for(typed: str | None) -> Place | None:
    """The place that was typed, else that of the config file; None: this machine.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    if typed is not None:
        return _place_named(typed, "")
    path = _config_path()
    return _configured(path) if path else None


def _place_named(text: str, where: str) -> Place | None:
    """The place that a text names, None for `here`; InputError for any other text. where: its file and line."""
    kind, colon, _ = text.partition(":")
    if text == HERE:
        return None
    if kind in KINDS and (colon or kind in _ALONE):
        return KINDS[kind](text, where)
    raise place_error(text, where, "is not a place")


def _config_path() -> Path | None:
    """The config file; None when there is none, or when $HEDDLE_CONFIG is empty."""
    named, base = os.environ.get(VARIABLE), os.environ.get("XDG_CONFIG_HOME", "")
    if named is not None:
        return expanded(named) if named else None
    try:  # XDG Base Directory Specification: ignore a path that is not absolute
        path = (Path(base) if base.startswith("/") else Path.home() / ".config") / "heddle" / "config.yml"
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a home that this user may not enter; no HOME, and no such user
        return None


def _configured(path: Path) -> Place | None:
    """The place in a config file; InputError has the problems of the file, with their lines."""
    from heddle.spec.yamlfile import parse, read_text

    text = read_text(path, str(path))
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return None  # comments only
    document = parse(text, str(path))
    if unknown := [key for key in document.data if key != _KEY]:
        why, hint = "is not a key of the config file", f"its only key is {_KEY}"
        raise InputError(*[Problem(document.where((key,)), key, why, hint) for key in unknown])
    value, where = document.data.get(_KEY, HERE), document.where((_KEY,))
    if not isinstance(value, str):
        raise place_error(document.text((_KEY,)), where, "is not a text")
    return _place_named(value, where)
