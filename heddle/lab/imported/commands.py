"""Commands of a topology: the lines of each, also in scripts, and what a container's main process does in a node.

In:  `exec`, `entrypoint` and `cmd` of a node, and its binds.
Out: words of command lines; or the command that stands for the main process in a namespace, which has none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base.files import read_regular
from heddle.kernel.devicetypes import SEPARATORS
from heddle.lab.imported import frr
from heddle.lab.imported.grammar import LONGEST_LINE, MOST_BYTES, only_waits

OUTPUT: Final = "/run/heddle-cmd.log"  # of a main process; /run is the node's own
SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "busybox", ".", "source"})
_BEFORE: Final = frozenset({"then", "else", "do", "{", "(", "!", "sudo", "exec", "command"})  # a command follows
_REAPER: Final = re.compile(r"(\S*/)?(tini|tini-static|dumb-init|catatonit)(\s+-\S+)*\s+")  # starts the next words
_SYSTEMS: Final = frozenset({"init", "systemd", "openrc-init", "runit-init", "s6-svscan"})
_LAST: Final = re.compile(r"(?:^|[;&\n]+)\s*([^;&\n'\"]*)[\s;]*$")  # command of a script
_SCRIPT: Final = r"-\w*c"
_WAITED_S: Final = 5  # until `exec` follows, where the main process prepares FRR


def main_process(text: str) -> str:
    """What is left to run of the command of a container; empty when it only waits, or only starts FRR as a service.

    ValueError with the reason, for what is no command, or the start of a whole system.
    """
    words = shlex.split(_REAPER.sub("", text, count=1) if _REAPER.match(text) else text)
    if words and re.fullmatch(_SCRIPT, words[0]):  # of an entrypoint `sh` in the image
        words.insert(0, "sh")
    if words and words[0].startswith("-"):
        raise ValueError("has options only, for the program that the image starts")
    program = words[0].rpartition("/")[2] if words else ""
    if program in _SYSTEMS:
        raise ValueError("starts a whole system, which needs a container of its own")
    inner = next((i + 1 for i, word in enumerate(words[1:4], 1) if re.fullmatch(_SCRIPT, word)), len(words))
    if program in SHELLS and inner < len(words):
        script = words[inner]
        while script and (last := _LAST.search(script)) and only_waits(last[1]):
            script = words[inner] = script[: last.start()].rstrip()
    else:
        script = shlex.join(words)
    return "" if not script.strip() or frr.is_service(script) or only_waits(script) else shlex.join(words)


def as_main(command: str, *, waits: bool) -> str:
    """The line of `exec` that starts a main process in the background, as a container does: its end is no error.

    waits: for its end, but not long, since `exec` may need what it prepares.
    """
    wait = "n=0; while kill -0 $! && [ $n -lt {} ]; do n=$((n+1)); sleep 0.1; done 2> /dev/null; true"
    script = f"{command} > {OUTPUT} 2>&1 < /dev/null & {wait.format(10 * _WAITED_S) if waits else ''}"
    return shlex.join(["sh", "-c", script.rstrip()])


def command_lines(command: str, sources: Mapping[str, Path]) -> Iterator[list[str]]:
    """The words of each command line, including those inside `sh -c` and inside bound scripts."""
    words = _words(command)
    shell = bool(words) and words[0].rpartition("/")[2] in SHELLS
    if shell and "-c" in words[:-1]:
        words = _words(words[words.index("-c") + 1], comments=True)
    yield from _split(words)
    for script in (word for word in (words if shell else words[:1]) if word in sources):
        for line in (text_of(sources[script]) or "").splitlines():
            if len(line) <= LONGEST_LINE:  # the time of shlex grows with the square
                yield from _split(_words(line, comments=True))


def _split(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if SEPARATORS.fullmatch(word):
            yield part
            part = []
        elif part or word not in _BEFORE:
            part.append(word)
    yield part


def _words(text: str, *, comments: bool = False) -> list[str]:
    """Words as a shell reads them, separators and redirections as words; none where quotes do not match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|><\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = "#" if comments else ""
    try:
        return list(lexer)
    except ValueError:
        return []


def text_of(path: Path) -> str | None:
    """The text of a bound file; None where it cannot be read."""
    try:
        return read_regular(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def as_text(value: Any) -> str:
    """A command as a text: containerlab's form; as a list, as Docker has it, it is quoted."""
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def no_command(line: str) -> str | None:
    """Why a line of `exec` cannot be run: containerlab divides it into words without a shell."""
    if len(line) > LONGEST_LINE:
        return f"is longer than {LONGEST_LINE:,} characters"
    try:
        return None if shlex.split(line) else "is empty"
    except ValueError as error:
        return f"is no command: {str(error).lower()}"  # no closing quotation, no escaped character


def sets_queue(command: str) -> bool:
    """True for a command of tc that changes a queue."""
    words = command.replace(";", " ").replace("&", " ").split()
    places = [i for i, word in enumerate(words) if word.rpartition("/")[2].strip("'\"") == "tc"]
    return any({"qdisc", "class", "filter"} & set(words[i + 1 : i + 4]) and "show" not in words for i in places)


def drops_default(command: str) -> bool:
    """True for a command that deletes the default route."""
    words = [word for word in command.split() if not word.startswith("-")]
    routes = words[:2] in (["ip", "route"], ["ip", "r"])
    return routes and words[2:3] in (["del"], ["delete"]) and words[3:4] == ["default"]
