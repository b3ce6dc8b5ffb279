"""`./inv setup containerlab`: engine, daemon, containerlab and images, each only if it is missing.

`./inv setup fabric`: the system packages that a fabric needs on the machine itself, FRR above all.
`./inv setup extras`: the Python packages that only some verbs need.

Out: one SetupStep for each; a second call finds everything and changes nothing.
A usable containerlab is never changed. One that Heddle cannot use is replaced only if Heddle installed it. A record
with its SHA-256 shows that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from heddle.base import extras
from heddle.base.events import Observer
from heddle.base.extras import KUBERNETES
from heddle.base.mounts import scratch
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean, machine_errors
from heddle.base.process import Journal, run
from heddle.base.resources import HERE
from heddle.host import lockedpackages, packages
from heddle.host.engine import binary, images
from heddle.host.engine import docker as engine
from heddle.host.engine.docker import check_engine_possible

TARGET: Final = Path("/usr/local/bin/containerlab")
RECORD: Final = Path("/usr/local/share/heddle/containerlab.json")
FABRIC: Final = "fabric"
EXTRAS: Final = "extras"
WHAT: Final = ("containerlab", FABRIC, KUBERNETES, EXTRAS)


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One step. done: this call did it; otherwise nothing was to do."""

    name: str
    done: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "done": self.done, "detail": self.detail}


def check_what(what: str) -> None:
    """InputError when `what` is not in WHAT."""
    if what not in WHAT:
        raise InputError(Problem("", f"./inv setup {what}", "is nothing to set up", did_you_mean(what, WHAT)))


def setup_fabric(
    observer: Observer, *, yes: bool = False, ask: Callable[[str], bool] = lambda _: False
) -> list[SetupStep]:
    """Install the system packages that runtime netns needs. MachineError with the command when that is not allowed."""
    absent = packages.missing(packages.FABRIC)
    packages.ensure(packages.FABRIC, yes=yes, ask=ask, say=observer.say)
    names = [part.name for part in absent if part.present()]
    return [SetupStep("packages", bool(names), f"installed: {', '.join(names)}" if names else "all are installed")]


def setup_extras(
    observer: Observer, *, yes: bool = False, ask: Callable[[str], bool] = lambda _: False
) -> list[SetupStep]:
    """Install the Python packages of all extras in .venv of a checkout.

    MachineError when that is not allowed, and in a wheel, with the commands that install them.
    """
    every = list(extras.EXTRAS.values())
    names = lockedpackages.provide(every, yes=yes, ask=ask, say=observer.say)
    if absent := [extra.problem for extra in every if not extra.present]:
        raise MachineError(*absent)
    return [SetupStep("extras", bool(names), f"installed: {', '.join(names)}" if names else "all are installed")]


def setup_containerlab(
    observer: Observer,
    *,
    yes: bool = False,
    ask: Callable[[str], bool] = lambda _: False,
    stays: bool = True,
    journal: Journal | None = None,
) -> list[SetupStep]:
    """Do all four steps. MachineError with a hint when a step fails; the steps before it stay.

    stays: an engine that a test run has started continues after that run.
    """
    if not engine.answers():
        check_engine_possible()  # before anything is installed
    return [
        _packages(observer, yes, ask),
        _daemon(observer, stays=stays),
        _containerlab(observer, journal, yes, ask),
        _images(observer, journal, yes, ask),
    ]


def by_hand(module: str) -> Any:
    """A module of a checkout's `.engine/`, `dockerd` or `clabbuild`: for locked-down machines. None in a wheel."""
    folder = HERE.engine_by_hand
    if folder is None:
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return import_module(module)


@contextmanager
def engine_running(observer: Observer) -> Iterator[None]:
    """An engine for a with block: the running one, else one that is started, and stopped afterwards."""
    if (daemon := by_hand("dockerd")) is None:
        _daemon(observer, stays=False)
        yield
        return
    with daemon.engine_running(observer):
        yield


def stop_engine() -> SetupStep:
    """Stop the engine that Heddle started, and no other."""
    daemon = by_hand("dockerd")
    known = daemon.record() if daemon else None
    if daemon is None or not daemon.stop():
        return SetupStep("daemon", False, "no engine started by Heddle is running")
    return SetupStep(
        "daemon", True, f"dockerd {known.pid} stopped" if known else "leftovers of a killed dockerd were removed"
    )


def _packages(observer: Observer, yes: bool, ask: Callable[[str], bool]) -> SetupStep:
    absent = packages.missing(packages.ENGINE)
    if absent and engine.answers():
        absent = []  # another engine, such as docker-ce or podman's, answers
    if absent:
        packages.ensure(packages.ENGINE, yes=yes, ask=ask, say=observer.say)
    return SetupStep("docker", bool(absent), "installed" if absent else "is installed")


