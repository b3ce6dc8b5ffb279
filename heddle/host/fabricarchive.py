"""Heddle's own image as one file, made without a container engine: for the nodes of a cluster.

In:  Debian's packages, by mmdebstrap, and the files of this installation of Heddle.
Out: an archive as `docker save` writes it, which docker, podman, ctr, kind, minikube, k3s and skopeo read.
The image equals that of the Containerfile, with Heddle as a package of the system's Python. It has two layers: the
system, which is kept in the cache, and Heddle, so that another version of Heddle adds 16 MB to what a node has.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.mounts import scratch
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import follow
from heddle.base.state import cache_dir
from heddle.base.userfiles import as_caller, give_to_caller, make_dir
from heddle.host import packages
from heddle.host.engine.binary import MACHINES
from heddle.host.engine.images import SUITE, in_own_namespaces, last_lines
from heddle.host.engine.lockfile import locked

NAME: Final = "docker.io/library/heddle-fabric:latest"  # as engines complete `heddle-fabric`
# Those of the Containerfile; a test compares both.
SYSTEM: Final = (
    "frr", "iproute2", "libbpf1", "libdeflate0", "util-linux", "mount", "procps", "ethtool", "tcpdump", "iputils-ping",
    "iperf3", "tini", "python3", "python3-invoke", "python3-jinja2", "python3-numpy", "python3-pydantic",
    "python3-rich", "python3-scapy", "python3-yaml",
)  # fmt: skip
_LEAN: Final = ("doc", "man", "locale", "info")
_MODULES: Final = "usr/lib/python3/dist-packages"
_PACKAGES: Final = ("heddle/", f"{resources.PLUGINS}/")
_PROGRAM: Final = "usr/local/bin/heddle"
_START: Final = b"#!/usr/bin/python3 -P\nimport sys\nfrom heddle.cli.front import main\nsys.exit(main())\n"
_CONFIG: Final = {
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HEDDLE_STATE_DIR=/var/lib/heddle"],
    "Entrypoint": ["/usr/bin/tini", "--"],
    "Cmd": ["bash"],
    "WorkingDir": "/work",
    "Labels": {"heddle": "fabric"},
}
_STEP: Final = "system of the image"
_SYSTEM_S: Final = 1800.0
_SCRATCH: Final = "heddle-image-"


@dataclass(frozen=True, slots=True)
class ImageArchive:
    """An image in a file. name: by which pods find it; bytes: the size of the file."""

    path: Path
    name: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"archive": str(self.path), "name": self.name, "bytes": self.bytes}


def write_fabric_image(
    path: Path,
    observer: Observer,
    *,
    rebuild: bool = False,
    yes: bool = False,
    ask: Callable[[str], bool] = lambda _: False,
) -> ImageArchive:
    """Write Heddle's image to `path`. rebuild: with a new system, so with Debian's corrections of today.

    yes, ask: permission to install mmdebstrap. MachineError names the obstacle; then `path` is unchanged.
    """
    packages.ensure(packages.IMAGE, yes=yes, ask=ask, say=observer.say)
    directory = cache_dir() / "images"
    with machine_errors(str(directory)):
        make_dir(directory)
    with locked(directory / ".lock", fcntl.LOCK_EX, lambda: observer.waiting(_STEP, "another process makes it")):
        give_to_caller(directory / ".lock")
        system = _system(directory, observer, fresh=rebuild)
        with machine_errors(str(path)), scratch(_SCRATCH) as work:
            own = work / "heddle.tar"
            write_own_layer(own, _bytecode(system, work))
            part = path.with_name(f".{path.name}.part")
            try:
                with as_caller(part):
                    stream = part.open("wb")
                with stream:
                    write_docker_archive(stream, NAME, (system, own), _CONFIG)
                with as_caller(path):
                    part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return ImageArchive(path, NAME, path.stat().st_size)


def write_docker_archive(to: IO[bytes], name: str, layers: Sequence[Path], config: Mapping[str, Any]) -> None:
    """An image in the format of `docker save`, from the tar files of its layers, the lowest first.

    config: as the image specification of OCI has it, for the processes of a container.
    """
    ids = [_digest(each) for each in layers]
    machine = MACHINES.get(platform.machine(), platform.machine())
    about = {
        "architecture": machine, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each}" for each in ids]},
    }  # fmt: skip
    text = json.dumps(about).encode()
    about_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": about_name, "RepoTags": [name], "Layers": [f"{each}.tar" for each in ids]}]
    with tarfile.open(fileobj=to, mode="w") as archive:
        for identity, layer in zip(ids, layers, strict=True):
            with layer.open("rb") as stream:
                _add(archive, f"{identity}.tar", layer.stat().st_size, stream)
        _add_bytes(archive, about_name, text)
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def _system(directory: Path, observer: Observer, *, fresh: bool) -> Path:
    """The tar file of Debian's system, without manuals and translations; made if the cache does not have it."""
    lean = (f"--dpkgopt=path-exclude=/usr/share/{word}/*" for word in _LEAN)
    argv = ["mmdebstrap", "--variant=minbase", *lean, f"--include={','.join(SYSTEM)}", SUITE]
    inputs = hashlib.sha256(" ".join([platform.machine(), *argv]).encode())
    found = directory / f"system-{inputs.hexdigest()[:12]}.tar"
    if found.is_file() and not fresh:
        return found
    observer.begin(_STEP)
    observer.say("making the system of Heddle's image from Debian's packages: about a minute, only once")
    part = directory / ".making.tar"
    with machine_errors(str(directory)), scratch(_SCRATCH) as work:
        work.chmod(0o755)  # apt reads there as its own user
        numbers = count(1)
        try:
            done = follow(
                [*in_own_namespaces(), "env", f"TMPDIR={work}", *argv, str(part)],
                lambda _: observer.advance(_STEP, next(numbers)),
                timeout=_SYSTEM_S,
            )
            if done.code != 0:
                why, hint = last_lines(done), "it needs one of Debian's mirrors; run apt-get update for the reason"
                raise MachineError(Problem("", "mmdebstrap", f"could not make the system: {why}", hint))
            for old in directory.glob("system-*.tar"):
                old.unlink()
            part.rename(found)
        finally:
            part.unlink(missing_ok=True)
    give_to_caller(found)
    observer.end(_STEP, f"{found.stat().st_size / 1e6:.0f} MB")
    return found


