"""Find the files that are delivered with Heddle: content for users, BPF objects, and the Python code itself.

Heddle is used in one of two layouts, and this module is the only one that knows them:

    checkout   ROOT/topologies, templates, traffic, labs beside ROOT/heddle; ROOT/tasks.py has the verbs
    wheel      the same folders are package data, heddle/_content/topologies and so on; there is no ROOT

BPF objects are package data in both: heddle/switch/bpf/NAME.o. So is the compiled code of the NICs:
heddle/endpoints/fastpath/fastpath-MACHINE.so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import InputError, MachineError, Problem

TOPOLOGIES: Final = "topologies"
TEMPLATES: Final = "templates"
TRAFFIC: Final = "traffic"
_BUNDLED: Final = "_content"
_VERBS: Final = "tasks.py"
_REINSTALL: Final = "install Heddle again, or use a complete checkout"


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation of Heddle. package: the directory of the package `heddle`."""

    package: Path

    @property
    def python_path(self) -> Path:
        """The directory that a child process needs in PYTHONPATH, or as its own, to import `heddle`."""
        return self.package.parent

    @property
    def is_checkout(self) -> bool:
        """True in a checkout, where the content stands beside the package; False when a wheel is installed."""
        return not (self.package / _BUNDLED).is_dir()

    def content(self, folder: str) -> Path:
        """The directory of one content folder, as `topologies`. MachineError when it is missing."""
        found = (self.package.parent if self.is_checkout else self.package / _BUNDLED) / folder
        if not found.is_dir():
            raise MachineError(Problem("", str(found), "is missing from this installation", _REINSTALL))
        return found

    def bpf_object(self, name: str) -> Path:
        """The built BPF program NAME.o. MachineError when it is missing."""
        found = self.package / "switch" / "bpf" / f"{name}.o"
        if not found.is_file():
            raise MachineError(Problem("", str(found), "is missing from this installation", _REINSTALL))
        return found

    def fastpath(self, machine: str) -> Path:
        """The compiled fast path of the NICs for a kind of processor. MachineError when there is none."""
        found = self.package / "endpoints" / "fastpath" / f"fastpath-{machine}.so"
        if not found.is_file():
            raise MachineError(Problem("", str(found), "is missing from this installation", _REINSTALL))
        return found

    def checkout(self, purpose: str) -> Path:
        """The root of the checkout. InputError in an installed wheel: `purpose` needs a checkout."""
        if not self.is_checkout or not (self.package.parent / _VERBS).is_file():
            hint = "clone Heddle and use ./inv there"
            raise InputError(Problem("", purpose, "needs a checkout of Heddle, and this one is installed", hint))
        return self.package.parent

    def command(self) -> list[str]:
        """The words that start this program again, whatever the working directory and PATH."""
        verbs = self.package.parent / _VERBS
        return [sys.executable, str(verbs if self.is_checkout and verbs.is_file() else Path(sys.argv[0]).absolute())]


# A plain path, not importlib.resources: templates and BPF objects are opened by programs that need a file's name.
HERE: Final = Installation(Path(__file__).resolve().parents[1])
