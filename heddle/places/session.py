"""Run one verb on a lab server: copy the project there, run the verb, show its output, copy its files back.

In:  a Call, and the Console that called.
Out: the verb's exit code. MachineError when the server cannot be used, or the connection breaks.
When the connection breaks, a lasting verb (`up`, `down`) continues on the server, so that its result is complete. Any
other verb gets SIGHUP and undoes unfinished work.
"""

from __future__ import annotations

import io
import json
import os
import queue
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from heddle.base import progname
from heddle.base.files import PLACE
from heddle.base.problems import InputError, MachineError, Problem, machine_errors
from heddle.base.tables import written
from heddle.places.address import Address
from heddle.places.call import Call, Output
from heddle.places.channel import AgentConnection, Broken, open_link
from heddle.places.endsignals import EndSignals
from heddle.places.keyboard import Keyboard, size_of_terminal
from heddle.places.store import digest_of, unpack

if TYPE_CHECKING:
    from heddle.places.ssh import Target

# Variables that change the output or the limits of a verb.
_PASSED: Final = ("CI", "HEDDLE_DEBUG", "HEDDLE_KEEP_BYTES", "HEDDLE_KEEP_RUNS", "NO_COLOR", "TERM")
_MOST: Final = 64 * 1024 * 1024  # largest size of an input file, bytes


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is sent with a verb: its path in the tar, its content, and its mode."""

    path: str
    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class SshPlace:
    """A lab server on which verbs run."""

    address: Address
    target: Target | None = None  # where ~/.ssh/config does not say it

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there."""
        from heddle.places import sync
        from heddle.places.ssh import connect

        files = _read(call.files_in)
        manifest = sync.manifest_of(sync.project())
        transport, _ = connect(self.address, self.target)
        try:
            link = open_link(transport, str(self.address))
            try:
                return _Session(self.address, call, out, link).run(manifest, files)
            finally:
                link.close()
        finally:
            transport.close()


def _read(names: Sequence[str]) -> dict[str, InputFile]:
    """The files with these names. The name of a preset is not a file and is sent unchanged."""
    from heddle.spec.load import find_fabric, presets

    found = {}
    for name in names:
        if name in presets():
            continue
        path, _ = find_fabric(name)
        if path.is_dir():
            raise InputError(Problem("", name, "is a directory", "name the .yml file in it"))
        with machine_errors(name, "make the file readable for this user"), path.open("rb") as file:
            content = file.read(_MOST + 1)
        if len(content) > _MOST:
            raise InputError(Problem("", name, f"is larger than {_MOST >> 20} MiB", "check the name"))
        # The whole path is kept, so that relative paths between files stay valid.
        there = "in" + str(Path(os.path.abspath(path)))  # noqa: PTH100  (not through links)
        found[name] = InputFile(there, content, 0o755 if os.access(path, os.X_OK) else 0o644)
    return found


class _Frames(io.RawIOBase):
    """A file that writes frames of one kind."""

    def __init__(self, link: AgentConnection, kind: bytes) -> None:
        self.link, self.kind, self.count = link, kind, 0

    def write(self, data: Any) -> int:
        self.link.send(self.kind, bytes(data))
        self.count += len(data)
        return len(data)


