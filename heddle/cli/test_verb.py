"""The verb `test`: pytest over one suite or several, with our exit codes.

Without an argument: a new user runs it to check this machine. Every feature is tested once on a live fabric. Tests
with the mark `deep` test a feature in detail; suites `netns` and `all` include them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.problems import CheckError, InputError, Problem, did_you_mean
from heddle.base.process import left_to_child
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools
from heddle.cli.verbs import verb
from heddle.host import packages

# Cheap to expensive. `quick` and `all` are for every machine; clab also needs a container engine and containerlab,
# browser needs Chromium, vm needs QEMU and an image of 1 GB.
SUITES: Final = ("unit", "golden", "netns", "clab", "browser", "vm")
ALL: Final = ("unit", "golden", "netns")
QUICK: Final = "quick"
WORDS: Final = (QUICK, *SUITES, "all")
_AS_ROOT: Final = frozenset({"netns", "clab", "browser", QUICK, "all"})
# Tests below tests/netns with the mark `containers` run in containers, too: there each is a test of suite clab.
_WHERE: Final[Mapping[str, tuple[str, ...]]] = {"clab": ("tests/clab", "tests/netns")}
_MARKS: Final[Mapping[str, str]] = {"clab": "clab", QUICK: "not clab and not deep"}
_NO_TESTS: Final = 5  # pytest's exit code when it collected nothing
_USAGE: Final = 4
_WORKERS: Final = 2
_SPREAD: Final = frozenset({"unit", "golden", "all", QUICK})  # live fabrics alone would use one worker
# pytest's words that select tests, need the terminal, or choose workers.
_PLAIN: Final = frozenset(
    {
        "-k", "-m", "-s", "-n", "-d", "-h", "--deselect", "--lf", "--last-failed", "--ff", "--failed-first", "--nf",
        "--new-first", "--sw", "--stepwise", "--co", "--collect-only", "--pdb", "--trace", "--capture",
        "--numprocesses", "--dist", "--tx", "--help", "--version", "--fixtures", "--markers", "--setup-only",
        "--setup-plan", "--setup-show", "no:xdist", "-pno:xdist",
    }
)  # fmt: skip
_END_S: Final = 90.0  # for pytest to take its labs down


def needs_root(typed: Mapping[str, Any]) -> bool:
    """Whether a suite makes namespaces. InputError for an unknown suite, before anything of the machine is checked."""
    check_suite(typed["suite"])
    return typed["suite"] in _AS_ROOT


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """The system packages that the chosen tests need: every program that they start."""
    needed: Sequence[str] = packages.FABRIC if needs_root(typed) else packages.UNIT_TESTS
    if typed["suite"] == "vm":
        from heddle.cli.vm_verb import needed_packages as needed_by_vm

        needed = (*needed, "iproute2", *needed_by_vm({"action": "up", "kernel": "", "rebuild": False}))
    if typed["suite"] == "clab":
        needed = (*needed, *packages.ENGINE, *packages.IMAGE)
    if typed["suite"] == "browser":
        needed = (*needed, *packages.BROWSER)
    if typed["build"]:
        needed = (*needed, *packages.BUILD)
    absent = [part.name for part in packages.missing(packages.TEST_EXTRAS)]
    # pytest collects tests only when needed: on a machine with all packages there is nothing to choose.
    chosen = marked_needs(typed["suite"], typed.get("args") or (), absent) if absent else frozenset()
    return (*needed, *(name for name in absent if name in chosen))


def marked_needs(suite: str, extra: Sequence[str], absent: Sequence[str]) -> frozenset[str]:
    """The packages in marks `needs` of the tests that these words select; pytest collects them and runs none.

    absent: packages that are not installed. Only files that name one of them are collected: all take half a minute.
    """
    root = resources.HERE.checkout("./inv test")
    folders = _folders(root, suite, extra)
    files = [str(path.relative_to(root)) for place in folders for path in _marked(root / place, absent)]
    if folders and not files:
        return frozenset()
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "needs")
        argv = [*_pytest(suite, extra, files), "--collect-only", "-q", "--needs-to", str(found)]
        subprocess.run(argv, cwd=root, env=_compiling(), capture_output=True, check=False)
        # Words that pytest does not understand select nothing: the run itself reports the error.
        return frozenset(found.read_text(encoding="utf-8").split()) if found.exists() else frozenset()


def _marked(folder: Path, absent: Sequence[str]) -> Iterator[Path]:
    """The test files with a mark `needs` that may name one of these packages; tests/sshd.py has the mark NEEDS."""
    for path in sorted(folder.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "NEEDS" in text or ("mark.needs(" in text and any(f'"{name}"' in text for name in absent)):
            yield path


def _folders(root: Path, suite: str, extra: Sequence[str]) -> list[str]:
    """The folders of the suite; none where files are typed, which replace them."""
    if any(word.startswith("tests/") and (root / word.partition("::")[0]).exists() for word in extra):
        return []
    chosen = ALL if suite in (QUICK, "all") else (suite,)
    return [place for each in chosen for place in _WHERE.get(each, (f"tests/{each}",)) if (root / place).is_dir()]


def _compiling() -> dict[str, str]:
    """The environment of pytest. It and the many processes that tests start keep compiled modules.

    Without them each process compiles what it imports, which takes as long as what it does; PYTHONDONTWRITEBYTECODE is
    set in many container images.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _pytest(suite: str, extra: Sequence[str], where: Sequence[str]) -> list[str]:
    """The command line of pytest. where: folders or files."""
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
    argv = [*_pytest(suite, extra, _folders(root, suite, extra)), *_workers(suite, extra)]
    env = {**_compiling(), "HEDDLE_SUITE": suite}
    with _engine(out) if suite == "clab" else nullcontext():
        out.close()
        code = _pytest_ended(subprocess.Popen(argv, cwd=root, stdout=sys.stderr if out.json else None, env=env))
    if code == _NO_TESTS:
        hint = "check the words after --" + ("; ./inv test all has more tests" if suite == QUICK else "")
        raise CheckError(Problem("", f"./inv test {suite}", "ran no test: nothing matches", hint))
    if code == _USAGE:
        raise InputError(Problem("", " ".join(extra) or suite, "is not understood by pytest", "see its output above"))
    if out.json:
        out.result({"ok": code == 0, "suite": suite, "pytest_exit_code": code})
    out.exit_code = code


