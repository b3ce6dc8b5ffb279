"""The installed containerlab: its path, its version, whether Heddle can use it; and its release for download.

A version is what `containerlab version` prints. A build from source prints 0.0.0; the version of the module is then in
the build information that Go writes into every program.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.process import find_program, run
from heddle.base.resources import HERE
from heddle.host.engine.docker import SETUP

Version = tuple[int, int, int]

MINIMUM: Final[Version] = (0, 68, 0)  # `inspect --format json` is keyed by lab from here on
RECOMMENDED: Final[Version] = (0, 78, 0)  # `validate`, and `privileged: false`
RELEASE: Final[Version] = (0, 79, 0)  # what setup installs
PROC_MODULES: Final = Path("/proc/modules")
MARK: Final = "heddle"  # as in 0.79.0+heddle: built by setup, with the correction for kernels without modules
_FLAWED: Final[Version] = (0, 79, 0)  # up to this version deploy stops where there is no /proc/modules
_PLACES: Final = ("/usr/local/bin", "/usr/bin")  # the first may not be in sudo's PATH
_SAID: Final = re.compile(r"^\s*version:\s*v?(\d+)\.(\d+)\.(\d+)(\S*)", re.MULTILINE)
_BUILT: Final = re.compile(rb"\t?github\.com/srl-labs/containerlab\tv(\d+)\.(\d+)\.(\d+)")
_REPLACED: Final = re.compile(rb"\tgithub\.com/srl-labs/containerlab\tv[0-9.]+\n=>\t")


def find() -> Path | None:
    """The containerlab that is used: HEDDLE_CONTAINERLAB, else the first in PATH, /usr/local/bin and /usr/bin."""
    if chosen := os.environ.get("HEDDLE_CONTAINERLAB"):
        return Path(chosen) if os.access(chosen, os.X_OK) and Path(chosen).is_file() else None
    found = find_program("containerlab", *_PLACES)
    return Path(found) if found else None


def version(path: Path) -> Version | None:
    """(0, 79, 0), or None when it is unknown."""
    numbers = printed_version(path)[0]
    if numbers not in (None, (0, 0, 0)):
        return numbers
    match = _search(path, _BUILT)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def printed_version(path: Path) -> tuple[Version | None, str]:
    """The version that the program prints: the numbers, and the rest (`+heddle`)."""
    try:
        # Otherwise it looks for newer versions, and waits if nothing answers.
        said = run(["env", "CLAB_VERSION_CHECK=disable", str(path), "version"], check=False, timeout=30).out
    except HeddleError:
        return None, ""
    return parse(said)


def version_text(path: Path) -> str:
    """`0.79.0+heddle`, as text."""
    numbers, more = printed_version(path)
    known = version(path) if numbers in (None, (0, 0, 0)) else numbers
    return f"{text(known)}{more}" if known else "unknown"


def parse(said: str) -> tuple[Version | None, str]:
    """The output of `containerlab version` -> numbers, and the rest."""
    match = _SAID.search(said)
    if match is None:
        return None, ""
    return (int(match[1]), int(match[2]), int(match[3])), match[4]


def runs_here(path: Path) -> bool:
    """False when this kernel has no modules and this containerlab stops because of that (.engine/README.md)."""
    if not needs_correction():
        return True
    numbers, more = printed_version(path)
    if more == f"+{MARK}":
        return True
    if numbers == (0, 0, 0) and _search(path, _REPLACED):
        return True  # the user's own build of a changed source
    known = version(path)
    return known is not None and known > _FLAWED


def needs_correction() -> bool:
    """True on kernels without module support: no containerlab up to 0.79 deploys there unless it is corrected."""
    return not PROC_MODULES.exists()


def flaw(what: str, number: str = "") -> Problem:
    """The problem of a containerlab that needs the correction."""
    why = f"{number}cannot deploy on this kernel: it needs /proc/modules, and this kernel has no modules"
    able = HERE.engine_by_hand is not None
    hint = f"{SETUP} builds one that works" if able else "use a kernel with module support"
    return Problem("containerlab", what, why, hint)


def trouble() -> Problem | None:
    """The reason why containerlab cannot be used, or None. One older than RECOMMENDED can be used."""
    path = find()
    if path is None:
        if chosen := os.environ.get("HEDDLE_CONTAINERLAB"):
            return Problem(
                "", f"HEDDLE_CONTAINERLAB={chosen}", "is not a program", "set it to the path of the containerlab binary"
            )
        return Problem("", "containerlab", "is not installed", f"{SETUP} installs it")
    found = version(path)
    if found is None:
        why = "does not print its version"
        return Problem("containerlab", str(path), why, f"run {path} version for the reason; {SETUP} installs another")
    if found < MINIMUM:
        why = f"is version {text(found)}, and Heddle needs {text(MINIMUM)} or newer"
        return Problem(
            "containerlab", str(path), why, f"run containerlab version upgrade, or remove it and run {SETUP}"
        )
    if not runs_here(path):
        return flaw(str(path), f"{text(found)} ")
    return None


def require() -> Path:
    """The containerlab to use. MachineError when it is missing, too old, or does not print its version."""
    wrong, path = trouble(), find()
    if wrong is not None or path is None:
        raise MachineError(wrong or Problem("", "containerlab", "is not installed", f"{SETUP} installs it"))
    return path


def text(found: Version) -> str:
    """`0.79.0`."""
    return ".".join(str(n) for n in found)


def _search(path: Path, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """The first match in the program's bytes. Go's build information is plain text in there."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = pattern.search(data)
            return pattern.search(bytes(found[0])) if found else None  # a copy: the map is closed after this
    except (OSError, ValueError):  # missing, not readable, or empty
        return None


