"""What a verb says: one result on stdout, progress and remarks on stderr.

With `--format json` stdout is one JSON document, errors included. Progress is a live display on a terminal, plain lines
elsewhere (CI, a file, a pipe).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heddle.base.problems import MachineError, Problem

if TYPE_CHECKING:
    import rich.console

    from heddle.cli.progress import ClosingObserver


class Console:
    """One verb's voice. `exit_code` is what the process leaves with when nothing is raised."""

    def __init__(self, format: str = "text") -> None:
        self.format = format
        self.exit_code = 0
        self._observer: ClosingObserver | None = None

    @property
    def json(self) -> bool:
        """True when stdout must be one JSON document."""
        return self.format == "json"

    @property
    def observer(self) -> ClosingObserver:
        """Who listens to engines: live display or plain lines, made when first asked for."""
        if self._observer is None:
            from heddle.cli.progress import observer_for

            self._observer = observer_for(sys.stderr)
        return self._observer

    @property
    def rich(self) -> rich.console.Console:
        """rich's console on stdout, for bars and colours; wide where nobody looks, so that no pipe gets cut lines."""
        from rich.console import Console as RichConsole

        tty = sys.stdout.isatty()
        return RichConsole(file=sys.stdout, width=None if tty else 200, highlight=False, soft_wrap=not tty)

    def result(self, data: Mapping[str, Any], text: str = "") -> None:
        """Print the verb's result: `data` as JSON, or `text` for people."""
        self.close()
        written((json.dumps(data, indent=2, default=str) if self.json else text.rstrip("\n")) + "\n")

    def show(self, text: str) -> None:
        """A part of the result that is there before the rest; with JSON the whole comes at the end."""
        if self._observer is not None:
            self._observer.close()  # it draws again when the next step begins
        if not self.json:
            written(text + "\n")

    def fail(self, *problems: Problem) -> None:
        """Leave with exit code 1 because of these, after a result that was printed all the same."""
        for problem in problems:
            print(problem, file=sys.stderr)
            self.exit_code = 1

    def say(self, text: str) -> None:
        """A remark on stderr."""
        self.observer.say(text)

    def close(self) -> None:
        """End the live display, so that nothing is drawn over what follows."""
        if self._observer is not None:
            self._observer.close()

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; False when there is nobody to ask."""
        self.close()
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def written(text: str = "") -> None:
    """Write to stdout what a caller waits for; MachineError when it cannot all be written (a full disk)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit, and would fail again
        hint = "free some space where the output goes"
        raise MachineError(Problem("", "stdout", f"cannot be written: {error.strerror}", hint)) from None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Aligned columns; on a terminal too narrow the last column wraps under itself.

    width: columns of the terminal; None takes the terminal's own, or no limit where stdout is none.
    """
    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16
    cells = [list(header), *[[str(c) for c in row] for row in rows]]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(header))]
    left = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
    room = max(20, width - left)
    lines = []
    for row in cells:
        head = "  ".join(c.ljust(s) for c, s in zip(row[:-1], sizes[:-1], strict=True))
        parts = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append((f"{head}  {parts[0]}" if head else parts[0]).rstrip())
        lines += [" " * left + part for part in parts[1:]]
    return "\n".join(lines)


def problems_json(kind: str, code: int, problems: Sequence[Problem]) -> dict[str, Any]:
    """The JSON document of an error: the exit code, the kind (InputError, MachineError, ...) and every problem."""
    rows = [{"where": p.where, "what": p.what, "why": p.why, "hint": p.hint} for p in problems]
    return {"error": {"exit_code": code, "kind": kind, "problems": rows}}


def colour_wanted(stream: Any) -> bool:
    """True on a terminal that takes colours (NO_COLOR and TERM=dumb say no)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