def _workers(suite: str, extra: Sequence[str]) -> list[str]:
    """Two processes for a whole suite (tests/workers.py): live fabrics in one, everything else in the other.

    None for a selection of tests, since its output and its debugger stay plain so; none when the user chose with -n.
    """
    whole = not any(_is_plain(word) for word in extra)
    enough = len(os.sched_getaffinity(0)) >= _WORKERS and find_spec("xdist") is not None
    return ["-n", str(_WORKERS)] if suite in _SPREAD and whole and enough else []


def _is_plain(word: str) -> bool:
    """Whether this word of pytest's makes a session in which tests run in pytest's own process."""
    if word.startswith("tests/") or "::" in word or word.endswith(".py"):
        return True
    name = word.partition("=")[0]
    return name in _PLAIN or (not name.startswith("--") and name[:2] in _PLAIN)


def _pytest_ended(pytest: subprocess.Popen[bytes]) -> int:
    """The exit code of pytest. A signal ends it first, so that it takes its labs down; then the signal counts here."""
    with pytest:
        try:
            return pytest.wait()
        except KeyboardInterrupt:  # Ctrl-C has reached pytest, too
            _wait_for_end(pytest)
            raise
        except SystemExit:  # SIGTERM and SIGHUP may have reached this process only
            pytest.terminate()
            _wait_for_end(pytest)
            raise


def _wait_for_end(pytest: subprocess.Popen[bytes]) -> None:
    with left_to_child(signal.SIGINT):
        try:
            pytest.wait(_END_S)
        except subprocess.TimeoutExpired:
            pytest.kill()


@contextmanager
def _engine(out: Console) -> Iterator[None]:
    """A container engine and containerlab during the tests; an engine that was started for them is stopped."""
    from heddle.host.engine.setup import engine_running, setup_containerlab

    with engine_running(out.observer):
        setup_containerlab(out.observer, ask=out.confirm, stays=False)
        yield


@verb(
    help={
        "suite": Option(
            "quick (each feature once), unit, golden, netns, all (these three), clab (labs in containers), "
            "browser (pages in Chromium), or vm (a full kernel in QEMU)",
            WORDS,
        ),
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
