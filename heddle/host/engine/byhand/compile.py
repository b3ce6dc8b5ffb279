"""Build containerlab from its Go module, where its release cannot be downloaded or does not run.

In:  module/go.mod and go.sum (all versions and sums pinned). Out: the binary, and the version that it prints.
Kernels built without module support have no /proc/modules. deploy of 0.79 stops there, although the caller of the
faulty function continues where a module cannot be loaded. Only on such kernels a corrected copy of the source is
built: a missing file means that the module is not loaded. That build prints version 0.79.0+heddle.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import Journal, follow, run
from heddle.host.engine.binary import MARK, PROC_MODULES, text
from heddle.host.engine.byhand.toolchain import fetch_failed, find_go, go_for

RELEASE: Final = (0, 79, 0)  # what module/go.mod pins
MODULE: Final = Path(__file__).resolve().parent / "module"
PACKAGE: Final = "github.com/srl-labs/containerlab"
_SOURCE: Final = "utils/kernel_module.go"
_OPENED: Final = re.compile(r'(?<=os\.Open\("/proc/modules"\)\n)(\tif err != nil \{\n)')
_ABSENT: Final = "\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n"
_BUILD_S: Final = 1200.0


def needs_correction() -> bool:
    """True on kernels without module support; the released binary cannot deploy there."""
    return not PROC_MODULES.exists()


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
        raise MachineError(fetch_failed(done, "containerlab"))
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


def _use_corrected_copy(go: Path, directory: Path, journal: Journal | None) -> None:
    said = run(
        [*_go(go, directory), "mod", "download", "-json", PACKAGE], check=False, timeout=_BUILD_S, journal=journal
    )
    try:
        source = Path(json.loads(said.out)["Dir"])
    except (ValueError, KeyError):
        raise MachineError(fetch_failed(said, "containerlab")) from None
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
