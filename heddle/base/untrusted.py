"""One rule for what is not trusted: answers of pods, workers and lab servers, and files that other people wrote.

Names:  a name from outside becomes a part of a path only if it `is_safe_name`. A file that is sent to another machine
        because another file names it is `kept_below` that file's folder, and not hidden there. A verb that an assistant
        calls opens no file of its choice (`files.real`).
Sizes:  a line of JSON has LINE_BYTES and LINE_ITEMS at most (`parsed`). What is compressed has a limit, too
        (`inflated`), before it is unpacked.
Time:   the caller ends an exchange at a deadline, which counts also while data arrive. So it is with probe pods, too.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from heddle.base.files import expanded
from heddle.base.problems import InputError, Problem
from heddle.base.tables import some_of
from heddle.base.userfiles import caller

LINE_BYTES: Final = 16 << 20
LINE_ITEMS: Final = 3 << 20  # values of a line: an empty list has 3 bytes there, and 64 in memory; 279 switches: 2^21
UNPACKED_BYTES: Final = 256 << 20  # of one packed directory
UNPACKED_FILES: Final = 50_000
OUTPUT_BYTES: Final = 1 << 30  # of all files that a verb, or a repeat, sends back
_LONGEST: Final = 255  # bytes of a name, as the kernel's NAME_MAX
PATH_LENGTH: Final = (
    512  # characters of a path in a packed directory: short enough for every directory it is unpacked to
)
_NAMED: Final = 5  # refused files that an error names
_HALF: Final = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_GZIP: Final = 16 + zlib.MAX_WBITS


def is_safe_name(name: str) -> bool:
    """Whether it names a file in the directory where it is put, which is visible and can be printed."""
    fits = name.isprintable() and 0 < len(name.encode()) <= _LONGEST  # a surrogate cannot be printed, nor encoded
    return fits and not name.startswith(".") and "/" not in name


def kept_below(file: Path, named: Iterable[str]) -> list[str]:
    """The files that `file` names, if all are below its folder, also through links. InputError names the others.

    A hidden one may have keys or passwords (~/.ssh): it is refused, too.
    """
    root = _resolved(str(file.absolute().parent))
    found = {name: _resolved(name) for name in named}
    outside = [name for name, path in found.items() if not path.is_relative_to(root)]
    hidden = [name for name, path in found.items() if "." in (part[:1] for part in path.parts[len(root.parts) :])]
    for names, what in ((outside, "files outside its directory"), (hidden, "hidden files")):
        if names:
            why = f"names {what}, which are not copied to another machine: {some_of(names, _NAMED)}"
            hint = f"copy them below the directory of {file.name}, and name the copies"
            raise InputError(Problem("", str(file), why, f"{hint} without a dot" if names is hidden else hint))
    return [*found]


def has_home(directory: Path) -> bool:
    """Whether it is the home directory of the user, or one above it."""
    homes = [str(expanded("~")), *(user.pw_dir for user in [caller()] if user)]
    return any(_resolved(home).is_relative_to(_resolved(str(directory))) for home in homes)


def _resolved(name: str) -> Path:
    try:
        path = expanded(name).resolve()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()  # Path.resolve of Python 3.13 leaves a loop of links as it is
        return path
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL: not below any folder
        return Path("/")


def parsed(line: bytes) -> Any:
    """The value of a line of JSON. ValueError for anything else, and for more than the limits, before it is built."""
    check_values(line)
    try:
        text = line.decode(json.detect_encoding(line))
        found = json.loads(text)
        if _HALF.search(text):  # half of a character, which no file takes, becomes a question mark
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        return found
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def check_values(text: bytes, most: int = LINE_ITEMS) -> None:
    """ValueError for JSON with more than `most` values: each follows a comma or an opening bracket."""
    if sum(map(text.count, (b",", b"[", b"{"))) > most:
        raise ValueError(f"has more than {most} values")


def inflated(data: bytes, most: int, *, gzip: bool = False) -> bytes:
    """What zlib or gzip has compressed. ValueError for anything else, and for more than `most` bytes."""
    packed = zlib.decompressobj(_GZIP if gzip else zlib.MAX_WBITS)
    try:
        content = packed.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"is not compressed data: {error}") from None
    if len(content) > most:
        raise ValueError(f"has more than {most} bytes when it is unpacked")
    if not packed.eof:
        raise ValueError("is not whole")
    return content
