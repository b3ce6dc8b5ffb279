"""Find the files that are delivered with Heddle: content for users, BPF objects, and the Python code itself.

Heddle is used in one of two layouts, and this module is the only one that knows them:

    checkout   ROOT/topologies, templates, traffic, labs, docs beside ROOT/heddle; ROOT/tasks.py has the verbs
    wheel      the same folders and files are package data, heddle/_content/topologies and so on; there is no ROOT

Heddle's own plugins are the package `heddle_plugins` beside `heddle` in both; of a checkout, a link to ROOT/plugins.

Which files the wheel carries is in pyproject.toml (hatch's force-include), from this module's CONTENT and BESIDE.

BPF objects are package data in both: heddle/switch/bpf/NAME.o. So is the compiled code of the NICs:
heddle/endpoints/fastpath/fastpath-MACHINE.so, and that of switches: heddle/switch/compiled/switch-MACHINE.so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base import progname
from heddle.base.problems import InputError, MachineError, Problem

TOPOLOGIES: Final = "topologies"
TEMPLATES: Final = "templates"
TRAFFIC: Final = "traffic"
LABS: Final = "labs"
DOCS: Final = "docs"
CONTENT: Final = (TOPOLOGIES, TEMPLATES, TRAFFIC, LABS, DOCS)
BUNDLED: Final = "_content"  # of a wheel, in its package
PLUGINS: Final = "heddle_plugins"
_VERBS: Final = "tasks.py"
FRONT_DOOR: Final = "inv"
CORE_LOCK: Final = "requirements.lock"
EXTRAS_LOCK: Final = "requirements-extras.lock"
# With these, the content and the package, a wheel makes a checkout on a lab server (plugins/places/sync.py).
BESIDE: Final = (_VERBS, FRONT_DOOR, "pyproject.toml", CORE_LOCK, EXTRAS_LOCK, "LICENSE")
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
        return not (self.package / BUNDLED).is_dir()

    @property
    def root(self) -> Path:
        """Where the content folders and the files beside them are: of a wheel, inside the package."""
        return self.package.parent if self.is_checkout else self.package / BUNDLED

    @property
    def verbs(self) -> Path:
        """tasks.py, which has the verbs. MachineError when it is missing."""
        return self._there(self.root / _VERBS)

    @property
    def plugins(self) -> Path:
        """The directory of Heddle's own plugins, one folder for each."""
        return self.python_path / PLUGINS

    def beside(self, name: str) -> Path:
        """One of the files of BESIDE. MachineError when it is missing."""
        return self._there(self.root / name)

    def content(self, folder: str) -> Path:
        """The directory of one content folder, as `topologies`. MachineError when it is missing."""
        found = self.root / folder
        if not found.is_dir():
            raise MachineError(Problem("", str(found), "is missing from this installation", _REINSTALL))
        return found

    @property
    def engine_by_hand(self) -> Path | None:
        """`.engine/` of a checkout: Docker and containerlab for locked-down machines. None in a wheel."""
        found = self.package.parent / ".engine"
        return found if self.is_checkout and found.is_dir() else None

    def bpf_object(self, name: str) -> Path:
        """The built BPF program NAME.o. MachineError when it is missing."""
        return self._there(self.package / "switch" / "bpf" / f"{name}.o")

    def fastpath(self, machine: str) -> Path:
        """The compiled fast path of the NICs for a kind of processor. MachineError when there is none."""
        return self._there(self.package / "endpoints" / "fastpath" / f"fastpath-{machine}.so")

    def switch_code(self, machine: str) -> Path:
        """The compiled code of switches for a kind of processor. MachineError when there is none."""
        return self._there(self.package / "switch" / "compiled" / f"switch-{machine}.so")

    @staticmethod
    def _there(found: Path) -> Path:
        if not found.is_file():
            raise MachineError(Problem("", str(found), "is missing from this installation", _REINSTALL))
        return found

    def as_checkout(self) -> dict[str, Path]:
        """Every file of a wheel under its name in a checkout: `inv`, `heddle/cli/argv.py`, and so on.

        Plugins are below `heddle_plugins` only: that checkout has a directory where others have the link to `plugins`.
        """
        roots = {folder: self.content(folder) for folder in CONTENT}
        roots |= {self.package.name: self.package, PLUGINS: self.plugins}
        found = {name: self._there(self.root / name) for name in BESIDE}
        for name, place in roots.items():
            for path in place.rglob("*"):
                bundled = place == self.package and path.is_relative_to(self.package / BUNDLED)
                if path.is_file() and not bundled and "__pycache__" not in path.parts:
                    found[f"{name}/{path.relative_to(place).as_posix()}"] = path
        return found

    def checkout(self, purpose: str) -> Path:
        """The root of the checkout. InputError in an installed wheel: `purpose` needs a checkout."""
        if not self.is_checkout or not (self.package.parent / _VERBS).is_file():
            hint = "clone Heddle's repository, and run it there"
            raise InputError(Problem("", purpose, "needs a checkout of Heddle, and this one is installed", hint))
        return self.package.parent

    def command(self) -> list[str]:
        """The words that start this program again, whatever the working directory and PATH."""
        if self.is_checkout:
            return [sys.executable, str(self.verbs)]
        # -P: the working directory may have a folder `heddle`, and what is in it would run as root.
        return [sys.executable, "-P", str(self._there(self.package / "cli" / "__main__.py"))]


# A plain path, not importlib.resources: templates and BPF objects are opened by programs that need a file's name.
HERE: Final = Installation(Path(__file__).resolve().parents[1])
if not HERE.is_checkout:
    progname.layout_is_installed()