def installed_version() -> Version | None:
    """The version of this machine's containerlab; None when it is not installed or its version is unknown."""
    path = find()
    return None if path is None else version(path)


RELEASES: Final = "https://github.com/srl-labs/containerlab/releases/download"
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # as Python, and as Go and OCI name them
_ANSWER_S: Final = 10.0
_WHOLE_S: Final = 300.0
_LARGEST: Final = 300 << 20
_CHUNK: Final = 1 << 20


class Unreachable(Exception):  # noqa: N818 - not an error: setup then builds from source
    """The release cannot be downloaded; the reason."""


def fetch(version: Version, directory: Path, releases: str = "") -> Path:
    """Download the release, check it, and unpack the binary into `directory`.

    Unreachable when there is none for this machine or nothing answers in time. MachineError when its checksum differs
    from checksums.txt: then setup must not continue without a message.
    """
    kind = MACHINES.get(platform.machine())
    if kind is None:
        raise Unreachable(f"there is none for {platform.machine()}")
    base = f"{releases or RELEASES}/v{text(version)}"
    name = f"containerlab_{text(version)}_linux_{kind}.tar.gz"
    end = time.monotonic() + _WHOLE_S
    sums = _get(f"{base}/checksums.txt", 1 << 20, end)
    lines = (line.split() for line in sums.decode(errors="replace").splitlines())
    wanted = next((words[0] for words in lines if len(words) == 2 and words[1].lstrip("*") == name), None)
    if wanted is None:
        raise Unreachable(f"checksums.txt of {text(version)} does not name {name}")
    data = _get(f"{base}/{name}", _LARGEST, end)
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        why = f"is damaged or forged: its SHA-256 is {found}, and checksums.txt says {wanted}"
        raise MachineError(Problem("containerlab", f"{base}/{name}", why, "try again; nothing was installed"))
    return _unpack(data, name, directory)


def _get(url: str, largest: int, end: float) -> bytes:
    data = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - the address is ours, above
            while chunk := answer.read1(
                _CHUNK
            ):  # read1 returns what has arrived: a full chunk over a slow link takes too long
                data += chunk
                if len(data) > largest or time.monotonic() > end:
                    raise Unreachable(f"{url} is too large or too slow")
    except urllib.error.HTTPError as error:
        raise Unreachable(f"{url}: {error.code} {error.reason}") from None
    except (
        OSError,
        ValueError,
        HTTPException,
    ) as error:  # no name, no route, no certificate, no answer in time, no web
        raise Unreachable(f"{url}: {getattr(error, 'reason', '') or str(error) or type(error).__name__}") from None
    return bytes(data)


def _unpack(data: bytes, name: str, directory: Path) -> Path:
    archive, binary = directory / name, directory / "containerlab"
    archive.write_bytes(data)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            member = tar.extractfile("containerlab")  # one file by name: paths in the archive are not used
            if member is None:
                raise KeyError
            with binary.open("wb") as file:
                shutil.copyfileobj(member, file)
    except (tarfile.TarError, KeyError, EOFError):
        why = "does not contain the program containerlab"
        raise MachineError(Problem("containerlab", name, why, "nothing was installed")) from None
    finally:
        archive.unlink()
    binary.chmod(0o755)
    return binary
