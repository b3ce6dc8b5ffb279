"""Run a script in guests whose clock counts instructions, and which get nothing from outside: equal bytes each time.

In:  an image, a Script, files for it, and how many guests.
Out: the files of each guest, below a directory, and their SHA-256.
What makes a guest repeat itself: one processor, whose instructions are its clock; disks that are memory, so that no
request waits for this machine; a fixed date and a fixed seed; no network, no keys, no monitor; and, for QEMU itself, a
date that stands still (stilldate/). The guest starts the script itself. So `--place vm --deterministic`, whose verbs
come by SSH, repeats less (docs/kernels.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.mounts import TEMPORARY, scratch
from heddle.base.problems import InputError, MachineError, Problem, Problems, machine_errors
from heddle.host.capacity import free_bytes
from heddle.places import sync
from heddle.places.vm import stilldate
from heddle.places.vm.booting import PANIC, QemuProcess, start_qemu, tail_of
from heddle.places.vm.hardware import BOOT_ARCHIVE, CONSOLE, Hardware, replay_command
from heddle.places.vm.image import INITRAMFS, VmImage, script
from heddle.places.vm.initramfs import boot_archive
from heddle.places.vm.replayguest import MESSAGE
from heddle.places.vm.replayscript import OWN, REPORT, SUMS, Script

SCRATCH: Final = "heddle-replay-"
RESULT_BYTES: Final = 128 << 20  # of one guest, compressed
_RESULTS: Final = "results.img"
_MOST_INPUT: Final = 16 << 20  # bytes of one input file
_LOOK_S: Final = 0.2
_MOVES: Final = "saw the date of this machine, so the speed of this machine may show in its results"
_MOVES_HINT: Final = f"QEMU must be linked dynamically, and {TEMPORARY} mounted without noexec"
_THERE: Final = "replay"  # the guest's working directory, in /root, beside `heddle`


@dataclass(frozen=True, slots=True)
class Replayed:
    """One guest that ended. seconds: of this machine; files: name -> SHA-256; report: as the guest wrote it."""

    number: int
    seconds: float
    directory: Path
    files: Mapping[str, str]
    report: Mapping[str, Any]


def read_inputs(names: Mapping[str, Path], lines: Script) -> dict[str, bytes]:
    """The input files, by the last part of their names; InputError with all that cannot be used."""
    problems, found = Problems(), dict[str, bytes]()
    for typed, path in names.items():
        if not path.is_file():
            problems.add(where="", what=f"--input {typed}", why="is not a file", hint="check the name")
        elif path.stat().st_size > _MOST_INPUT:
            problems.add(where="", what=f"--input {typed}", why=f"is larger than {_MOST_INPUT >> 20} MiB")
        elif path.name in found or path.name in (*OWN, *(each.to for each in lines.lines)):
            why = "has the name of another file of the replay"
            problems.add(where="", what=f"--input {typed}", why=why, hint="rename it")
        else:
            with machine_errors(typed, "make the file readable for this user"):
                found[path.name] = path.read_bytes()
    problems.raise_if_any()
    return found


def replay(
    image: VmImage,
    lines: Script,
    inputs: Mapping[str, bytes],
    hardware: Hardware,
    times: int,
    target: Path,
    minutes: float,
    observer: Observer,
) -> list[Replayed]:
    """Run a script in `times` guests, as many at once as this machine has processors and memory for.

    target: an empty directory, for the files of the first guest; files of another one that differ go to target/boot-2
    and so on. MachineError when a guest does not end by itself within `minutes`; no process and no file is left then.
    """
    if not os.access(image.path, os.W_OK):  # QEMU opens the disk for writing, though it changes a copy
        hint = "set a directory of your own: HEDDLE_CACHE_DIR=/var/tmp/heddle"
        raise MachineError(Problem("", str(image.path), "is not writable for this user", hint))
    image.mark_used()
    archive = boot_archive((image.path / INITRAMFS).read_bytes(), _boot_files(lines, inputs))
    with scratch(SCRATCH) as work, ExitStack() as running:
        waiting = [_Guest(number, work / str(number)) for number in range(1, times + 1)]
        active, ended = list[_Guest](), list[Replayed]()
        while waiting or active:
            while waiting and len(active) < _at_once(hardware):
                guest = waiting.pop(0)
                guest.start(image, archive, hardware, observer)
                running.callback(guest.end)
                active.append(guest)
            for guest in [each for each in active if each.look(minutes * 60, observer)]:
                active.remove(guest)
                with machine_errors(str(target)):
                    ended.append(guest.collect(observer))
            time.sleep(_LOOK_S)
        ended.sort(key=lambda each: each.number)
        with machine_errors(str(target)):
            return [_kept(each, ended[0], target) for each in ended]


def differing(replayed: Sequence[Replayed]) -> list[str]:
    """The names of files that are not the same in all guests."""
    names = {name for each in replayed for name in each.files}
    return sorted(name for name in names if len({each.files.get(name, "") for each in replayed}) > 1)


def _at_once(hardware: Hardware) -> int:
    by_memory = free_bytes() // (hardware.memory << 20)
    return max(1, min(len(os.sched_getaffinity(0)), by_memory))


def _boot_files(lines: Script, inputs: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the boot archive: scripts of the guest, its order, and a tar of the project and of the inputs."""
    order = {"lines": [line.to_json() for line in lines.lines], "inputs": sorted(inputs)}
    found = {name: script(name) for name in ("guest-init", "sshd_config")} | {"init": script("initramfs-init")}
    found |= {"replay.json": json.dumps(order).encode(), "replay.tar": _project_tar(inputs)}
    return found