def _daemon(observer: Observer, *, stays: bool) -> SetupStep:
    daemon = by_hand("dockerd")
    wrong = engine.trouble()
    if wrong is None:
        if stays and daemon is not None:
            daemon.start(observer)
        return SetupStep("daemon", False, "answers")
    if engine.SYSTEMD.is_dir() and engine.down():
        observer.say("starting docker: systemctl start docker")
        run(["systemctl", "start", "docker"], timeout=120)
        if (wrong := engine.trouble()) is not None:
            raise MachineError(wrong)
        return SetupStep("daemon", True, "started: systemctl stop docker stops it")
    if daemon is None:
        raise MachineError(wrong)
    daemon.start(observer)
    known = daemon.record()
    number = f" {known.pid}" if known else ""
    return SetupStep("daemon", True, f"dockerd{number} started by Heddle: ./inv setup containerlab --stop stops it")


def _containerlab(
    observer: Observer, journal: Journal | None, yes: bool = False, ask: Callable[[str], bool] = lambda _: False
) -> SetupStep:
    path = binary.find()
    wrong = binary.trouble()
    if path is not None and wrong is None:
        found = binary.version(path) or (0, 0, 0)
        if found < binary.RECOMMENDED:
            said = f"{binary.text(binary.RECOMMENDED)} or newer is better"
            observer.warn(f"{path} is version {binary.text(found)}; {said}: run containerlab version upgrade")
        return SetupStep("containerlab", False, f"{path} is version {binary.version_text(path)}")
    _check_replaceable(path, wrong)
    with machine_errors(), scratch("heddle-clab-") as place:
        made, how = _obtain(place, observer, journal, yes, ask)
        _place(made)
    if (left := binary.trouble()) is not None:
        raise MachineError(left)
    return SetupStep("containerlab", True, f"{TARGET} is version {binary.version_text(TARGET)}, {how}")


def _check_replaceable(path: Path | None, wrong: Problem | None) -> None:
    """MachineError when our binary would replace the user's, or be found after an unusable one."""
    if path is None and "HEDDLE_CONTAINERLAB" not in os.environ and not TARGET.exists():
        return
    if path is not None and path.resolve() == TARGET.resolve() and is_ours(TARGET):
        return
    about = wrong or Problem("containerlab", str(TARGET), "exists and is not a program")
    hint = f"Heddle did not install it and does not change it: run containerlab version upgrade, or move it away\n\
and run {engine.SETUP}"
    raise MachineError(Problem(about.where, about.what, about.why, hint))


def _obtain(
    directory: Path, observer: Observer, journal: Journal | None, yes: bool, ask: Callable[[str], bool]
) -> tuple[Path, str]:
    """The binary and its origin; the release first, unless it is known not to run on this kernel."""
    build = by_hand("clabbuild")
    if binary.needs_correction():
        if build is None:
            raise MachineError(binary.flaw(f"containerlab {binary.text(binary.RELEASE)}"))
    else:
        observer.begin("containerlab's release")
        try:
            made = binary.fetch(binary.RELEASE, directory)
        except binary.Unreachable as error:
            observer.end("containerlab's release", f"not available: {error}")
            if build is None:
                hint = "install containerlab's own package: containerlab.dev/install"
                raise MachineError(Problem("containerlab", "its release", f"is not available: {error}", hint)) from None
        else:
            observer.end("containerlab's release", "downloaded, checksum correct")
            return made, "from its release"
    if packages.missing(packages.GO):  # the build reports one that is too old
        packages.ensure(packages.GO, yes=yes, ask=ask, say=observer.say)
    made, _ = build.build(directory, observer, journal)
    return made, "built from its Go module"


def is_ours(path: Path) -> bool:
    """True when _place has installed this file."""
    return path.is_file() and _sum(path) in _known()


def _known() -> list[str]:
    """SHA-256 of the files that _place has installed, the newest first."""
    try:
        said = json.loads(RECORD.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(each) for each in (said if isinstance(said, list) else [said])]


def _place(made: Path) -> None:
    """Install it atomically: processes that run the old one continue, and no process sees a partial file.

    The record is written first and has the old file, too: if this is killed in between, both are known as ours.
    """
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    RECORD.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for left in TARGET.parent.glob(f".{TARGET.name}.*"):  # left by a killed process
        if not Path("/proc", left.suffix[1:]).exists():
            left.unlink(missing_ok=True)
    beside, record = (path.with_name(f".{path.name}.{os.getpid()}") for path in (TARGET, RECORD))
    try:
        shutil.copyfile(made, beside)
        beside.chmod(0o755)
        record.touch(mode=0o644)
        record.write_text(json.dumps({"sha256": [_sum(beside), *_known()[:1]]}) + "\n", encoding="utf-8")
        record.replace(RECORD)
        beside.replace(TARGET)
    finally:
        for path in (beside, record):
            path.unlink(missing_ok=True)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _images(observer: Observer, journal: Journal | None, yes: bool, ask: Callable[[str], bool]) -> SetupStep:
    found = images.ensure_images(observer, journal, yes=yes, ask=ask)
    return SetupStep("images", any(each.built for each in found), ", ".join(each.name for each in found))
