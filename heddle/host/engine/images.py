"""The images of nodes: one for switches, one for hosts. They are built here, and only when their inputs changed.

In:  templates/image/ROLE.Dockerfile and node.sh. Out: `heddle/ROLE:HASH` in the engine, with a hash of the inputs.
The base is Debian's public image if the engine has it or a registry answers, else one that mmdebstrap creates.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from heddle.base.events import Observer, Silent
from heddle.base.mounts import TEMPORARY, scratch
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import Done, Journal, follow, run
from heddle.host.engine import docker as engine
from heddle.host.engine.docker import docker, stream
from heddle.host.engine.lockfile import locked
from heddle.render import dialects

LABEL: Final = "heddle"  # on all images built here, and on layers of unfinished builds: Heddle may remove them
LOCK: Final = engine.RUN_DIR / "building"
SUITE: Final = "trixie"
OWN_BASE: Final = f"heddle/base:{SUITE}"
_PULL_S: Final = 90.0  # 30 MB; an unreachable registry usually fails in seconds
_BUILD_S: Final = 900.0
_QUESTION_S: Final = 30.0
_SWEEP_S: Final = 15.0
# Variables of proxies; docker reads their values from the environment, and stores none in the image.
_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_STEP: Final = re.compile(r"^(?:Step|#\d+ \[.*?)\s*(\d+)/(\d+)")  # of the classic builder, and of BuildKit


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its role, its full name, whether this call built it, and its size (with shared layers) in bytes."""

    role: str
    name: str
    built: bool
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "name": self.name, "built": self.built, "bytes": self.bytes}


def missing() -> list[str]:
    """Full names of the images that the engine does not have."""
    return [name for name in dialects.image_names().values() if not present(name)]


def present(name: str) -> bool:
    """True when the engine has an image of that name. MachineError when there is no engine."""
    done = docker(["image", "inspect", "--format", "{{.Id}}", name], check=False, timeout=_QUESTION_S)
    if done.code != 0 and "no such image" not in done.err.lower():
        raise MachineError(engine.trouble() or engine.failure(done))
    return done.code == 0


def ensure_images(
    observer: Observer | None = None,
    journal: Journal | None = None,
    *,
    rebuild: bool = False,
    yes: bool = False,
    ask: Callable[[str], bool] = lambda _: False,
) -> list[Image]:
    """Ensure that the engine has both images; build missing ones (`rebuild`: all).

    yes, ask: permission to install mmdebstrap, if it is needed. MachineError names the obstacle. Nothing incomplete is
    left, however this ends.
    """
    observer = observer or Silent()
    if (wrong := engine.trouble()) is not None:
        raise MachineError(wrong)
    names = dialects.image_names()
    wanted = list(names) if rebuild else _missing_roles(names)
    if wanted:
        with locked(LOCK, fcntl.LOCK_EX):  # one at a time: a sweep must not remove the layers of another build
            wanted = wanted if rebuild else _missing_roles(names)
            if wanted:
                why = "requested" if rebuild else "none with the current inputs is here"
                said = f"building the image for {' and '.join(wanted)} nodes ({why})"
                observer.say(f"{said}: about a minute, only once")
                base = _base(observer, journal, yes, ask)
            for role in wanted:
                _build(role, names[role], base, observer, journal, fresh=rebuild)
    return [Image(role, name, role in wanted, _bytes(name)) for role, name in names.items()]


def _missing_roles(names: Mapping[str, str]) -> list[str]:
    return [role for role, name in names.items() if not present(name)]


def prune() -> list[str]:
    """Remove images built here that neither this Heddle nor a container uses; return their names."""
    keep = {*dialects.image_names().values(), OWN_BASE}
    form = "{{.ID}} {{.Repository}}:{{.Tag}}"
    rows = docker(["image", "ls", "--filter", f"label={LABEL}", "--format", form]).out.split("\n")
    removed = []
    for row in filter(None, rows):
        identity, name = row.split(" ", 1)
        what = identity if "<none>" in name else name
        if name not in keep and docker(["image", "rm", what], check=False).code == 0:
            removed.append(name if what == name else identity)
    return removed


def _bytes(name: str) -> int:
    said = docker(["image", "inspect", "--format", "{{json .Size}}", name], timeout=_QUESTION_S).out
    return int(json.loads(said))


def _base(observer: Observer, journal: Journal | None, yes: bool, ask: Callable[[str], bool]) -> str:
    """The base image: one that the engine has, else Debian's from a registry, else one created by mmdebstrap."""
    for name in (dialects.PUBLIC_BASE, OWN_BASE):
        if present(name):
            return name
    observer.begin("base image")
    reason = _pull(journal)
    if not reason:
        observer.end("base image", f"{dialects.PUBLIC_BASE} from its registry")
        return dialects.PUBLIC_BASE
    observer.say(
        f"{dialects.PUBLIC_BASE} is not available ({reason}): mmdebstrap creates a base from Debian's packages"
    )
    _have_mmdebstrap(reason, observer, yes, ask)
    _bootstrap(observer, journal)
    observer.end("base image", f"{OWN_BASE} by mmdebstrap")
    return OWN_BASE


def _pull(journal: Journal | None) -> str:
    """Pull the public base: an empty string when that worked, else a short reason."""
    try:
        done = docker(["pull", "--quiet", dialects.PUBLIC_BASE], check=False, timeout=_PULL_S, journal=journal)
    except MachineError:
        return f"its registry did not answer within {_PULL_S:g} s"
    if done.code == 0:
        return ""
    _raise_if_full(done, "")
    return (done.err.strip().splitlines() or ["its registry refused"])[-1].rsplit(": ", 1)[-1]


