"""The verbs that work on Heddle itself, in a checkout: bench (its speed), lint (the linters), docs (the site)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.base import resources
from heddle.base.files import real
from heddle.base.problems import CheckError, InputError, MachineError, Problem
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages

_MORE: Final = {
    "place": ("openssh-server",),
    "vm": (*packages.VM, *packages.VM_BUILD),
    "vm-build": packages.VM_BUILD,
}
_LINTERS: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)
_DRIVER: Final = "the browser's driver"
_OF_A_SITE: Final = "search/search_index.json"
# What a browser loads by itself; a link that the reader clicks may lead anywhere.
_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|source|link(?! rel=.?(?:canonical|prev|next)))\b"
    r"[^>]*?\s(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]+)"
)


def _needed(what: str) -> Sequence[str]:
    """The packages of fabrics, and of a group of figures."""
    more = [name for group in ("place", "vm") for name in _MORE[group]] if what == "all" else _MORE.get(what, ())
    return (*packages.FABRIC, *more)


@verb(
    group="Heddle",
    help={
        "what": "Of labs: cli, up, large, kubernetes, containers, place, demo, dashboard, labs, vm, vm-build. "
        "Of traffic: all-reduce, budget, steady, hashing, admission, dcqcn, order, packets, steps, predict, queues, "
        "marking, te, te-live, rxe, transports, collectives, workloads, spread, programs, diagnosis. Or all, "
        "without large, vm-build, diagnosis",
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


@verb(group="Heddle", checkout=True)
def lint(out: Console) -> None:
    """Run ruff and mypy --strict over the whole tree; install them from requirements-dev.lock when needed."""
    root = resources.HERE.checkout("./inv lint")
    ensure_tools(out, root / "requirements-dev.lock", ("mypy", "ruff", "types-PyYAML"), "the linters")
    out.close()
    complained = []
    for tool in _LINTERS:
        argv = [sys.executable, "-m", *tool]
        print("$ " + " ".join(tool), file=sys.stderr, flush=True)
        if subprocess.run(argv, cwd=root, stdout=sys.stderr if out.json else None, check=False).returncode:
            complained.append(" ".join(tool))
    if complained:
        raise CheckError(*[Problem("", name, "failed", "see its output above") for name in complained])
    out.result({"ok": True, "linters": [" ".join(t) for t in _LINTERS]}, "all linters passed")


@verb(
    group="Heddle",
    help={
        "out": Option("directory to write (default: site, in the checkout)", value="DIR"),
        "screenshots": Option("also write pictures of everything that a person sees, to look at", value="DIR"),
    },
    packages=lambda typed: () if typed["screenshots"] is None else (*packages.FABRIC, *packages.BROWSER),
    root=lambda typed: typed["screenshots"] is not None,
    checkout=True,
    files_out=["out_", "screenshots"],
    directory_out=True,
)
def docs(out: Console, out_: str | None = None, screenshots: str | None = None) -> None:
    """Build the manual as a site that needs no network. Wrong links and anchors fail.

    mkdocs is installed from requirements-docs.lock when needed. Open index.html in the directory. Only the search needs
    a web server: python3 -m http.server -d site
    --screenshots DIR writes README, site, report, dashboard, demo and a plot as PNG. It needs root and Chromium, and
    makes a lab for that.
    """
    root = resources.HERE.checkout("./inv docs")
    site = root / "site" if out_ is None else real(out_).absolute()
    if site.exists() and not (site / _OF_A_SITE).is_file() and (not site.is_dir() or any(site.iterdir())):
        hint = "name a new or an empty directory: the old content is removed"
        raise InputError(Problem("", f"--out {site}", "has something else than an older site", hint))
    ensure_tools(out, root / "requirements-docs.lock", ("mkdocs", "mkdocs-material", "pymdown-extensions"), "mkdocs")
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
    pictures: list[str] = []
    if screenshots is not None:
        ensure_tools(out, root / "requirements-browser.lock", ("axe-playwright-python", "selenium"), _DRIVER)
        from tests.browser.screenshots import main as written

        pictures = [str(path) for path in written(real(screenshots).absolute(), site)]
    text = [f"{len(pages)} pages: {site / 'index.html'}", *pictures]
    out.result({"site": str(site), "pages": len(pages), "screenshots": pictures}, "\n".join(text))


def loaded_from_elsewhere(page: str) -> list[str]:
    """The addresses on other servers that a browser loads by itself when it shows this HTML."""
    return _LOADED.findall(page)


# `./inv` installs requirements.lock; each other group of pyproject.toml has a lock file, installed when a verb asks.
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def ensure_tools(out: Console, lock: Path, tools: Sequence[str], what: str) -> None:
    """Return when the environment has these tools as the lock file pins them; install the file where it does not.

    tools: names of packages in the file. what: what the file has, for a sentence ("the linters").
    MachineError when pip fails.
    """
    pins = _PINNED.findall(lock.read_text(encoding="utf-8"))
    if all(_installed(tool) in {pin for name, pin in pins if name.lower() == tool.lower()} for tool in tools):
        return
    out.say(f"installing {what} of {lock.name}")
    # The file has all that is needed, and leaves out what a tool asks for and does not use: see pyproject.toml.
    argv = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
    argv += ["--only-binary", ":all:", "--require-hashes", "-r", str(lock)]
    if subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        hint = "this needs the network once; run the same line again"
        raise MachineError(Problem("", lock.name, "could not be installed", hint))


def _installed(tool: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(tool)
    except PackageNotFoundError:
        return None
