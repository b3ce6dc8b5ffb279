"""Find a Go that is new enough for a go.mod: the machine's own, or a newer one fetched through the module proxy.

Distributions have older ones: Debian 12 has Go 1.19, and Debian 13 a 1.24 that is configured not to fetch another.
Toolchains are modules like others (https://go.dev/ref/mod#toolchain), so every Go with `mod download PATH@VERSION` can
fetch one; its checksum is pinned here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, Journal, find_program, run

Version = tuple[int, int, int]

LEAST_GO: Final = (1, 18)  # which has `mod download -json PATH@VERSION`, and was tried from 1.19 on
SUMS: Final = {
    "amd64": "h1:1p2G5COR51f8Q3EQ4HLJQDDL2ytLEqfL/yTawB0Jr8w=",
    "arm64": "h1:lAFrRm35hIzvRSMYiELtaPaitr22pp6iaBbdPBuJg2U=",
}  # of the toolchain that module/go.mod names
_MODULE: Final = "golang.org/toolchain"
_PLACES: Final = ("/usr/local/go/bin", "/usr/lib/go/bin")  # not in sudo's PATH
_FETCH_S: Final = 600.0
_SAID: Final = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")


def find_go() -> Path:
    """A Go that can build or fetch a newer one. MachineError names the version, and where to get it."""
    found = find_program("go", *_PLACES)
    hint = "install it from go.dev/dl, or install containerlab's own package: containerlab.dev/install"
    least = ".".join(map(str, LEAST_GO))
    if found is None:
        why = f"is not installed; containerlab is built with Go {least} or newer"
        raise MachineError(Problem("", "go", why, hint))
    said, number = go_version(Path(found))
    if number is None or number[:2] < LEAST_GO:
        why = f"is {said or 'of no known version'}; containerlab is built with Go {least} or newer"
        raise MachineError(Problem("", found, why, hint))
    return Path(found)


def go_version(go: Path) -> tuple[str, Version | None]:
    """The version that a Go prints, and its numbers."""
    said = run(["env", "GOTOOLCHAIN=local", str(go), "env", "GOVERSION"], check=False).out.strip()
    match = _SAID.match(said)
    return said, (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def wanted_go(module: Path) -> Version:
    """The version that the file go.mod asks for."""
    match = re.search(r"^go (\d+)\.(\d+)\.(\d+)$", module.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{module} names no version of Go")
    return int(match[1]), int(match[2]), int(match[3])


def go_for(module: Path, found: Path, directory: Path, journal: Journal | None = None) -> Path:
    """`found` if it is as new as go.mod asks, else a toolchain that it fetches into its module cache.

    directory: one without a go.mod. MachineError when it cannot be fetched, or its checksum is not the pinned one.
    """
    wanted, (_, number) = wanted_go(module), go_version(found)
    if number is not None and number >= wanted:
        return found
    arch = run([str(found), "env", "GOARCH"]).out.strip()
    version = f"v0.0.1-go{'.'.join(map(str, wanted))}.linux-{arch}"
    argv = ["env", "-C", str(directory), "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=off", "GO111MODULE=on", str(found)]
    done = run(
        [*argv, "mod", "download", "-json", f"{_MODULE}@{version}"], check=False, timeout=_FETCH_S, journal=journal
    )
    try:
        answer = json.loads(done.out)
        root, digest = Path(answer["Dir"]), str(answer["Sum"])
    except (ValueError, KeyError):
        raise MachineError(fetch_failed(done, f"Go {'.'.join(map(str, wanted))}")) from None
    if arch in SUMS and digest != SUMS[arch]:
        why = f"has the checksum {digest}, expected {SUMS[arch]}: it is damaged or forged"
        raise MachineError(Problem("", f"{_MODULE} {version}", why, "ask the operator of the module proxy"))
    # A module's files are not executable. Go itself does the same with toolchains in its cache.
    for each in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        if each.is_file() and not os.access(each, os.X_OK):
            each.chmod(0o555)
    return root / "bin" / "go"


def fetch_failed(done: Done, what: str) -> Problem:
    """The reason why a download through a module proxy failed: the last lines of Go's output."""
    said = [line.strip() for line in (done.err + done.out).splitlines() if line.strip()]
    text = "; ".join(said[-2:])
    hint = "Go's module proxy has to be reachable: go env GOPROXY shows it"
    if "no space left on device" in text:
        hint = "free some space: building takes 2 GB in Go's caches and in /var/tmp"
    return Problem("", what, f"could not be downloaded: {text or f'go ended with exit code {done.code}'}", hint)
