"""Read and write the files of a run, which may be damaged or written by another version of Heddle."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from heddle.base.files import open_regular, read_regular
from heddle.base.problems import machine_errors
from heddle.base.userfiles import as_caller, give_to_caller

_MOST_BYTES: Final = 1 << 28  # of a JSON file: far more than any run has


class UnreadableError(Exception):
    """A file of a run cannot be read: it is damaged, or has another format. The text is the reason."""


@contextmanager
def undamaged(name: str) -> Iterator[None]:
    """UnreadableError for anything in a with block that the content of the file `name` can cause."""
    try:
        yield
    except (
        OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ValidationError, zipfile.BadZipFile,
    ):  # fmt: skip
        raise UnreadableError(f"{name} is damaged, or of another version of Heddle") from None


def read_object(path: Path, version: int | None = None) -> Mapping[str, Any]:
    """Read a JSON file that holds an object. UnreadableError with the reason when it does not.

    version: the value that its key `format` must have.
    """
    try:
        data = json.loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        raise UnreadableError(f"{path.name} is missing") from None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{path.name} is damaged: it is not valid JSON") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{path.name} is damaged: it is not a JSON object")
    if version is not None and data.get("format") != version:
        why = f"has format {data.get('format')!r}, and this Heddle reads format {version}"
        raise UnreadableError(f"{path.name} {why}")
    return data


def write_arrays(path: Path, about: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write an .npz file atomically, for the user who called sudo. MachineError when the disk does not take it.

    about: JSON values that describe the arrays.
    """
    import numpy as np

    with machine_errors(str(path)), as_caller(path):
        fd, name = tempfile.mkstemp(prefix=f".{path.stem}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                np.savez_compressed(file, about_json=np.array(json.dumps(about)), **arrays)
            give_to_caller(Path(name))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def read_arrays(path: Path, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What write_arrays wrote: `about` and the arrays. version: the value that `format` of `about` must have.

    The caller reads inside `undamaged`.
    """
    import numpy as np

    with open_regular(path) as file, np.load(file, allow_pickle=False) as data:
        arrays = {name: np.asarray(data[name]) for name in data.files}
    about: dict[str, Any] = json.loads(str(arrays.pop("about_json")))
    if about["format"] != version:
        raise ValueError("another format")
    return about, arrays
