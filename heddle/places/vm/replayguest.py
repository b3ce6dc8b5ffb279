"""In the guest of a replay: run the lines of its script, and write what they made to a disk as a compressed tar.

python -m heddle.places.vm.replayguest REPLAY.json WORK DEVICE

It reads no clock but the guest's, and sorts what a directory lists: two guests with the same files write the same
bytes. Messages on the console show where it is.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from heddle.base import progname, resources
from heddle.places.vm.replayscript import OUTPUT, REPORT

MESSAGE: Final = "heddle: "  # begins a message on the console
_CONSOLE: Final = Path("/dev/console")
_ENDING_S: Final = 60.0  # for a verb in the background to end after SIGINT
_FORMAT: Final = 1


@dataclass(slots=True)
class _Started:
    """A line in the background. number: its place in the report."""

    line: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    entry: dict[str, Any]
    began: float


@dataclass(slots=True)
class Lines:
    """Runs lines. inv: the words that start Heddle; work: the directory in which they run; tell: gets a message."""

    inv: Sequence[str]
    work: Path
    tell: Callable[[str], None]
    entries: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[_Started] = field(default_factory=list)

    def run(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Run them until one fails; then end what is still in the background."""
        for at, line in enumerate(lines, 1):
            self.tell(f"line {at} of {len(lines)}: {line['text']}")
            if not self._run(line):
                break
        for each in self.waiting:
            each.process.send_signal(signal.SIGINT)
        for each in self.waiting:
            try:
                each.process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                each.process.kill()
            self._ended(each, ended="at the end of the replay")
        self.waiting.clear()

    @property
    def failed(self) -> dict[str, Any] | None:
        """The entry of the line that failed, if one did."""
        return next((entry for entry in self.entries if entry["code"] and not entry.get("ended")), None)

    def _run(self, line: Mapping[str, Any]) -> bool:
        if "sleep" in line:
            time.sleep(line["sleep"])
        elif "wait" in line:
            for each in self.waiting:
                self._ended(each)
            self.waiting.clear()
        else:
            started = self._start(line)
            if line["background"]:
                self.waiting.append(started)
            else:
                self._ended(started)
        return self.failed is None

    def _start(self, line: Mapping[str, Any]) -> _Started:
        output = self._appended(OUTPUT)
        output.write(f"$ {line['text']}\n".encode())
        target = self._appended(line["to"]) if line["to"] else output
        process = subprocess.Popen(
            [*self.inv, *line["words"]],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=output,
            cwd=self.work,
            env={**os.environ, progname.VARIABLE: progname.CHECKOUT, "NO_COLOR": "1"},
        )
        for each in {output, target}:
            each.close()
        entry: dict[str, Any] = {"line": line["number"], "text": line["text"], "code": None}
        self.entries.append(entry)
        return _Started(line, process, entry, time.monotonic())

    def _ended(self, started: _Started, **more: str) -> None:
        started.entry["code"] = started.process.wait()
        started.entry["seconds"] = round(time.monotonic() - started.began, 6)
        started.entry.update(more)

    def _appended(self, name: str) -> IO[bytes]:
        """A file to which lines in the background write, too."""
        return (self.work / name).open("ab", buffering=0)


def report_of(lines: Lines, began: float) -> dict[str, Any]:
    """What the lines did: exit codes, and seconds of the guest's clock."""
    failed = lines.failed
    return {
        "format": _FORMAT,
        "release": os.uname().release,
        "seconds": round(time.monotonic() - began, 6),
        "failed": failed["line"] if failed else None,
        "lines": lines.entries,
    }


def pack(work: Path, left_out: Sequence[str], target: IO[bytes]) -> None:
    """Write the files of a directory to a compressed tar, sorted by their paths, without links."""
    packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=target, mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for path in sorted(work.rglob("*")):
            name = path.relative_to(work).as_posix()
            if path.is_file() and not path.is_symlink() and name not in left_out:
                tar.add(path, name)


def main(words: Sequence[str]) -> int:
    """Run a replay as its order says; the exit code of this program."""
    began = time.monotonic()
    order, work, device = json.loads(Path(words[0]).read_text(encoding="utf-8")), Path(words[1]), Path(words[2])
    work.mkdir(exist_ok=True)
    lines = Lines(resources.HERE.command(), work, _tell)
    lines.run(order["lines"])
    (work / REPORT).write_text(json.dumps(report_of(lines, began), indent=2) + "\n", encoding="utf-8")
    try:
        with device.open("r+b") as target:
            pack(work, order["inputs"], target)
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        _tell(f"the results cannot be written: {error.strerror}")
        return 1
    _tell("done")
    return 0


def _tell(text: str) -> None:
    with suppress(OSError):
        _CONSOLE.write_text(f"{MESSAGE}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
