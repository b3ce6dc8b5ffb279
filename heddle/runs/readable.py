"""Read files of a run, which may be damaged or written by another version of Heddle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class UnreadableError(Exception):
    """A file of a run cannot be read: it is damaged, or has another format. The text is the reason."""


def read_object(path: Path) -> Mapping[str, Any]:
    """Read a JSON file that holds an object. UnreadableError with the reason when it does not."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableError(f"{path.name} is missing") from None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{path.name} is damaged: it is not valid JSON") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{path.name} is damaged: it is not a JSON object")
    return data
