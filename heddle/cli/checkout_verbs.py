"""The verbs that work on Heddle itself, in a checkout: test, soak (kills), bench (its speed), lint, docs (the site).

`test` without an argument: a new user runs it to check this machine. Every feature is tested once on a live fabric.
Tests with the mark `deep` test a feature in detail; suites `netns` and `all` include them.
"""

from __future__ import annotations

import os
import re
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
from heddle.base.files import real
from heddle.base.plugins import function
from heddle.base.problems import CheckError, InputError, Problem, did_you_mean
from heddle.base.process import left_to_child
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages
from heddle.host.lockedpackages import ensure_locked

_MORE: Final = {
    "vm": (*packages.VM, *packages.VM_BUILD),
    "vm-build": packages.VM_BUILD,
}
_LINTERS: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)
_DRIVER: Final = "the browser's driver"
_OFFLINE: Final = frozenset({"unit", "golden"})  # suites
_OF_A_SITE: Final = "search/search_index.json"
# What a browser loads by itself; a link that the reader clicks may lead anywhere.
_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|source|link(?! rel=.?(?:canonical|prev|next)))\b"
    r"[^>]*?\s(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]+)"
)


def _needed(what: str) -> Sequence[str]:
    more = _MORE["vm"] if what == "all" else _MORE.get(what, ())
    return (*packages.FABRIC, *more)


@verb(
    group="Heddle",
    help={
        "what": "Of labs: scale, kubernetes, vm, vm-build. Of traffic: budget, steady, dcqcn, order, packets, predict, "
        "queues, te, te-live, transports, trimming, collectives, diagnosis, agreement. Or all, without scale, "
        "vm-build, diagnosis, agreement",
        "runs": "runs of `order` (84 if not given), or faults of `diagnosis` (60 if not given)",
    },
    positional=["what"],
    packages=lambda typed: _needed(typed["what"]),
    root=True,
    checkout=True,
)
def bench(out: Console, what: str = "all", runs: int | None = None) -> None:
    """Measure the speed of Heddle itself on this machine: ratios and absolute figures."""
    from tests.bench import bench as measure

    result = measure(what, out.observer, runs)
    out.result(result.to_json(), result.text())


@verb(
    group="Heddle",
    help={
        "what": "steps (of up), change (steps of up of an edited fabric), up, down, run, te, fault, experiment, "
        "launch, agents, shards, memory, races, damage",
        "minutes": Option("how long; all kinds as often as wanted take about an hour", value="N"),
        "seed": Option("repeat the sequence of this seed", value="N"),
        "from": Option("begin with this round of the sequence", value="N"),
    },
    positional=["what"],
    packages=lambda _: packages.FABRIC,
    root=True,
    checkout=True,
)
def soak(out: Console, what: str = "all", minutes: float = 30.0, seed: int | None = None, from_: int = 1) -> None:
    """Kill what changes labs at random instants, and look for what is left. Exit 1 if something is.

    After each kill comes `down`. Then nothing of the lab is left, sysctls are as before, and the hosts of another lab
    have lost no packet. Memory may not grow by more than 1 MB an hour.
    """
    from tests.soak import soak as endure

    kinds = () if what == "all" else tuple(what.split(","))
    result = endure(minutes, out.observer, kinds=kinds, seed=seed, first=from_)
    out.result(result.to_json(), result.text())
    out.exit_code = 0 if result.ok else CheckError.exit_code


@verb(group="Heddle", checkout=True)
def lint(out: Console) -> None:
    """Run ruff and mypy --strict over the whole tree; install them from requirements-dev.lock when needed."""
    root = resources.HERE.checkout("./inv lint")
    ensure_locked(root / "requirements-dev.lock", "the linters", out.say)
    out.close()
    complained = []
    units = sorted(path.relative_to(root).as_posix() for path in root.glob("labs/*/check.py"))
    linters = (*_LINTERS, *(("mypy", each) for each in units))  # mypy takes one module of a name
    for tool in linters:
        argv = [sys.executable, "-m", *tool]
        print("$ " + " ".join(tool), file=sys.stderr, flush=True)
        if subprocess.run(argv, cwd=root, stdout=sys.stderr if out.json else None, check=False).returncode:
            complained.append(" ".join(tool))
    if complained:
        raise CheckError(*[Problem("", name, "failed", "see its output above") for name in complained])
    out.result({"ok": True, "linters": [" ".join(t) for t in linters]}, "all linters passed")


