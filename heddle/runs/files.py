"""Read and write the files of a run, which may be damaged, made by others, or written by another version of Heddle.

What is read here has the shapes and types that its users need: JSON of bounded depth, with finite numbers of 62 bits
and texts that can be written; values of typed classes; arrays with the kinds and dimensions of a layout.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from heddle.base.files import read_regular
from heddle.base.problems import machine_errors
from heddle.base.userfiles import as_caller, give_to_caller

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Typed = TypeVar("Typed")
Layout = Mapping[str, tuple[str, int]]  # name of an array -> kind of its type (numpy's dtype.kind), and dimensions

_MOST_BYTES: Final = 1 << 28  # of a file, and of all arrays in it: far more than any run has
_BELOW: Final = 1 << 62  # of a number: sums of two fit into 64 bits
_DEEPEST: Final = 32  # values within values; a fabric file of Heddle has 6
_LONGEST: Final = 200  # of a reason


class UnreadableError(Exception):
    """A file of a run cannot be read: it is damaged, or has another format. The text is the reason."""


@contextmanager
def undamaged(name: str) -> Iterator[None]:
    """UnreadableError for anything in a with block that the content of the file `name` can cause."""
    try:
        yield
    except (
        OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
        NotImplementedError, ValidationError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise UnreadableError(f"{name} is damaged: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Why content cannot be read, in one short line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"]))[:_LONGEST], first["msg"][:_LONGEST])))
    said = str(error.args[0] if error.args else "").partition("\n")[0][:_LONGEST]
    missing = isinstance(error, KeyError) and " " not in said  # a key, not a sentence
    return f"{said} is missing" if missing else said or type(error).__name__


def read_object(path: Path, version: int | None = None) -> Mapping[str, Any]:
    """Read a JSON file that holds an object. UnreadableError with the reason when it does not.

    version: the value that its key `format` must have.
    """
    try:
        data = _parsed(read_regular(path, _MOST_BYTES).decode())
    except FileNotFoundError:
        raise UnreadableError(f"{path.name} is missing") from None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from None
    except _OddError as error:
        raise UnreadableError(f"{path.name} is damaged: {error}") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{path.name} is damaged: it is not valid JSON") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{path.name} is damaged: it is not a JSON object")
    if version is not None and data.get("format") != version:
        why = f"has format {data.get('format')!r:.{_LONGEST}}, and this Heddle reads format {version}"
        raise UnreadableError(f"{path.name} {why}")
    return data


class _OddError(ValueError):
    """Valid JSON with values that no file of a run has."""


def _parsed(text: str) -> Any:
    data = json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_constant)
    if "\\ud" in text.lower():
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _OddError("a text has half a character") from None
    level = [data]
    for _ in range(_DEEPEST):
        values = (value for each in level for value in (each.values() if isinstance(each, dict) else each))
        level = [value for value in values if isinstance(value, (dict, list))]
        if not level:
            return data
    raise _OddError(f"it has more than {_DEEPEST} values within values")


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -_BELOW < (number := int(digits)) < _BELOW:
        raise _OddError(f"it has a number of {len(digits)} digits")
    return number


def _real(digits: str) -> float:
    if not abs(number := float(digits)) < _BELOW:
        raise _OddError(f"it has the number {digits[:_LONGEST]}")
    return number


def _constant(word: str) -> NoReturn:
    raise _OddError(f"it has {word}, which is no number")


def typed(kind: TypeAdapter[Typed], data: Any) -> Typed:
    """A value of a class from plain data: types must be right, not only convertible. ValidationError otherwise."""
    return kind.validate_json(json.dumps(data), strict=True)


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


def read_arrays(
    path: Path, version: int, layout: Layout, newer: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What write_arrays wrote: `about` and the arrays of the layout, which are finite.

    version: the value that `format` of `about` must have. newer: arrays that older files do not have.
    The caller reads inside `undamaged`.
    """
    with zipfile.ZipFile(io.BytesIO(read_regular(path, _MOST_BYTES))) as file:
        if sum(each.file_size for each in file.infolist()) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        about = _parsed(str(_array(file, "about_json", "U", 0)))
        if about["format"] != version:
            raise UnreadableError(f"{path.name} has another format than this Heddle reads")
        return about, {
            name: _array(file, name, *kind)
            for name, kind in layout.items()
            if name not in newer or f"{name}.npy" in file.namelist()
        }


def _array(archive: zipfile.ZipFile, name: str, kind: str, dimensions: int) -> npt.NDArray[np.generic]:
    """One array. Its header must be right before memory is used for it: numpy allocates what a header claims."""
    import numpy as np
    from numpy.lib import format as npy

    data = archive.read(f"{name}.npy")
    file = io.BytesIO(data)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"{name} has another format")
    shape, fortran, dtype = npy.read_array_header_1_0(file)
    if dtype.kind != kind or len(shape) != dimensions or not all(each >= 0 for each in shape):
        raise ValueError(f"{name} has the type {dtype} and {len(shape)} dimensions")
    count, start = math.prod(shape), file.tell()
    if count * dtype.itemsize != len(data) - start:
        raise ValueError(f"{name} has {len(data) - start} bytes, which do not fit to its shape")
    found = np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if fortran else "C")
    if kind in "fi" and not (np.abs(found.astype(np.float64)) < _BELOW).all():
        raise ValueError(f"{name} has a number that is not finite, or of more than 62 bits")
    return found
