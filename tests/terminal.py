"""A command on a terminal of its own, and someone who types there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.machine import patience

ROOT = Path(__file__).resolve().parents[1]
SIZE = (24, 80)


class Terminal:
    """said: all that the terminal has shown. pid: of the command; 0 when it has ended."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT, size: tuple[int, int] = SIZE
    ) -> None:
        """size: rows and columns."""
        self.said, self._at = "", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            os.chdir(cwd)
            shown = {"LINES": str(size[0]), "COLUMNS": str(size[1])}  # readline sets them, and they would count more
            os.execvpe(argv[0], [*argv], dict(env) if env is not None else {**os.environ, **shown})

    def until(self, text: str, seconds: float = 120.0) -> None:
        """Read until the terminal shows this, behind what was waited for before."""
        deadline = time.monotonic() + patience(seconds)
        while (found := self.said.find(text, self._at)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, self.said
            if select.select([self.fd], [], [], left)[0] and not self._read():
                raise AssertionError(self.said)
        self._at = found + len(text)

    def _read(self) -> bool:
        try:
            piece = os.read(self.fd, 1 << 16).decode(errors="replace")
        except OSError:  # EIO: no process has the terminal open
            return False
        self.said += piece
        return bool(piece)

    def type(self, keys: str) -> None:
        """Type these keys."""
        os.write(self.fd, keys.encode())

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does at a shell's prompt."""
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def code(self, seconds: float = 120.0, again: str = "") -> int:
        """Read to the end; the exit code. again: keys that are typed every two seconds until then."""
        deadline = time.monotonic() + patience(seconds)
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.fd], [], [], min(left, 2.0) if again else left)[0]:
                if not self._read():
                    return self.ended()
            elif again:
                self.type(again)
        raise AssertionError(self.said)

    def ended(self) -> int:
        """Wait; the exit code, negative after a signal."""
        code, self.pid = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), 0
        return code

    def close(self) -> None:
        """Close the terminal's window."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextmanager
def on_terminal(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT, size: tuple[int, int] = SIZE
) -> Iterator[Terminal]:
    """A command on a terminal, for a with block, whose end closes the terminal and waits for the command."""
    made = Terminal(argv, env, cwd, size)
    try:
        yield made
    finally:
        made.close()
        if made.pid:
            made.ended()