def _project_tar(inputs: Mapping[str, bytes]) -> bytes:
    """A tar that depends on names and contents only: without times, owners, or the order of a directory."""
    made, needed = io.BytesIO(), (resources.HERE.package.name, *resources.CONTENT)
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, path in sorted(sync.files_of(sync.project()).items()):
            if path.is_file() and (name.split("/")[0] in needed or name in resources.BESIDE):
                _add(tar, f"heddle/{name}", path.read_bytes(), executable=bool(path.stat().st_mode & 0o100))
        for name, content in sorted(inputs.items()):
            _add(tar, f"{_THERE}/{name}", content)
    return made.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, executable: bool = False) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755 if executable else 0o644
    tar.addfile(member, io.BytesIO(content))


@dataclass(slots=True)
class _Guest:
    """One guest of a replay, from its start to its files."""

    number: int
    directory: Path
    began: float = 0.0
    seconds: float = 0.0
    child: subprocess.Popen[bytes] | None = None
    process: QemuProcess | None = None
    still: bool | None = None  # whether the date of QEMU stands still; None: not known yet
    told: str = ""

    @property
    def step(self) -> str:
        """Its name in what is shown."""
        return f"replay {self.number}"

    def start(self, image: VmImage, archive: bytes, hardware: Hardware, observer: Observer) -> None:
        observer.begin(self.step)
        with machine_errors(str(self.directory)):
            self.directory.mkdir(mode=0o700)
            (self.directory / BOOT_ARCHIVE).write_bytes(archive)
            with (self.directory / _RESULTS).open("wb") as file:
                # Space that is there: a write to a mapped file without space would end QEMU.
                os.posix_fallocate(file.fileno(), 0, RESULT_BYTES)
            argv = stilldate.command(replay_command(image, hardware, self.directory / _RESULTS), self.directory)
        self.began = time.monotonic()
        # The guest has no other use than this process: it ends with it, also when this process is killed.
        self.child, self.process = start_qemu(["setpriv", "--pdeathsig", "KILL", *argv], self.directory)

    def end(self) -> None:
        """End its process if it still runs."""
        if self.process is not None:
            self.process.end()

    def look(self, patience: float, observer: Observer) -> bool:
        """Whether the guest has ended; shows where it is. MachineError when it takes longer than `patience` seconds."""
        assert self.child is not None  # noqa: S101  (it was started)
        self.still = self.still if (found := stilldate.stands_still(self.child.pid)) is None else found
        code, self.seconds = self.child.poll(), time.monotonic() - self.began
        if code is not None:
            if code:
                raise self._failed(f"ended after {self.seconds:.0f} s (QEMU's exit code is {code})", _cause(code))
            return True
        said = self._said()
        if self.seconds > patience:
            why = f"did not end within {patience / 60:g} minutes; its last message: {said or 'none'}"
            raise self._failed(why, "use --minutes with a larger number")
        if said != self.told:
            self.told = said
            observer.waiting(self.step, said)
        return False

    def collect(self, observer: Observer) -> Replayed:
        """The files that the guest wrote, unpacked; MachineError when it wrote none."""
        with (self.directory / _RESULTS).open("rb") as file:
            if file.read(2) != b"\x1f\x8b":
                panicked = PANIC in (self.directory / CONSOLE).read_text(encoding="utf-8", errors="replace")
                raise self._failed(f"{'panicked' if panicked else 'ended'} without results after {self.seconds:.0f} s")
            file.seek(0)
            made = self.directory / "files"
            made.mkdir()
            try:
                names = sorted(unpack(file, made))
                report = json.loads((made / REPORT).read_text(encoding="utf-8"))
            except (ValueError, EOFError, tarfile.TarError, FileNotFoundError) as error:
                raise self._failed(f"left results that cannot be read: {error}") from None
        if self.still is False:
            raise self._failed(_MOVES, _MOVES_HINT)
        observer.end(self.step, f"{report['seconds']:.1f} s of the guest's clock")
        digests = {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in names}
        return Replayed(self.number, round(self.seconds, 1), made, digests, report)

    def _said(self) -> str:
        """The last message of the guest."""
        with machine_errors(str(self.directory)):
            text = (self.directory / CONSOLE).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.startswith(MESSAGE)]
        return "".join(c for c in lines[-1].removeprefix(MESSAGE) if c.isprintable())[:200] if lines else ""

    def _failed(self, why: str, hint: str = "") -> MachineError:
        tail = tail_of(self.directory)
        said = f"the end of its console:\n{tail}" if tail else "it printed nothing"
        return MachineError(Problem("", f"guest {self.number} of the replay", why, f"{hint}; {said}" if hint else said))