def _browsing(typed: Mapping[str, Any]) -> bool:
    """Whether a browser makes pictures of labs."""
    return typed["screenshots"] is not None or bool(typed["pictures"])


@verb(
    group="Heddle",
    help={
        "out": Option("directory to write (default: site, in the checkout)", value="DIR"),
        "check": Option("only compare generated pages and pictures with the code: exit code 1 if one is stale"),
        "write": Option("only write the generated pages"),
        "pictures": Option("only make the pictures of the pages again, from labs of their own"),
        "screenshots": Option("also write pictures of everything that a person sees, to look at", value="DIR"),
    },
    packages=lambda typed: (*packages.FABRIC, *packages.BROWSER) if _browsing(typed) else (),
    root=_browsing,
    checkout=True,
    files_out=["out_", "screenshots"],
    directory_out=True,
)
def docs(
    out: Console, out_: str | None = None, check: bool = False, write: bool = False, pictures: bool = False,
    screenshots: str | None = None,
) -> None:  # fmt: skip
    """Build the manual as a site that needs no network. Wrong links and anchors fail.

    mkdocs is installed from requirements-docs.lock when needed. Open index.html in the directory: search works, too.
    --screenshots DIR writes README, site, report, dashboard, demo and a plot as PNG. --pictures writes docs/demo.svg,
    docs/dashboard.png and the others that pages have. Both need root and Chromium, and make labs for that.
    """
    root = resources.HERE.checkout("./inv docs")
    if sum((check, write, pictures, out_ is not None or screenshots is not None)) > 1:
        hint = "use --check, --write, --pictures, or --out with --screenshots"
        raise InputError(Problem("", "./inv docs", "has options that exclude each other", hint))
    if check or write:
        _generated(out, write=write)
        return
    if pictures:
        ensure_locked(root / "requirements-browser.lock", _DRIVER, out.say)
        from tests.browser.docpictures import make

        made = [str(path) for path in make()]
        out.result({"pictures": made}, "\n".join(made))
        return
    site = root / "site" if out_ is None else real(out_).absolute()
    if site.exists() and not (site / _OF_A_SITE).is_file() and (not site.is_dir() or any(site.iterdir())):
        hint = "name a new or an empty directory: the old content is removed"
        raise InputError(Problem("", f"--out {site}", "has something else than an older site", hint))
    ensure_locked(root / "requirements-docs.lock", "mkdocs", out.say)
    out.close()
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    # The first variable silences the theme's note about another program; docs/ gets no compiled hooks.
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # Not with --quiet: it drops the warnings before --strict counts them.
    done = subprocess.run(argv, cwd=root, env=env, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = re.findall(r"^(?:WARNING|ERROR) +- +(.+)", done.stderr, re.MULTILINE) or done.stderr.splitlines()[-5:]
        raise CheckError(*[Problem("docs", line, "") for line in lines])
    pages = sorted(site.rglob("*.html"))
    far = [(page, address) for page in pages for address in loaded_from_elsewhere(page.read_text(encoding="utf-8"))]
    if far:
        hint = "put the file into docs/site"
        raise CheckError(*[Problem(str(page), url, "is loaded from another server", hint) for page, url in far])
    shown: list[str] = []
    if screenshots is not None:
        ensure_locked(root / "requirements-browser.lock", _DRIVER, out.say)
        from tests.browser.screenshots import main as written

        shown = [str(path) for path in written(real(screenshots).absolute(), site)]
    text = [f"{len(pages)} pages: {site / 'index.html'}", *shown]
    out.result({"site": str(site), "pages": len(pages), "screenshots": shown}, "\n".join(text))


def _generated(out: Console, *, write: bool) -> None:
    """The pages of the manual that are generated from the code: write them, or CheckError for stale ones.

    Pictures are compared, too.
    """
    from docs.site import reference

    if write:
        reference.write()
    else:
        from tests.browser import docpictures

        why, hint = "is not what the code says", "run ./inv docs --write"
        found = [Problem(f"docs/{name}.md", "", why, hint) for name in reference.stale()]
        found += [Problem(f"docs/{name}", "", why, f"run {docpictures.MADE_BY}")
                  for name, why in docpictures.stale().items()]  # fmt: skip
        if found:
            raise CheckError(*found)
    pages = [f"docs/{name}.md" for name in reference.PAGES]
    done = ": written" if write else " and the pictures: up to date"
    out.result({"pages": pages, "written": write}, f"{len(pages)} generated pages{done}")


def loaded_from_elsewhere(page: str) -> list[str]:
    """The addresses on other servers that a browser loads by itself when it shows this HTML."""
    return _LOADED.findall(page)


# Cheap to expensive. clab also needs a container engine and containerlab, browser needs Chromium, vm needs QEMU and an
# image of 1 GB, kube needs a Kubernetes that takes minutes to build. Each suite is a folder of tests, and
# tests/conftest.py gives its tests the suite's name as a mark; a test of tests/netns that runs in containers has the
# mark clab instead.
SUITES: Final = ("unit", "golden", "netns", "fuzz", "clab", "browser", "vm", "kube")
QUICK: Final = "quick"
_ANYWHERE: Final = "(unit or golden or netns)"
# Which tests a word chooses, as pytest's -m understands it. `deep` of suite vm takes hours, so it is left out. That of
# fuzz takes long, so only its own suite has it. Tests with `long` take 20 seconds and more, or repeat what another test
# shows with other parameters; what guards a commit leaves them out.
_MARKS: Final[Mapping[str, str]] = {
    QUICK: "(unit or golden or netns or fuzz) and not deep and not long",
    "deep": f"{_ANYWHERE} and deep and not long",
    "long": f"{_ANYWHERE} and long",
    "all": f"{_ANYWHERE} or (fuzz and not deep)",
    **{suite: suite for suite in SUITES},
    "clab": "clab and not long",
    "vm": "vm and not deep and not long",
}
WORDS: Final = tuple(_MARKS)
_FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys((QUICK, "all"), ("unit", "golden", "netns", "fuzz")),
    "deep": ("unit", "golden", "netns"),
    "long": ("unit", "golden", "netns"),
    **{suite: (suite,) for suite in SUITES},
    "clab": ("clab", "netns"),
}
_BY_WORD: Final = frozenset({"deep", "long"})  # suites of single tests: each stands in its file with this mark
_AS_ROOT: Final = frozenset(WORDS) - {"unit", "golden", "fuzz", "vm"}
_NO_TESTS: Final = 5  # pytest's exit code when it collected nothing
_USAGE: Final = 4
_PROCESSORS: Final = 2  # that workers need
_WORKERS: Final = 3  # tests wait a third of their time
_ALONE: Final = frozenset({"clab", "browser", "vm", "kube"})
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


