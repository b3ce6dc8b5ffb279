"""Build containerlab from its Go module, where its release cannot be downloaded or does not run.

In:  module/go.mod and go.sum (all versions and sums pinned). Out: the binary, and the version that it prints.
Kernels built without module support have no /proc/modules. deploy of 0.79 stops there, although the caller of the
faulty function continues where a module cannot be loaded. Only on such kernels a corrected copy of the source is
built: a missing file means that the module is not loaded. That build prints version 0.79.0+heddle.

Distributions have an older Go: Debian 12 has 1.19, and Debian 13 a 1.24 that is configured not to fetch another.
Toolchains are modules like others (https://go.dev/ref/mod#toolchain), so every Go with `mod download PATH@VERSION` can
fetch a newer one through the module proxy; its checksum is pinned here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import Done, Journal, find_program, follow, run
from heddle.host.engine.binary import MARK, PROC_MODULES, RELEASE, Version, needs_correction, text

MODULE: Final = Path(__file__).resolve().parent / "module"  # its go.mod pins RELEASE
PACKAGE: Final = "github.com/srl-labs/containerlab"
LEAST_GO: Final = (1, 18)  # which has `mod download -json PATH@VERSION`, and was tried from 1.19 on
SUMS: Final = {
    "amd64": "h1:1p2G5COR51f8Q3EQ4HLJQDDL2ytLEqfL/yTawB0Jr8w=",
    "arm64": "h1:lAFrRm35hIzvRSMYiELtaPaitr22pp6iaBbdPBuJg2U=",
}  # of the toolchain that go.mod names
_TOOLCHAIN: Final = "golang.org/toolchain"
_PLACES: Final = ("/usr/local/go/bin", "/usr/lib/go/bin")  # not in sudo's PATH
_GO_VERSION: Final = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")
_SOURCE: Final = "utils/kernel_module.go"
_OPENED: Final = re.compile(r'(?<=os\.Open\("/proc/modules"\)\n)(\tif err != nil \{\n)')
_ABSENT: Final = "\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n"
_FETCH_S: Final = 600.0
_BUILD_S: Final = 1200.0


def build(directory: Path, observer: Observer, journal: Journal | None = None) -> tuple[Path, str]:
    """Build in `directory`, which is empty; return the binary's path, and its version as text.

    MachineError when Go is missing or too old, the module cannot be downloaded, or its source is not the expected one.
    """
    found = find_go()
    version = text(RELEASE)
    with machine_errors(str(directory)):
        go = go_for(MODULE / "go.mod", found, directory, journal)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(MODULE / name, directory / name)
        observer.begin("containerlab from source")
        if needs_correction():
            version += f"+{MARK}"
            observer.say(
                f"this kernel has no module support, and containerlab {text(RELEASE)} stops without"
                f" {PROC_MODULES}: building it with this condition corrected"
            )
            _use_corrected_copy(go, directory, journal)
    binary = directory / "containerlab"
    sets = {"Version": version, "commit": MARK}
    flags = " ".join(["-s", "-w", *(f"-X {PACKAGE}/cmd.{key}={value}" for key, value in sets.items())])
    argv = [*_go(go, directory), "build", "-mod=readonly", "-trimpath", "-v", "-ldflags", flags]
    count = 0

    def line(_: str) -> None:
        nonlocal count
        count += 1
        observer.advance("containerlab from source", count)

    done = follow([*argv, "-o", str(binary), PACKAGE], line, timeout=_BUILD_S, journal=journal)
    if done.code != 0:
        raise MachineError(_fetch_failed(done, "containerlab"))
    observer.end("containerlab from source", version)
    return binary, version


def corrected(source: str) -> str:
    """The source in which a missing /proc/modules means that no module is loaded.

    MachineError unless there is exactly one place to correct: an unexpected source is not changed.
    """
    fixed, count = _OPENED.subn(lambda match: match[1] + _ABSENT, source)
    if count != 1:
        why = f"is not the expected source: {count or 'no'} places open /proc/modules as expected"
        raise MachineError(Problem("containerlab", _SOURCE, why, "use a kernel with module support"))
    return fixed


def find_go() -> Path:
    """A Go that can build or fetch a newer one. MachineError names the version, and where to get it."""
    found = find_program("go", *_PLACES)
    version, number = go_version(Path(found)) if found else ("", None)
    if found is not None and number is not None and number[:2] >= LEAST_GO:
        return Path(found)
    state = "is not installed" if found is None else f"is {version or 'of no known version'}"
    why = f"{state}; containerlab is built with Go {'.'.join(map(str, LEAST_GO))} or newer"
    hint = "install it from go.dev/dl, or install containerlab's own package: containerlab.dev/install"
    raise MachineError(Problem("", found or "go", why, hint))


def go_version(go: Path) -> tuple[str, Version | None]:
    """The version that a Go prints, and its numbers."""
    printed = run(["env", "GOTOOLCHAIN=local", str(go), "env", "GOVERSION"], check=False).out.strip()
    match = _GO_VERSION.match(printed)
    return printed, (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


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
    version = f"v0.0.1-go{text(wanted)}.linux-{arch}"
    argv = ["env", "-C", str(directory), "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=off", "GO111MODULE=on", str(found)]
    argv += ["mod", "download", "-json", f"{_TOOLCHAIN}@{version}"]
    done = run(argv, check=False, timeout=_FETCH_S, journal=journal)
    try:
        answer = json.loads(done.out)
        root, digest = Path(answer["Dir"]), str(answer["Sum"])
    except (ValueError, KeyError):
        raise MachineError(_fetch_failed(done, f"Go {text(wanted)}")) from None
    if arch in SUMS and digest != SUMS[arch]:
        why = f"has the checksum {digest}, expected {SUMS[arch]}: it is damaged or forged"
        raise MachineError(Problem("", f"{_TOOLCHAIN} {version}", why, "ask the operator of the module proxy"))
    # A module's files are not executable. Go itself does the same with toolchains in its cache.
    for each in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        if each.is_file() and not os.access(each, os.X_OK):
            each.chmod(0o555)
    return root / "bin" / "go"


def _fetch_failed(done: Done, what: str) -> Problem:
    """The reason why a download through a module proxy failed: the last lines of Go's output."""
    lines = [line.strip() for line in (done.err + done.out).splitlines() if line.strip()]
    last = "; ".join(lines[-2:])
    hint = "Go's module proxy has to be reachable: go env GOPROXY shows it"
    if "no space left on device" in last:
        hint = "free some space: building takes 2 GB in Go's caches and in /var/tmp"
    return Problem("", what, f"could not be downloaded: {last or f'go ended with exit code {done.code}'}", hint)


def _use_corrected_copy(go: Path, directory: Path, journal: Journal | None) -> None:
    argv = [*_go(go, directory), "mod", "download", "-json", PACKAGE]
    done = run(argv, check=False, timeout=_BUILD_S, journal=journal)
    try:
        source = Path(json.loads(done.out)["Dir"])
    except (ValueError, KeyError):
        raise MachineError(_fetch_failed(done, "containerlab")) from None
    copy = directory / "source"
    # The module cache is read-only; the copy must be writable. The program does not need its docs.
    shutil.copytree(source, copy, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("docs", "lab-examples"))
    for each in (copy, *copy.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    file = copy / _SOURCE
    file.write_text(corrected(file.read_text(encoding="utf-8")), encoding="utf-8")
    if journal is not None:
        journal.comment(f"in {copy}/{_SOURCE}, where opening {PROC_MODULES} fails:\n{_ABSENT}")
    run([*_go(go, directory), "mod", "edit", f"-replace={PACKAGE}={copy}"], journal=journal)


def _go(go: Path, directory: Path) -> list[str]:
    # CGO off as in the release: the program needs no libraries of this machine. The user's GOFLAGS do not apply.
    return ["env", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=off", str(go), "-C", str(directory)]