def _bytecode(system: Path, work: Path) -> dict[str, Path]:
    """Heddle's modules as the image's own Python compiles them: name in the image -> file.

    Else each new pod compiles what it imports: the agent of a shard starts in 0.7 s instead of 0.3 s.
    """
    root, own = work / "root", work / "source.tar"
    write_own_layer(own)
    # Unchecked: the files of a layer have no times. The paths in tracebacks are those of the image.
    argv = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    argv += [f"/{_MODULES}/{each}" for each in _PACKAGES]
    unpack = 'mkdir "$1"; for layer in "$2" "$3"; do tar -xf "$layer" -C "$1" --exclude="./dev/*"; done'
    steps = f'set -e; {unpack}; root=$1; shift 3; exec chroot "$root" "$@"'
    words = ["sh", "-c", steps, "sh", str(root), str(system), str(own), *argv]
    done = follow([*in_own_namespaces(), *words], lambda _: None, timeout=_SYSTEM_S)
    if done.code != 0:
        raise MachineError(Problem("", "python3 of the image", f"cannot compile Heddle: {last_lines(done)}"))
    found = (path for each in _PACKAGES for path in (root / _MODULES / each).rglob("*.pyc"))
    return {path.relative_to(root).as_posix(): path for path in found}


def write_own_layer(path: Path, more: Mapping[str, Path] = MappingProxyType({})) -> None:
    """The layer with Heddle: its package and content in the layout of a wheel, its program, its directories.

    more: name in the image -> a file to add.
    """
    with tarfile.open(path, "w") as archive:
        for directory in ("work", "var/lib/heddle"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        files = {f"{_MODULES}/{name}": file for name, file in _files()} | dict(more)
        for name, file in sorted(files.items()):
            with file.open("rb") as stream:
                mode = 0o755 if os.access(file, os.X_OK) else 0o644
                _add(archive, name, file.stat().st_size, stream, mode)
        _add_bytes(archive, _PROGRAM, _START, 0o755)


def _files() -> Iterator[tuple[str, Path]]:
    """The files of this installation with their names in a wheel."""
    for name, path in resources.HERE.as_checkout().items():
        yield (name if name.startswith(_PACKAGES) else f"heddle/{resources.BUNDLED}/{name}"), path


def _add(archive: tarfile.TarFile, name: str, size: int, stream: IO[bytes], mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)  # of root, and without times: the same files are the same layer
    entry.size, entry.mode = size, mode
    archive.addfile(entry, stream)


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    _add(archive, name, len(data), io.BytesIO(data), mode)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