def _cause(code: int) -> str:
    return "another process ended it, or the kernel because memory ran out" if code == -signal.SIGKILL else ""


def _kept(found: Replayed, first: Replayed, target: Path) -> Replayed:
    """Move the files of the first guest to `target`, and those of another one to a directory below if they differ."""
    if found is not first and found.files == first.files:
        return replace(found, directory=target)
    place = target if found is first else target / f"boot-{found.number}"
    place.mkdir(exist_ok=True)
    for path in sorted(found.directory.iterdir()):
        shutil.move(path, place / path.name)
    sums = "".join(f"{digest}  {name}\n" for name, digest in found.files.items())
    (place / SUMS).write_text(sums, encoding="utf-8")
    return replace(found, directory=place)


def check_target(path: Path, typed: str) -> None:
    """InputError when files of a replay cannot go to this directory: it must not exist, or be empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        why = "is not empty" if path.is_dir() else "is a file"
        raise InputError(Problem("", f"--out {typed}", why, "name a new directory"))


def unpack(source: IO[bytes], root: Path) -> list[str]:
    """Write the plain files of a guest's tar below `root`; return their names."""
    with tarfile.open(fileobj=source, mode="r|gz") as tar:
        names = []
        for member in tar:
            if not member.isfile():
                raise ValueError(f"{member.name} is not a plain file")
            tar.extract(member, root, filter="data")
            names.append(member.name)
    return names