def suites_of(text: str) -> list[str]:
    """The suites of `deep,vm`. InputError names one that does not exist, before anything of the machine is checked."""
    suites = text.split(",")
    for suite in suites:
        if suite not in WORDS:
            raise InputError(Problem("", f"./inv test {text}", "is not a suite", did_you_mean(suite, WORDS)))
    return suites


def needs_root(typed: Mapping[str, Any]) -> bool:
    """Whether a suite makes namespaces."""
    return not _AS_ROOT.isdisjoint(suites_of(typed["suite"]))


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """The system packages that the chosen tests need: every program that they start."""
    suites = suites_of(typed["suite"])
    needed: list[str] = [*(packages.FABRIC if needs_root(typed) else packages.UNIT_TESTS)]
    if "vm" in suites:
        needed_by_vm = function("vm-packages", "./inv test vm")
        needed += ["iproute2", *needed_by_vm({"action": "up", "kernel": "", "rebuild": False})]
    more = {"clab": (*packages.ENGINE, *packages.IMAGE), "browser": packages.BROWSER, "kube": packages.KUBE}
    for suite, parts in more.items():
        needed += parts if suite in suites else ()
    needed += packages.BUILD if typed["build"] else ()
    absent = [part.name for part in packages.missing(packages.TEST_EXTRAS)]
    # pytest collects tests only when needed: on a machine with all packages there is nothing to choose.
    chosen = marked_needs(suites, typed.get("args") or (), absent) if absent else frozenset()
    return (*needed, *(name for name in absent if name in chosen))


def marked_needs(suites: Sequence[str], extra: Sequence[str], absent: Sequence[str]) -> frozenset[str]:
    """The packages in marks `needs` of the tests that these words select; pytest collects them and runs none.

    absent: packages that are not installed. Only files that name one of them are collected: all take half a minute.
    """
    root = resources.HERE.checkout("./inv test")
    folders = _folders(root, suites, extra)
    files = [str(path.relative_to(root)) for place in folders for path in _marked(root / place, absent)]
    if folders and not files:
        return frozenset()
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "needs")
        argv = [*_pytest(suites, extra, files), "--collect-only", "-q", "--needs-to", str(found)]
        subprocess.run(argv, cwd=root, env=_compiling(), capture_output=True, check=False)
        # Words that pytest does not understand select nothing: the run itself reports the error.
        return frozenset(found.read_text(encoding="utf-8").split()) if found.exists() else frozenset()