@dataclass(slots=True)
class _Session:
    address: Address
    call: Call
    out: Output
    link: AgentConnection
    printed: bytearray = field(default_factory=bytearray)  # with --format json: one document, or nothing

    def run(self, manifest: dict[str, list[str]], files: dict[str, InputFile]) -> int:
        try:
            self._copy_project(manifest, bool(files))
        except Broken:
            if (told := self.link.reported_problem()) is not None:
                raise told from None
            hint = "run the same line again: files already copied are not sent again"
            why = "lost the connection while the project was copied there"
            raise MachineError(Problem("", str(self.address), why, hint)) from None
        try:
            return self._run_verb(files)
        except Broken:
            after = "continues there" if self.call.lasting else "was ended there"
            why = f"lost the connection during {self.call.verb}"
            hint = f"{self.call.verb} {after}; ./inv status --place {self.address} shows what is there"
            raise MachineError(Problem("", str(self.address), why, hint)) from None

    def _copy_project(self, manifest: dict[str, list[str]], files: bool) -> None:
        from heddle.places import sync

        request = {"id": sync.checkout_id(sync.project()), "hash": digest_of(manifest), "files": files}
        self.link.say(b"R", request)
        if self.link.expect(b"q")["same"]:
            return
        self.link.say(b"M", manifest)
        needed = self.link.expect(b"n")
        if needed:
            sink = _Frames(self.link, b"T")
            sync.send(sync.project(), needed, sink)
            self.link.send(b"T")
            files_text = f"{len(needed)} file{'' if len(needed) == 1 else 's'}"
            self.out.say(f"{self.address}: {files_text} copied ({sink.count / 1000:.0f} kB)")
        if not self.link.expect(b"q")["whole"]:
            self.out.say(f"{self.address}: files changed while they were copied")

    def _run_verb(self, files: dict[str, InputFile]) -> int:
        if files:
            with tarfile.open(fileobj=_Frames(self.link, b"F"), mode="w|gz") as tar:
                for file in {file.path: file for file in files.values()}.values():
                    member = tarfile.TarInfo(file.path)
                    member.size, member.mode = len(file.content), file.mode
                    tar.addfile(member, io.BytesIO(file.content))
            self.link.send(b"F")
        outs = {name: f"out/{i}/{_last(name)}" for i, name in enumerate(self.call.files_out)}
        typed = self.call.typed_in and not self.out.json and sys.stdin.isatty() and sys.stdout.isatty()
        order = {
            "argv": ["./inv", *self.call.words],
            "env": {**_environment(), PLACE: str(self.address), progname.VARIABLE: progname.program()},
            "ins": {name: file.path for name, file in files.items()},
            "outs": outs,
            "lasting": self.call.lasting,
            "input": self.call.typed_in,
            "terminal": size_of_terminal() if typed else None,
        }
        self.out.close()
        self.link.say(b"G", order)
        where = progname.as_started(f"./inv status --place {self.address}")
        left = f"left; {self.call.verb} may still be running there: {where} shows the labs"
        with EndSignals(left) as signals, Keyboard(self.link, typed=typed, wanted=self.call.typed_in) as keyboard:
            code = self._follow(keyboard, outs, signals)
        if self.printed:
            written(self.printed.decode(errors="replace"), verbatim=True)
        return 128 + signals.ending if signals.ending else code

    def _follow(self, keyboard: Keyboard, outs: dict[str, str], signals: EndSignals) -> int:
        """Show the verb's output until it ends, and send it the signals of this process."""
        told = 0
        with tempfile.TemporaryFile() as tar:
            while True:
                try:
                    frame = self.link.frames.get(timeout=0.1)
                except queue.Empty:
                    frame = (b"", b"")
                if signals.interrupts + signals.ending and not told:
                    told = 1
                    self.link.send(b"H" if signals.ending else b"C")
                    print(f"ending {self.call.verb} there; press Ctrl-C again to leave at once", file=sys.stderr)
                if frame is None:
                    raise Broken
                kind, data = frame
                if kind == b"x":
                    return int(json.loads(data))
                if kind == b"p":
                    raise self.link.problem(json.loads(data))
                if kind == b"o":
                    self._print(data)
                elif kind == b"e":
                    _write(sys.stderr, data)
                elif kind == b"a":
                    keyboard.taken(json.loads(data))
                elif kind == b"t" and data:
                    tar.write(data)
                elif kind == b"t":
                    tar.seek(0)
                    for name in copy_back(tar, outs, self.call.endings_here):
                        print(f"{name}: written there and not copied back: no --out names it", file=sys.stderr)

    def _print(self, data: bytes) -> None:
        if self.out.json:
            self.printed += data
            return
        try:
            _write(sys.stdout, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            hint = "check that the disk of the output file is not full"
            raise MachineError(Problem("", "stdout", f"cannot be written: {error.strerror}", hint)) from None


def _environment() -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    if sys.stdout.isatty() or sys.stderr.isatty():
        env["COLUMNS"] = str(shutil.get_terminal_size().columns)
    return env


def _write(stream: Any, data: bytes) -> None:
    stream.buffer.write(data)
    stream.buffer.flush()


def _last(name: str) -> str:
    """The last part of a path: verbs read its suffix (`.svg`)."""
    last = Path(name).name
    return "out" if last in ("", ".", "..") else last


def copy_back(tar: IO[bytes], outs: Mapping[str, str], endings: Sequence[str]) -> list[str]:
    """Copy the files that the verb wrote to the paths that the user named. Returns the names of other files.

    The server is not trusted: links are refused. The working directory, which may be a home or a checkout, gets plain
    files with one of these suffixes only.
    """
    unasked = []
    with tempfile.TemporaryDirectory(prefix="heddle-") as spot, machine_errors():
        try:
            unpack(tar, Path(spot), links=False)
        except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
            names = ", ".join(outs) or "what it wrote"
            raise MachineError(
                Problem("", names, f"could not be copied back: {error}", "run the same line again")
            ) from None
        here = Path(spot, "here")
        for source in sorted(here.iterdir()) if here.is_dir() else ():
            if source.is_file() and source.suffix in endings and not source.name.startswith("."):
                shutil.copy(source, source.name)
            else:
                unasked.append("".join(c if c.isprintable() else "?" for c in source.name))
        for name, path in outs.items():
            source, target = Path(spot, path), Path(name).expanduser()
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    return unasked
