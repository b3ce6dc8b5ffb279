"""Names of files as the user typed them, and their paths on the machine that runs the verb.

For a verb that was sent here from another machine, HEDDLE_FILES has as JSON the local path of each of its files, to
read or to write. Names are kept as typed, so that results and errors name the user's own files.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "HEDDLE_FILES"
PLACE: Final = "HEDDLE_PLACE"  # the place where the verb runs, in the user's words; not set on the user's machine


def real(typed: str) -> Path:
    """The path to open for a typed name: the name itself, unless the verb was sent here from another machine."""
    found = _sent_files().get(typed)
    return Path(found) if isinstance(found, str) else Path(typed).expanduser()


def result_name(typed: str) -> str:
    """The name of a file in a result: its absolute path, or as typed if the user is on another machine."""
    if typed in _sent_files():
        return typed
    path = Path(typed).absolute()
    return str(path.resolve() if ".." in path.parts else path)


def short_path(path: Path) -> str:
    """The name of a Heddle file in problems: relative to the working directory if below it, else absolute."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def place_flag() -> str:
    """` --place ssh:lab`, for commands that the user types on another machine; empty if the user is on this one."""
    place = os.environ.get(PLACE)
    return f" --place {shlex.quote(place)}" if place else ""


def _sent_files() -> dict[str, Any]:
    try:
        files = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return files if isinstance(files, dict) else {}
