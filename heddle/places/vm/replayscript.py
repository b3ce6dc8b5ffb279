"""The script of a replay: lines with verbs of Heddle, which the guest of a replay runs one after the other.

    # a ring, and the packets at one port
    ./inv up tiny
    ./inv capture rtsw1:eth1 --out ring.pcapng &     in the background
    sleep 2                                          seconds of the guest's clock
    ./inv run --size 8K --format json > run.json     its output in a file
    wait                                             until nothing runs in the background

No shell reads them: a line becomes a list of words. In: a file, or the name of one in traffic/. Out: a Script;
InputError collects every line that is wrong.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base import resources
from heddle.base.files import real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, Problems, did_you_mean, machine_errors

SUFFIX: Final = ".replay"
OUTPUT: Final = "output.txt"  # of all lines that do not name a file
REPORT: Final = "replay.json"
SUMS: Final = "SHA256SUMS"  # written here, beside the results
OWN: Final = (OUTPUT, REPORT, SUMS)
_FRONT: Final = "./inv"
_MOST_BYTES: Final = 1 << 16
_LONGEST_S: Final = 3600.0
_NOT_SHELL: Final = re.compile(r"\|\|?|&&|;|<|>>|\d>.*|>&.*|`.*")
_GRAMMAR: Final = "a line is ./inv VERB ..., with > FILE or & at its end if needed, or sleep SECONDS, or wait"
Check = Callable[[Sequence[str]], None]  # of a verb and its words; raises HeddleError


@dataclass(frozen=True, slots=True)
class Line:
    """One line. number: in the file; words: of a verb, without ./inv; sleep: seconds; else it waits.

    to: a file name in the guest's working directory, or empty; background: the next line does not wait for it.
    """

    number: int
    text: str
    words: tuple[str, ...] = ()
    sleep: float = 0.0
    to: str = ""
    background: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the guest reads it."""
        found: dict[str, Any] = {"number": self.number, "text": self.text}
        if self.words:
            return found | {"words": list(self.words), "to": self.to, "background": self.background}
        return found | ({"sleep": self.sleep} if self.sleep else {"wait": True})


@dataclass(frozen=True, slots=True)
class Script:
    """A script. name: without its directory and suffix; shown: as problems name it."""

    name: str
    shown: str
    lines: tuple[Line, ...]


def scripts() -> list[str]:
    """The names of the scripts that are delivered with Heddle."""
    return sorted(path.stem for path in resources.HERE.content(resources.TRAFFIC).glob(f"*{SUFFIX}"))


def load_script(typed: str, check: Check) -> Script:
    """Read a script by its path or its name. InputError with all problems, MachineError if it cannot be read."""
    path = real(typed)
    shown = typed
    if typed in scripts():
        path = resources.HERE.content(resources.TRAFFIC) / f"{typed}{SUFFIX}"
        shown = short_path(path)
    if path.is_dir() or not path.exists():
        why = "is a directory" if path.is_dir() else "does not exist, and no replay of Heddle has this name"
        raise InputError(Problem("", typed, why, did_you_mean(typed, scripts())))
    with machine_errors(typed, "make the file readable for this user"), path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    return Script(path.name.removesuffix(SUFFIX), shown, _lines(content, shown, check))


def _lines(content: bytes, shown: str, check: Check) -> tuple[Line, ...]:
    problems = Problems()
    if len(content) > _MOST_BYTES:
        raise InputError(Problem("", shown, f"is larger than {_MOST_BYTES >> 10} KiB", "check the name"))
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InputError(Problem("", shown, "is not text (UTF-8)", "check the name")) from None
    lines = list[Line]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            lines.append(_line(number, stripped, check))
        except HeddleError as error:
            for each in error.problems:
                problems.add(where=f"{shown}:{number}", what=each.what, why=each.why, hint=each.hint)
    if not lines and not problems.found:
        problems.add(where="", what=shown, why="has no lines to run", hint=_GRAMMAR)
    problems.raise_if_any()
    return tuple(lines)


def _line(number: int, text: str, check: Check) -> Line:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _wrong(text, f"cannot be read: {str(error).lower()}", "close each quotation mark") from None
    if words == ["wait"]:
        return Line(number, text)
    if words[0] == "sleep":
        return Line(number, text, sleep=_seconds(words))
    if words[0] != _FRONT:
        raise _wrong(words[0], "is not possible in a replay", _GRAMMAR)
    if background := words[-1] == "&":
        words.pop()
    to = _target(words) if ">" in words else ""
    for word in words:
        if _NOT_SHELL.fullmatch(word):
            raise _wrong(word, "is not possible in a replay, which no shell reads", _GRAMMAR)
    if len(words) < 2:
        raise _wrong(text, "names no verb", _GRAMMAR)
    check(words[1:])
    return Line(number, text, tuple(words[1:]), to=to, background=background)


def _seconds(words: Sequence[str]) -> float:
    try:
        (found,) = map(float, words[1:])
    except ValueError:
        found = math.nan
    if not 0 < found <= _LONGEST_S:
        raise _wrong(" ".join(words), f"is not a time above 0 and up to {_LONGEST_S:g} s", "write sleep 2")
    return found


def _target(words: list[str]) -> str:
    """Remove `> FILE` from the end of the words; the file."""
    if words.count(">") != 1 or words[-2] != ">":
        raise _wrong(">", "is not followed by one file at the end of the line", _GRAMMAR)
    name = words.pop()
    words.pop()
    if name in OWN or "/" in name or name.startswith("."):
        why = "is written by the replay itself" if name in OWN else "is not a plain file name"
        raise _wrong(f"> {name}", why, "use another name, without a directory")
    return name


def _wrong(what: str, why: str, hint: str) -> InputError:
    return InputError(Problem("", what[:80], why, hint))
