"""Names of files as they were typed, and where those files stand on the machine that the verb runs on.

A verb that was sent here from another machine finds in HEDDLE_FILES, as JSON, where each of its files was brought to,
or is to be written to. Names are kept as typed, so that results and errors speak of the user's own files.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "HEDDLE_FILES"
PLACE: Final = "HEDDLE_PLACE"  # where the verb runs, as its user calls it; not set where that user sits


def real(typed: str) -> Path:
    """The path to open for a name; the name itself, unless the verb was sent here from another machine."""
    found = _brought().get(typed)
    return Path(found) if isinstance(found, str) else Path(typed).expanduser()


def told(typed: str) -> str:
    """How a result names a file: from the root; or as typed, where the user sits at another machine."""
    if typed in _brought():
        return typed
    path = Path(typed).absolute()
    return str(path.resolve() if ".." in path.parts else path)


def seen(path: Path) -> str:
    """How problems name a file of Heddle's own: as seen from the working directory, else from the root."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def elsewhere() -> str:
    """` --place ssh:lab`, for lines that are to be typed where the user sits; empty where that is here."""
    place = os.environ.get(PLACE)
    return f" --place {shlex.quote(place)}" if place else ""


def _brought() -> dict[str, Any]:
    try:
        brought = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return brought if isinstance(brought, dict) else {}
