"""Declared, locked and imported packages are the same ones, and tools of a lock file are installed when needed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools

ROOT = Path(__file__).resolve().parents[2]
# pytest loads them by their entry points, or tests start them as programs; no module imports them.
PLUGINS = {"pytest-timeout", "hatchling"}
# pydantic's documentation says to import some names from here; its own version decides which one is installed.
# jinja2's says the same of markupsafe.
PARTS = {"pydantic-core": "pydantic", "markupsafe": "jinja2"}
# tests/browser/axe.py reads the JavaScript in it, and imports nothing of it.
CARRIERS = {"axe-playwright-python"}
OURS = {"heddle", "tests", "tasks", *(path.stem for path in (ROOT / ".engine").glob("*.py"))}
OURSELVES = "heddle-fabric"


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The packages of the project, of its extras, of the build backend, and of the model tests: what ./inv installs."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = file["project"]["optional-dependencies"].values()
    groups = [
        file["project"]["dependencies"],
        *extras,
        file["dependency-groups"]["build"],
        file["dependency-groups"]["models"],
    ]
    assert file["dependency-groups"]["build"] == file["build-system"]["requires"]
    return {_name(each) for group in groups for each in group}


def browsers() -> set[str]:
    """The packages of suite browser, which `./inv test browser` installs."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {_name(each) for each in file["dependency-groups"]["browser"]}


def _name(requirement: str) -> str:
    return normal(re.split(r"[<>=~!;\[ ]", requirement, maxsplit=1)[0])


def imported() -> set[str]:
    """The packages of all imports in heddle/, tests/ and tasks.py, those of functions and of type checking too."""
    modules = {name.split(".")[0] for name in _modules()} - OURS - set(sys.stdlib_module_names)
    known = packages_distributions()
    packages = {normal(package) for module in modules for package in known.get(module, [module])}
    return {PARTS.get(package, package) for package in packages}


def _modules() -> Iterator[str]:
    for path in [ROOT / "tasks.py", *(ROOT / "heddle").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def locked() -> dict[str, set[str]]:
    """Package -> what asks for it, by the comments of requirements.lock."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==", line):
            name = normal(match[1])
            found.setdefault(name, set())
        elif match := re.match(r"    #(?: via|  )\s*([A-Za-z0-9_.-]+)", line):
            found[name].add(normal(match[1]))
    return found


def test_every_declared_package_is_imported_and_every_imported_one_declared() -> None:
    assert imported() == (declared() | browsers()) - PLUGINS - CARRIERS
    assert declared() >= PLUGINS


def test_the_lock_has_what_is_declared_and_nothing_that_no_package_asks_for() -> None:
    packages = locked()
    assert {name for name, askers in packages.items() if OURSELVES in askers} == declared()
    for name, askers in packages.items():
        assert askers, name
        assert askers <= {OURSELVES, *packages}, name


def test_every_locked_package_has_hashes_and_no_index_is_named() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    for stanza in re.split(r"\n(?=\S)", text.strip()):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", stanza), stanza.splitlines()[0]


MISSING = f"heddle-has-no-such-package==1 --hash=sha256:{'0' * 64}\n"


def test_tools_that_are_as_pinned_need_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "requirements-some.lock"
    lock.write_text(f"pytest=={version('pytest')} ; python_version > '3' \\\n    --hash=sha256:00\n{MISSING}")
    ensure_tools(Console(), lock, ["pytest"], "the tools")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pin", ["pytest==0.0.1 --hash=sha256:00\n", MISSING])
def test_another_version_or_none_is_installed_and_a_failure_is_named(
    tmp_path: Path, pin: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock = tmp_path / "requirements-some.lock"
    lock.write_text(pin)
    with pytest.raises(MachineError, match=r"requirements-some\.lock could not be installed"):
        ensure_tools(Console(), lock, [pin.partition("==")[0]], "the tools")
    assert "installing the tools of requirements-some.lock" in capfd.readouterr().err
