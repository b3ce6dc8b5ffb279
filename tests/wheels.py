"""A wheel of this checkout, and a virtual environment of a test's own with it installed. No network is used.

    wheel = build_wheel(tmp_path)
    installed = install(wheel, tmp_path / "an environment")
    installed.heddle("up", "tiny", cwd=tmp_path / "an empty directory")

The environment sees the packages that these tests run with, by a .pth file: only Heddle itself is installed in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What a test suite, a shell in a checkout, or sudo sets, and what a user who has installed a wheel has not set.
_NOT_KEPT = ("HEDDLE_", "PYTHON", "VIRTUAL_ENV", "SUDO_", "XDG_")


@dataclass(frozen=True)
class InstalledWheel:
    """A virtual environment with Heddle's wheel in it."""

    place: Path

    @property
    def program(self) -> Path:
        """The console script."""
        return self.place / "bin" / "heddle"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.place / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where the wheel's files are."""
        (found,) = self.place.glob("lib/python3.*/site-packages")
        return found

    def heddle(
        self, *words: str, cwd: Path, env: Mapping[str, str] | None = None, before: Sequence[str] = (),
        stdin: str = "", timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run the console script to its end. before: words in front of it, as of unshare."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_KEPT)}
        kept.pop("CI", None)
        return subprocess.run(
            [*before, str(self.program), *words], capture_output=True, text=True, input=stdin, cwd=cwd,
            env={**kept, **(env or {})}, timeout=timeout, check=False,
        )  # fmt: skip


def build_wheel(into: Path) -> Path:
    """Build the wheel of this checkout with the build backend that these tests run with."""
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = into.glob("heddle_fabric-*.whl")
    return wheel


def install(wheel: Path, place: Path, *, python: str = sys.executable, without: Sequence[str] = ()) -> InstalledWheel:
    """A virtual environment at `place` with the wheel in it; pip of these tests installs it, with no index.

    without: modules that these tests run with, and that the environment does not have.
    """
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    made = InstalledWheel(place)
    argv = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-q", "--no-index", "--no-deps"]
    argv += ["--disable-pip-version-check", str(wheel)]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    others = place / "packages of the tests"
    others.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if each.name.partition(".")[0] not in without:
            (others / each.name).symlink_to(each)
    (made.packages / "of-the-tests.pth").write_text(f"{others}\n")
    return made
