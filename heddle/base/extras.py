"""Python packages that only some verbs need: the extras of the distribution `heddle-fabric` (see pyproject.toml).

`./inv` installs all of them. `pip install heddle-fabric` installs none, and runs the main job (up, run, paths, down).
howinstalled.py has the command that adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from heddle.base.howinstalled import how_installed
from heddle.base.problems import MachineError, Problem


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra. package: as pip names it; module: what is imported of it; serves: what needs it, for a sentence.

    debian: Debian's packages of it (trixie), for the container image; empty if these are missing or too old.
    """

    name: str
    package: str
    module: str
    serves: str
    debian: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """True when its package is installed."""
        return find_spec(self.module) is not None

    @property
    def hint(self) -> str:
        """The command that adds it to this installation, whose other extras stay."""
        present = [each.name for each in EXTRAS.values() if each.present]
        return how_installed().add(self.name, present, self.debian)

    @property
    def problem(self) -> Problem:
        """What a verb reports that needs it."""
        return Problem("", self.package, f"is not installed, and {self.serves} need it", self.hint)


_DASHBOARD: Final = ("python3-starlette", "python3-uvicorn", "python3-prometheus-client")
_TEST: Final = ("python3-pytest", "python3-pytest-timeout", "python3-pytest-xdist")
DASHBOARD: Final = "dashboard"
MCP: Final = "mcp"
PLOT: Final = "plot"
REPORT: Final = "report"
SSH: Final = "ssh"
TEST: Final = "test"
EXTRAS: Final[Mapping[str, Extra]] = {
    each.name: each
    for each in (
        Extra(DASHBOARD, "starlette", "starlette", "the live page and its metrics (dashboard)", _DASHBOARD),
        Extra(MCP, "mcp", "mcp", "assistants (mcp)"),
        Extra(PLOT, "matplotlib", "matplotlib", "pictures (plot, graph, --heatmap)", ("python3-matplotlib",)),
        Extra(REPORT, "plotly", "plotly", "reports (report, compare --report)"),
        Extra(SSH, "paramiko", "paramiko", "lab servers (--place ssh:...)", ("python3-paramiko",)),
        Extra(TEST, "pytest", "pytest", "tests of fabrics (pytest)", _TEST),
    )
}


def require(name: str) -> None:
    """Return when the extra is installed; else MachineError with the command that installs it."""
    if not EXTRAS[name].present:
        raise MachineError(EXTRAS[name].problem)


def missing_module(error: ModuleNotFoundError) -> Problem | None:
    """The problem behind a failed import, when the module is an extra's; None for any other module."""
    top = (error.name or "").partition(".")[0]
    return next((each.problem for each in EXTRAS.values() if each.module == top), None)
