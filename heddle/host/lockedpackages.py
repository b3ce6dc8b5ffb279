"""Python packages of a checkout: those that a lock file pins and its environment does not have, and their installation.

In:  a lock file, as uv writes it: each package with its version, a marker, its hashes, and what asks for it.
Out: nothing, or MachineError with the command to run.

`./inv` installs requirements.lock. requirements-extras.lock has everything else: the packages of one extra come with
its first use, all with `./inv setup extras`. An installation that was interrupted leaves packages that are missing or
have another version: the next call finds them. `./inv` and this module hold the same lock, the file .lock of .venv.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.extras import Extra, how_installed
from heddle.base.problems import MachineError, Problem
from heddle.base.resources import EXTRAS_LOCK, HERE
from heddle.host.engine.lockfile import locked
from heddle.host.packages import allowed

_PINNED: Final = re.compile(r"^([\w.-]+)==([^ ;\\]+)(.*(?:\n[ \t].*)*)", re.MULTILINE)
_ASKS: Final = re.compile(r"^ +#(?: via|  ) +([\w.-]+)", re.MULTILINE)
_NOT_LINUX: Final = re.compile(r"\b(?:sys_platform|os_name) == '(?!linux|posix)")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a lock file. text: its lines, as pip reads them; askers: the packages that need it."""

    name: str
    version: str
    text: str
    askers: frozenset[str]


def pins(lock: Path) -> list[Pin]:
    """The packages of a lock file that Linux can need; one package may have a pin for each version of Python."""
    found = _PINNED.finditer(lock.read_text(encoding="utf-8"))
    return [
        Pin(_normal(each[1]), each[2], each[0], frozenset(map(_normal, _ASKS.findall(each[3]))))
        for each in found
        if not _NOT_LINUX.search(each[3].partition("\n")[0])
    ]


def closure(locked_pins: Sequence[Pin], roots: Iterable[str]) -> list[Pin]:
    """The pins of these packages, and of all that they need."""
    names = set(roots)
    while more := {pin.name for pin in locked_pins if pin.askers & names} - names:
        names |= more
    return [pin for pin in locked_pins if pin.name in names]


def absent(wanted: Sequence[Pin]) -> list[str]:
    """The packages that the running interpreter does not have in a version that is pinned."""
    return sorted({pin.name for pin in wanted} - {pin.name for pin in wanted if _installed(pin.name) == pin.version})


def ensure_locked(lock: Path, what: str, say: Say) -> None:
    """Return when the environment has all packages of a lock file as it pins them; install the file where it has not.

    what: what the file has, for a sentence ("the linters"). MachineError when pip fails, and with the command when the
    environment is not .venv of this checkout.
    """
    wanted = pins(lock)
    if words := absent(wanted):
        how = how_installed()
        if how.checkout is None or how.prefix != how.checkout / ".venv":
            why = f"not there as {lock.name} pins them, and Heddle does not change this environment: {', '.join(words)}"
            raise MachineError(Problem("", f"{what} in {how.prefix}", f"are {why}", how.add_locked(lock)))
        say(f"installing {what} of {lock.name}")
        _install(wanted, lock.name, say)


def provide(
    extras: Sequence[Extra], *, yes: bool | None, ask: Callable[[str], bool], say: Say = lambda _: None
) -> list[str]:
    """Install what these extras need and .venv of this checkout does not have, if that is allowed; the packages' names.

    Allowed means: as `packages.ensure`; yes: None where there is no such flag. Packages of an extra that is installed
    are brought to the versions of the lock file without a question, as `./inv` does.
    Other environments stay as they are: `require` names the command. MachineError when it is not allowed, or pip fails.
    """
    how = how_installed()
    if how.checkout is None or how.prefix != how.checkout / ".venv":
        return []
    lock = HERE.beside(EXTRAS_LOCK)
    wanted = closure(pins(lock), _required(extras))
    words = absent(wanted)
    if not words:
        return []
    new = [extra for extra in extras if not extra.present]
    for extra in new:
        say(f"missing: {extra.package}, which {extra.serves} need")
    count = f"{len(words)} package{'' if len(words) == 1 else 's'} of {lock.name}"
    say(f"pip {'would install' if new else 'installs'} {count} in {how.prefix}, and nowhere else: {', '.join(words)}")
    if new and not allowed(", ".join(extra.package for extra in new), yes=bool(yes), ask=ask, say=say):
        flag = "" if yes is None else "\nor let Heddle install it: run the same command again with --yes"
        *others, last = [extra.problem for extra in new]
        others = [Problem("", each.what, each.why) for each in others]
        raise MachineError(*others, Problem("", last.what, last.why, f"{last.hint}{flag}"))
    _install(wanted, ", ".join(extra.package for extra in extras), say)
    return words


def _required(extras: Sequence[Extra]) -> set[str]:
    """The packages that pyproject.toml names for these extras."""
    import tomllib  # these imports take a sixth of the start of every verb

    file = tomllib.loads(HERE.beside("pyproject.toml").read_text(encoding="utf-8"))
    declared = file["project"]["optional-dependencies"]
    return {_normal(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for extra in extras for each in declared[extra.name]}


def _install(wanted: Sequence[Pin], what: str, say: Say) -> None:
    import tempfile

    prefix = Path(sys.prefix)
    if not os.access(prefix, os.W_OK):
        hint = "give this user write permission: Heddle keeps its Python packages there"
        raise MachineError(Problem("", str(prefix), "cannot be written", hint))
    with (
        locked(prefix / ".lock", fcntl.LOCK_EX, lambda: say("another ./inv installs packages; waiting for it")),
        tempfile.TemporaryDirectory() as scratch,
    ):
        file = Path(scratch, "requirements.txt")
        file.write_text("\n".join(pin.text for pin in wanted) + "\n", encoding="utf-8")
        try:
            left = absent(wanted)
            ended = _pip(file) if left else 0  # another process may have installed them while this one waited
        finally:
            _give_to_owner(prefix)
    importlib.invalidate_caches()
    if ended or absent(wanted):
        hint = "see pip's messages above; this needs the network once; run the same line again"
        raise MachineError(Problem("", what, f"could not be installed (pip ended with {ended})", hint))


def _pip(file: Path) -> int:
    """Install the packages of this file, and nothing that they ask for: lock files leave out what is not used."""
    # -P: the working directory may have a folder `pip`. Its output goes to stderr: stdout is the verb's result.
    argv = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps"]
    argv += [*([] if sys.stderr.isatty() else ["-q"]), "--only-binary", ":all:", "--require-hashes", "-r", str(file)]
    # Compiled modules belong beside the packages, also where root keeps its own elsewhere (tasks.py).
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"} | {"PIP_USER": "0"}
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False).returncode


def _give_to_owner(prefix: Path) -> None:
    """Under sudo, in the checkout of a user: .venv must belong to that user."""
    if os.geteuid() == 0 and prefix.parent == HERE.root:
        argv = ["chown", "-R", f"--reference={HERE.root}", str(prefix)]
        subprocess.run(argv, capture_output=True, check=False)


def _normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
