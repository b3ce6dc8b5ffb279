"""Download containerlab's release and check it against the checksums that are published with it.

In:  a version. Out: the binary in a directory, or the reason why there is none.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.host.engine.binary import Version, text

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