def _tests_in(place: Path) -> list[Path]:
    """The test files of a folder, or a file of tests."""
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def _marked(folder: Path, absent: Sequence[str]) -> Iterator[Path]:
    """The test files with a mark `needs` that may name one of these packages; tests/sshd.py has the mark NEEDS."""
    for path in _tests_in(folder):
        text = path.read_text(encoding="utf-8")
        if "NEEDS" in text or ("mark.needs(" in text and any(f'"{name}"' in text for name in absent)):
            yield path


def _folders(root: Path, suites: Sequence[str], extra: Sequence[str]) -> list[str]:
    """The folders of the suites; none where files are typed, which replace them.

    Of a folder from which `deep` and `long` alone choose: its files that have the word. To collect all takes longer
    than most of these tests.
    """
    if any(word.startswith("tests/") and (root / word.partition("::")[0]).exists() for word in extra):
        return []
    found = []
    for folder in SUITES:
        asking = {suite for suite in suites if folder in _FOLDERS[suite]}
        if asking <= _BY_WORD:
            mark = re.compile(rf"\b({'|'.join(asking)})\b")
            files = _tests_in(root / "tests" / folder) if asking else []
            found += [str(path.relative_to(root)) for path in files if mark.search(path.read_text(encoding="utf-8"))]
        else:
            found.append(f"tests/{folder}")
    return found


def _compiling() -> dict[str, str]:
    """The environment of pytest. It and the many processes that tests start keep compiled modules.

    Without them each process compiles what it imports, which takes as long as what it does; PYTHONDONTWRITEBYTECODE is
    set in many container images.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _pytest(suites: Sequence[str], extra: Sequence[str], where: Sequence[str]) -> list[str]:
    """The command line of pytest. where: folders or files."""
    marks = " or ".join(f"({_MARKS[suite]})" for suite in suites)
    return [sys.executable, "-m", "pytest", "-ra", "-m", marks, *where, *extra]


def run_tests(out: Console, suite: str, extra: Sequence[str]) -> None:
    """pytest over one suite or several; CheckError when a test fails."""
    root, suites = resources.HERE.checkout("./inv test"), suites_of(suite)
    if "browser" in suites:
        ensure_locked(root / "requirements-browser.lock", _DRIVER, out.say)
    if not _OFFLINE.issuperset(suites):  # some live stories are those of other programs
        ensure_locked(root / "requirements-dev.lock", "the linters and the clients of live tests", out.say)
    # pytest's text is the result; with --format json it is progress.
    argv = [*_pytest(suites, extra, _folders(root, suites, extra)), *_workers(suites, extra)]
    env = _compiling()
    with _engine(out) if "clab" in suites else nullcontext():
        out.close()
        code = _pytest_ended(subprocess.Popen(argv, cwd=root, stdout=sys.stderr if out.json else None, env=env))
    if code == _NO_TESTS:
        hint = "check the words after --" + ("; ./inv test all has more tests" if suites == [QUICK] else "")
        raise CheckError(Problem("", f"./inv test {suite}", "ran no test: nothing matches", hint))
    if code == _USAGE:
        raise InputError(Problem("", " ".join(extra) or suite, "is not understood by pytest", "see its output above"))
    if out.json:
        out.result({"ok": code == 0, "suite": suite, "pytest_exit_code": code})
    out.exit_code = code


def _workers(suites: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Processes for whole suites (tests/workers.py): tests that measure in one, everything else in the others.

    None for a suite whose tests share one engine or guest, nor for a selection of tests, whose output and debugger stay
    plain so; none when the user chose with -n.
    """
    whole = not any(_is_plain(word) for word in extra)
    enough = len(os.sched_getaffinity(0)) >= _PROCESSORS and find_spec("xdist") is not None
    return ["-n", str(_WORKERS)] if whole and enough and not _ALONE.issuperset(suites) else []


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
    group="Heddle",
    help={
        "suite": Option(
            "quick (each feature once), deep (what it leaves out, but for long), long (20 seconds and more, "
            "and repetitions), unit, golden, netns, or all. Others: fuzz (damaged files and messages), "
            "clab (labs in containers), "
            "browser (Chromium's pages), vm (a full kernel in QEMU), kube (a real Kubernetes). Several: deep,vm",
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
