"""A wheel of this checkout, and a virtual environment of a test's own with it installed. No network is used.

    wheel = build_wheel(tmp_path)
    installed = install(wheel, tmp_path / "an environment")
    installed.heddle("up", "tiny", cwd=tmp_path / "an empty directory")
    theirs = install_with(["test"], wheel, tmp_path / "another")     # heddle-fabric[test] and nothing else

The environment sees the packages that these tests run with, by a .pth file: only Heddle itself is installed in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
_OTHERS: Final = "packages of the tests"
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
    made = _environment(place, python)
    _pip_install(made, "--no-deps", str(wheel))
    _link_others(made, without)
    return made


def environment_without(modules: Sequence[str], place: Path) -> InstalledWheel:
    """A virtual environment at `place` without Heddle, with pip and the other packages of these tests but for some."""
    made = _environment(place, sys.executable)
    _link_others(made, modules)
    return made


def small_wheel(into: Path, name: str, version: str) -> str:
    """Write the wheel of a package that has its version and nothing else; the SHA-256 of the file."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    path = into / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install_with(extras: Sequence[str], wheel: Path, place: Path) -> InstalledWheel:
    """A virtual environment with the wheel and these extras, as `pip install 'heddle-fabric[test]'` makes it.

    It has the packages that these require and no other; pip checks that they suffice.
    """
    made = _environment(place, sys.executable)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
    for each in _closure([line for group in declared for line in group]):
        for name in {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__")}:
            _link(made, Path(str(each.locate_file(name))))
    _pip_install(made, f"heddle-fabric[{','.join(extras)}] @ {wheel.as_uri()}")
    return made


def _environment(place: Path, python: str) -> InstalledWheel:
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    made = InstalledWheel(place)
    (place / _OTHERS).mkdir()
    (made.packages / "of-the-tests.pth").write_text(f"{place / _OTHERS}\n")
    return made


def _link_others(made: InstalledWheel, without: Sequence[str]) -> None:
    """Link the packages of these tests, with what describes them: pip must not find a package that is left out."""
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if re.split(r"[-.]", each.name, maxsplit=1)[0] not in without:
            _link(made, each)


def _link(made: InstalledWheel, path: Path) -> None:
    if path.exists():
        (made.place / _OTHERS / path.name).symlink_to(path)


def _pip_install(made: InstalledWheel, *words: str) -> None:
    """Not compiled: its programs compile the few modules that they use."""
    argv = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-q", "--no-index", "--no-compile"]
    done = subprocess.run(
        [*argv, "--disable-pip-version-check", *words], cwd=made.place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _closure(requirements: Sequence[str]) -> list[Distribution]:
    """The installed distributions that these requirements name, and those that they require in turn.

    Some are for another Python or system, so not installed; pip knows, and complains of what is missing after all.
    """
    found: dict[str, Distribution] = {}
    wanted = list(requirements)
    while wanted:
        requirement = wanted.pop()
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if name not in found and "extra ==" not in requirement:
            with suppress(PackageNotFoundError):
                found[name] = distribution(name)
                wanted += found[name].requires or ()
    return list(found.values())