def _have_mmdebstrap(reason: str, observer: Observer, yes: bool, ask: Callable[[str], bool]) -> None:
    from heddle.host import packages

    try:
        packages.ensure(packages.IMAGE, yes=yes, ask=ask, say=observer.say)
    except MachineError as error:
        by_hand = f"docker load; docker tag ... {dialects.PUBLIC_BASE}"
        hint = f"let the engine reach its registry, or load the image by hand: {by_hand}"
        first = Problem("docker", dialects.PUBLIC_BASE, f"cannot be pulled: {reason}", hint)
        raise MachineError(first, *error.problems) from None


def _bootstrap(observer: Observer, journal: Journal | None) -> None:
    """Import Debian's smallest system as an image, without manuals and translations, like the public one."""
    lean = ("doc", "man", "locale", "info")
    with machine_errors(), scratch("heddle-base-") as place:
        place.chmod(0o755)  # apt reads there as its own user
        tar = place / "base.tar"
        lines = _counting("base image", observer)
        argv = [*in_own_namespaces(), "env", f"TMPDIR={place}", "mmdebstrap", "--variant=minbase"]
        argv += [f"--dpkgopt=path-exclude=/usr/share/{word}/*" for word in lean]
        done = follow([*argv, SUITE, str(tar)], lines, timeout=_BUILD_S, journal=journal)
        if done.code != 0:
            _raise_if_full(done, str(TEMPORARY))
            hint = "it needs one of Debian's mirrors; run apt-get update for the reason"
            raise MachineError(Problem("", "mmdebstrap", f"could not make {OWN_BASE}: {last_lines(done)}", hint))
        label = f"LABEL {LABEL}=base"
        docker(["import", "--change", label, str(tar), OWN_BASE], timeout=_BUILD_S, journal=journal)


def _build(
    role: str, name: str, base: str, observer: Observer, journal: Journal | None, *, fresh: bool = False
) -> None:
    step = f"image {role}"
    observer.begin(step)
    # The machine's own network: its resolver and mirrors work there, and no bridge or firewall is needed.
    argv = ["build", "--network", "host", "--force-rm", "--build-arg", f"BASE={base}", "--tag", name]
    argv += [word for proxy in _PROXIES if proxy in os.environ for word in ("--build-arg", proxy)]
    argv += [*(["--no-cache"] if fresh else []), "--file", str(dialects.dockerfile(role)), str(dialects.TEMPLATES)]
    before = _unnamed()
    try:
        done = stream(argv, _counting(step, observer), timeout=_BUILD_S, journal=journal)
    except BaseException:
        _sweep(before)
        raise
    _sweep(before)
    if done.code != 0:
        _raise_if_full(done, "")
        if (wrong := engine.trouble()) is not None:
            raise MachineError(wrong)
        hint = "it needs one of Debian's mirrors; ./inv image --rebuild tries again"
        raise MachineError(Problem("docker", f"image {name}", f"could not be built: {last_lines(done)}", hint))
    observer.end(step, name)


def _counting(step: str, observer: Observer) -> Callable[[str], None]:
    """Progress: the number of lines that a builder has printed."""
    numbers = count(1)
    return lambda _: observer.advance(step, next(numbers))


def _unnamed() -> set[str]:
    """Our images without a name: layers of a build, and images that a rebuild has replaced."""
    filters = ["--filter", f"label={LABEL}", "--filter", "dangling=true"]
    return set(docker(["image", "ls", *filters, "--quiet"], timeout=_QUESTION_S).out.split())


def _sweep(before: set[str]) -> None:
    """Remove what an unfinished build left: unnamed images, all with our label.

    The engine holds the last of them for a moment. A running lab may use those of `before`, so they may stay.
    """
    end = time.monotonic() + _SWEEP_S
    with suppress(MachineError):  # the engine has ended, which is reported elsewhere
        while True:
            docker(["image", "prune", "--force", "--filter", f"label={LABEL}"], check=False, timeout=_QUESTION_S)
            if _unnamed() <= before or time.monotonic() > end:
                return
            time.sleep(0.2)


def _raise_if_full(done: Done, where: str) -> None:
    if "no space left on device" in (done.err + done.out).lower():
        place = where or run([*engine.client(), "info", "--format", "{{.DockerRootDir}}"], check=False).out.strip()
        hint = "free some space there: df -h shows the use; ./inv image --prune and docker system df help"
        raise MachineError(Problem("", place or "the engine's disk", "is full: the image could not be built", hint))


def last_lines(done: Done, widest: int | None = None) -> str:
    """The last lines with errors, else the last lines: a builder prints the reason at the end. widest: of a line."""
    lines = [text.strip() for text in (done.err or done.out).splitlines() if text.strip()]
    errors = [text for text in lines if re.match(r"(E:|error|ERROR)", text)]
    shown = [each[:widest] for each in (errors or lines)[-2:]]
    return "; ".join(shown) or f"it ended with exit code {done.code} and printed nothing"


def in_own_namespaces(*ids: str) -> Sequence[str]:
    """The words before a command, as mmdebstrap, that has its own mounts and processes; they end with this process.

    mmdebstrap can make such namespaces itself, and continues in them when its caller is killed. Here `setpriv
    --pdeathsig` ends unshare(1) with its caller, and unshare's `--kill-child` ends process 1 of the PID namespace, and
    so all others in it. ids: flags of unshare for a user namespace.
    """
    own = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ("setpriv", "--pdeathsig", "KILL", "unshare", *ids, *own)
