"""The verb `test`: pytest over one suite or several, with our exit codes.

Without an argument: a new user runs it to check this machine. Every feature is tested once on a live fabric. Tests
with the mark `deep` test a feature in detail; suites `netns` and `all` include them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.problems import CheckError, InputError, Problem, did_you_mean
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools
from heddle.cli.verbs import verb
from heddle.host import packages

# Cheap to expensive. `quick` and `all` are for every machine; clab needs a container engine and containerlab besides,
# browser needs Chromium.
SUITES: Final = ("unit", "golden", "netns", "clab", "browser")
ALL: Final = ("unit", "golden", "netns")
QUICK: Final = "quick"
WORDS: Final = (QUICK, *SUITES, "all")
_AS_ROOT: Final = frozenset({"netns", "clab", "browser", QUICK, "all"})
# Tests below tests/netns with the mark `containers` run in containers, too: there each is a test of suite clab.
_WHERE: Final[Mapping[str, tuple[str, ...]]] = {"clab": ("tests/clab", "tests/netns")}
_MARKS: Final[Mapping[str, str]] = {"clab": "clab", QUICK: "not clab and not deep"}
_NO_TESTS: Final = 5  # pytest's exit code when it collected nothing
_USAGE: Final = 4


def needs_root(typed: Mapping[str, Any]) -> bool:
    """Whether a suite makes namespaces. InputError for an unknown suite, before anything of the machine is checked."""
    check_suite(typed["suite"])
    return typed["suite"] in _AS_ROOT


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """The system packages that the chosen tests need: every program that they start."""
    needed: Sequence[str] = packages.FABRIC if needs_root(typed) else packages.UNIT_TESTS
    if typed["suite"] == "clab":
        needed = (*needed, *packages.ENGINE, *packages.IMAGE)
    if typed["suite"] == "browser":
        needed = (*needed, *packages.BROWSER)
    if typed["build"]:
        needed = (*needed, *packages.BUILD)
    absent = [part.name for part in packages.missing(packages.TEST_EXTRAS)]
    # pytest collects tests only when needed: on a machine with all packages there is nothing to choose.
    chosen = marked_needs(typed["suite"], typed.get("args") or ()) if absent else frozenset()
    return (*needed, *(name for name in absent if name in chosen))


def marked_needs(suite: str, extra: Sequence[str]) -> frozenset[str]:
    """The packages in marks `needs` of the tests that these words select; pytest collects them and runs none."""
    root = resources.HERE.checkout("./inv test")
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "needs")
        argv = [*_pytest(root, suite, extra), "--collect-only", "-q", "--needs-to", str(found)]
        subprocess.run(argv, cwd=root, capture_output=True, check=False)
        # Words that pytest does not understand select nothing: the run itself reports the error.
        return frozenset(found.read_text(encoding="utf-8").split()) if found.exists() else frozenset()


def _pytest(root: Path, suite: str, extra: Sequence[str]) -> list[str]:
    """The command line of pytest: typed files replace the folders of the suite."""
    chosen = ALL if suite in (QUICK, "all") else (suite,)
    where = [place for each in chosen for place in _WHERE.get(each, (f"tests/{each}",)) if (root / place).is_dir()]
    if any(word.startswith("tests/") and (root / word.partition("::")[0]).exists() for word in extra):
        where = []
    return [sys.executable, "-m", "pytest", "-ra", "-m", _MARKS.get(suite, "not clab"), *where, *extra]


def check_suite(suite: str) -> None:
    """InputError when there is no such suite."""
    if suite not in WORDS:
        raise InputError(Problem("", f"./inv test {suite}", "is not a suite", did_you_mean(suite, WORDS)))


def run_tests(out: Console, suite: str, extra: Sequence[str]) -> None:
    """pytest over one suite or several; CheckError when a test fails."""
    root = resources.HERE.checkout("./inv test")
    if suite == "browser":
        ensure_tools(
            out, root / "requirements-browser.lock", ("axe-playwright-python", "selenium"), "the browser's driver"
        )
    # pytest's text is the result; with --format json it is progress.
    argv = _pytest(root, suite, extra)
    env = {**os.environ, "HEDDLE_SUITE": suite}
    with _engine(out) if suite == "clab" else nullcontext():
        out.close()
        done = subprocess.run(argv, cwd=root, stdout=sys.stderr if out.json else None, env=env, check=False)
    if done.returncode == _NO_TESTS:
        hint = "check the words after --" + ("; ./inv test all has more tests" if suite == QUICK else "")
        raise CheckError(Problem("", f"./inv test {suite}", "ran no test: nothing matches", hint))
    if done.returncode == _USAGE:
        raise InputError(Problem("", " ".join(extra) or suite, "is not understood by pytest", "see its output above"))
    if out.json:
        out.result({"ok": done.returncode == 0, "suite": suite, "pytest_exit_code": done.returncode})
    out.exit_code = 1 if done.returncode == 1 else done.returncode


@contextmanager
def _engine(out: Console) -> Iterator[None]:
    """A container engine and containerlab during the tests; an engine that was started for them is stopped."""
    from heddle.host.engine.setup import engine_running, setup_containerlab

    with engine_running(out.observer):
        setup_containerlab(out.observer, ask=out.confirm, stays=False)
        yield


@verb(
    help={
        "suite": "quick (each feature once), unit, golden, netns, all (these three), clab (labs in containers), "
        "or browser (pages in Chromium)",
        "build": "also install clang, so that the BPF programs are rebuilt and compared",
        "args": "arguments for pytest: ./inv test unit -- -k load -x",
    },
    positional=["suite"],
    rest="args",
    packages=needed_packages,
    root=needs_root,
    checkout=True,
)
def test(out: Console, suite: str = QUICK, build: bool = False, args: Sequence[str] = ()) -> None:
    """Run the tests: by default those that test each feature once; `all` runs unit, golden and netns."""
    run_tests(out, suite, args)
