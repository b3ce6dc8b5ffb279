"""Python packages that only some verbs need: the extras of the distribution `heddle-fabric` (see pyproject.toml).

Neither `./inv` nor `pip install heddle-fabric` installs one: up, run, paths and down need none. In a checkout, a verb
installs an extra at its first use, after a question (host/lockedpackages.py).
HowInstalled has the command that adds one to this installation, as a line to type or a short instruction. It is found
from the environment of the running interpreter: sys.prefix, files that its installer left there, and direct_url.json
of the distribution (PEP 610):

    checkout   ./inv made .venv, or another Python runs the checkout
    pipx       pipx_metadata.json in the environment
    uv tool    uv-receipt.toml in the environment
    uv         `uv venv` made the environment (pyvenv.cfg says so): it has no pip
    debian     an environment without pip on top of Debian's packages: the container image (Containerfile)
    pip        all others
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from heddle.base.problems import MachineError, Problem
from heddle.base.resources import EXTRAS_LOCK, FRONT_DOOR, HERE

DISTRIBUTION: Final = "heddle-fabric"
_NOT_IN_DEBIAN: Final = "install the wheel with pip, pipx or uv: Debian's packages do not have this one"
Installer = Literal["checkout", "pipx", "uv tool", "uv", "debian", "pip"]


@dataclass(frozen=True, slots=True)
class HowInstalled:
    """prefix: sys.prefix. checkout: its root, None for a wheel. pip: whether the environment has it.

    url: where the distribution was installed from; empty if from a package index, or if the file is gone.
    """

    prefix: Path
    checkout: Path | None
    pip: bool
    url: str = ""

    @property
    def installer(self) -> Installer:
        """The installer."""
        if self.checkout is not None:
            return "checkout"
        if (self.prefix / "pipx_metadata.json").is_file():
            return "pipx"
        if (self.prefix / "uv-receipt.toml").is_file():
            return "uv tool"
        settings = self._settings()
        if "uv" in settings:
            return "uv"
        return "debian" if not self.pip and settings.get("include-system-site-packages") == "true" else "pip"

    def add(self, extra: str, present: Sequence[str], debian: Sequence[str]) -> str:
        """The command that adds an extra. present: extras that are installed; debian: the extra's packages there."""
        wanted = f"{DISTRIBUTION}[{extra}]"
        if self.checkout is not None:
            return self._again(self.checkout)
        if self.installer == "debian":
            return f"apt-get install {' '.join(debian)}" if debian else _NOT_IN_DEBIAN
        if self.installer == "pip":
            return f"{self._pip()} install {shlex.quote(wanted)}"
        if self.installer == "uv":
            python = shlex.quote(str(self.prefix))
            return f"uv pip install --python {python} {shlex.quote(self._located(wanted))}"
        # These two replace the installation: with the extras that are there, and from the same file.
        both = f"{DISTRIBUTION}[{','.join(sorted({extra, *present}))}]"
        tool = "pipx" if self.installer == "pipx" else "uv tool"
        return f"{tool} install --force {shlex.quote(self._located(both))}"

    def _again(self, checkout: Path) -> str:
        """For a checkout: .venv gets an extra by a verb. Other environments are the user's, and Heddle changes none."""
        if self.prefix == checkout / ".venv":
            return f"run ./{FRONT_DOOR} setup extras: it installs all extras in .venv"
        if not self.pip:
            return f"start {shlex.quote(str(checkout / FRONT_DOOR))}: it makes .venv, and installs extras there"
        return self.add_locked(checkout / EXTRAS_LOCK)

    def add_locked(self, lock: Path) -> str:
        """The command that adds what a lock file pins to an environment of the user."""
        pip = f"{self._pip()} install" if self.pip else f"uv pip install --python {shlex.quote(str(self.prefix))}"
        return f"{pip} --no-deps --require-hashes -r {shlex.quote(str(lock))}"

    def _pip(self) -> str:
        """`pip` of the environment: by its path, because another one may come first in PATH."""
        return f"{shlex.quote(str(self.prefix / 'bin' / 'python'))} -m pip"

    def _located(self, requirement: str) -> str:
        return f"{requirement} @ {self.url}" if self.url else requirement

    def _settings(self) -> dict[str, str]:
        try:
            lines = (self.prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        return {key.strip(): value.strip() for key, found, value in (line.partition("=") for line in lines) if found}


@cache
def how_installed() -> HowInstalled:
    """This one."""
    checkout = HERE.root if HERE.is_checkout else None
    return HowInstalled(Path(sys.prefix), checkout, find_spec("pip") is not None, "" if checkout else _url())


def _url() -> str:
    from importlib.metadata import PackageNotFoundError, distribution  # takes a sixth of a verb's start

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        url = str(json.loads(text)["url"]) if text else ""
    except (PackageNotFoundError, ValueError, KeyError, TypeError):
        return ""
    parts = urlsplit(url)
    return "" if parts.scheme == "file" and not Path(unquote(parts.path)).exists() else url


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
KUBERNETES: Final = "kubernetes"
MCP: Final = "mcp"
PLOT: Final = "plot"
SSH: Final = "ssh"
TEST: Final = "test"
EXTRAS: Final[Mapping[str, Extra]] = {
    each.name: each
    for each in (
        Extra(DASHBOARD, "starlette", "starlette", "the live page and its metrics (dashboard)", _DASHBOARD),
        Extra(KUBERNETES, "kubernetes", "kubernetes", "fabrics over a cluster (--runtime kubernetes)"),
        Extra(MCP, "mcp", "mcp", "assistants (mcp)"),
        Extra(
            PLOT,
            "matplotlib",
            "matplotlib",
            "pictures and reports (plot, graph, report, --heatmap)",
            ("python3-matplotlib",),
        ),
        Extra(SSH, "paramiko", "paramiko", "lab servers (--on ssh:...)", ("python3-paramiko",)),
        Extra(TEST, "pytest", "pytest", "tests of fabrics (pytest)", _TEST),
    )
}


Provider = Callable[[Extra], object]
_PROVIDER: ContextVar[Provider | None] = ContextVar("provider", default=None)


@contextmanager
def provided_by(provider: Provider) -> Iterator[None]:
    """In the block, `require` calls this function first, which may install the extra. Only a verb has one."""
    token = _PROVIDER.set(provider)
    try:
        yield
    finally:
        _PROVIDER.reset(token)


def require(name: str) -> None:
    """Return when the extra is installed; else MachineError with the command that installs it."""
    if provider := _PROVIDER.get():
        provider(EXTRAS[name])
    if not EXTRAS[name].present:
        raise MachineError(EXTRAS[name].problem)


def missing_module(error: ModuleNotFoundError) -> Problem | None:
    """The problem behind a failed import, when the module is an extra's; None for any other module."""
    top = (error.name or "").partition(".")[0]
    return next((each.problem for each in EXTRAS.values() if each.module == top), None)
