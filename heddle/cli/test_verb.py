"""The verb `test`: pytest over one suite or all of them, with our exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from heddle.base import resources
from heddle.base.problems import CheckError, InputError, Problem, did_you_mean
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages

# Cheap to expensive. `all` is what every machine can run; clab needs a container engine and containerlab besides.
SUITES: Final = ("unit", "golden", "netns", "clab")
ALL: Final = ("unit", "golden", "netns")
_AS_ROOT: Final = frozenset({"netns", "clab", "all"})
# The stories below tests/netns run in containers too: there each is a test of suite clab.
_WHERE: Final[Mapping[str, tuple[str, ...]]] = {"clab": ("tests/clab", "tests/netns")}
_NO_TESTS: Final = 5  # pytest's exit code when it collected nothing
_USAGE: Final = 4


def needs_root(typed: Mapping[str, Any]) -> bool:
    """True for suites that make namespaces; a wrong word is told before anything else is asked of the machine."""
    check_suite(typed["suite"])
    return typed["suite"] in _AS_ROOT


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """What the suite needs of the system: every program that its tests start."""
    needed = packages.TESTS if needs_root(typed) else packages.UNIT_TESTS
    if typed["suite"] == "clab":
        needed = (*needed, *packages.ENGINE, *packages.IMAGE)
    return (*needed, *packages.BUILD) if typed["build"] else needed


def check_suite(suite: str) -> None:
    """InputError when there is no such suite."""
    if suite not in (*SUITES, "all"):
        raise InputError(Problem("", f"./inv test {suite}", "is not a suite", did_you_mean(suite, (*SUITES, "all"))))


def run_tests(out: Console, suite: str, extra: Sequence[str]) -> None:
    """pytest over one suite or all of them; CheckError when a test fails."""
    root = resources.HERE.checkout("./inv test")
    chosen = ALL if suite == "all" else (suite,)
    where = [place for each in chosen for place in _WHERE.get(each, (f"tests/{each}",)) if (root / place).is_dir()]
    only = "clab" if suite == "clab" else "not clab"
    # pytest's own text is the result for people; for programs it is progress.
    argv = [sys.executable, "-m", "pytest", "-ra", "-m", only, *where, *extra]
    env = {**os.environ, "HEDDLE_SUITE": suite}
    with _engine(out) if suite == "clab" else nullcontext():
        out.close()
        done = subprocess.run(argv, cwd=root, stdout=sys.stderr if out.json else None, env=env, check=False)
    if done.returncode == _NO_TESTS:
        raise CheckError(Problem("", f"./inv test {suite}", "ran no test: nothing matches", "look at what follows --"))
    if done.returncode == _USAGE:
        raise InputError(Problem("", " ".join(extra) or suite, "is nothing that pytest understands", "see above"))
    if out.json:
        out.result({"ok": done.returncode == 0, "suite": suite, "pytest_exit_code": done.returncode})
    out.exit_code = 1 if done.returncode == 1 else done.returncode


@contextmanager
def _engine(out: Console) -> Iterator[None]:
    """An engine and a containerlab for the length of the tests; an engine that was started for them ends with them."""
    from heddle.host.engine.setup import engine_running, setup_containerlab

    with engine_running(out.observer):
        setup_containerlab(out.observer, ask=out.confirm, stays=False)
        yield


@verb(
    help={
        "suite": "unit, golden, netns; all is these three; clab has the stories of netns told in containers",
        "build": "see to it that clang is there, so that the BPF programs are rebuilt and compared",
        "args": "words for pytest: ./inv test unit -- -k load -x",
    },
    positional=["suite"],
    rest="args",
    packages=needed_packages,
    root=needs_root,
    checkout=True,
)
def test(out: Console, suite: str = "all", build: bool = False, args: Sequence[str] = ()) -> None:
    """Run the test suites; unit and golden need no root."""
    run_tests(out, suite, args)
