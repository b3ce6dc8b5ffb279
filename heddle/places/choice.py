"""The place that the user chose: `--place`, else that of the config file, else this machine.

The config file is ~/.config/heddle/config.yml, or $HEDDLE_CONFIG. Unknown keys are errors, as in a fabric file.

    place: ssh:me@lab.example.org    # where verbs run without --place

Kinds of places are parts of plugins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from heddle.base.files import expanded
from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem
from heddle.places.call import Place, place_error

HERE: Final = "here"
VARIABLE: Final = "HEDDLE_CONFIG"
_KEY: Final = "place"


# Each makes a place of its text, and of the file and line that the text is from.
KINDS: Final[Registry[Callable[[str, str], Place]]] = Registry("place", {}, having("__call__"))


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
    kind = text.partition(":")[0]
    if text == HERE:
        return None
    if kind in KINDS:
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
