"""The output of a verb: one result on stdout, progress and remarks on stderr.

With `--format json` stdout is one JSON document, errors included. Progress is a live display on a terminal, plain lines
elsewhere (CI, a file, a pipe).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from heddle.base.events import Observer
from heddle.base.problems import CheckError, Problem, shown
from heddle.base.progname import as_started
from heddle.base.tables import written

if TYPE_CHECKING:
    import rich.console
    from rich.progress import Progress, TaskID

# Seconds without output, after which a log gets a line: QUIET for a step that progresses or has a new reason to wait,
# UNCHANGED for a step without a change. Both show that the process is running.
QUIET: Final = 5.0
UNCHANGED: Final = 30.0


class ClosingObserver(Observer):
    """An observer that uses the terminal until it is closed."""

    def aside(self, write: Callable[[], None]) -> None:
        """Let `write` print to the terminal while steps are in progress."""

    def close(self) -> None:
        """Release the terminal; later events open the display again."""


class PlainObserver(ClosingObserver):
    """One line per finished step, with its time; for a long step a line from time to time."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._began: dict[str, tuple[float, int | None]] = {}
        self._said = time.monotonic()
        self._last = ""  # the last line of a step in progress
        self._done: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def _line(self, text: str) -> None:
        with self._lock:
            self._said = time.monotonic()
            # One write a line: lines of threads and of child processes must not mix.
            self.stream.write(shown(text) + "\n")
            self.stream.flush()

    def begin(self, step: str, total: int | None = None) -> None:
        self._began[step] = (time.monotonic(), total)

    def advance(self, step: str, done: int) -> None:
        """Print a line when there was no output for some time."""
        self._done[step] = done
        self._tell(step)

    def waiting(self, step: str, reason: str) -> None:
        """Print a line when the reason has changed, but not too often."""
        self._reasons[step] = reason
        self._tell(step)

    def _tell(self, step: str) -> None:
        total, done, reason = self._began.get(step, (0.0, None))[1], self._done.get(step), self._reasons.get(step)
        count = "" if done is None else f"{done} of {total}" if total else str(done)
        line = f"{step}: {', '.join(part for part in (count, reason) if part)}"
        wait = UNCHANGED if reason and line == self._last else QUIET
        if time.monotonic() - self._said >= wait:
            self._last = line
            self._line(line)

    def drop(self, step: str) -> None:
        self._began.pop(step, None)
        self._done.pop(step, None)
        self._reasons.pop(step, None)

    def aside(self, write: Callable[[], None]) -> None:
        with self._lock:
            write()

    def end(self, step: str, note: str = "") -> None:
        began, _ = self._began.get(step, (time.monotonic(), None))
        self.drop(step)
        self._line(f"{step}: {note or 'done'} ({time.monotonic() - began:.1f} s)")

    def say(self, text: str) -> None:
        self._line(text)

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")


class RichObserver(ClosingObserver):
    """A live display: a spinner and a bar for each step in progress, a tick for each finished step."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self.console = Console(file=stream, highlight=False)
        self._lock = threading.RLock()
        self._progress: Progress | None = None
        self._tasks: dict[str, tuple[TaskID, float]] = {}

    def _open(self) -> Progress:
        if self._progress is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
            from rich.table import Column

            utf8 = (self.console.encoding or "").lower().startswith("utf")
            columns: list[Any] = [
                SpinnerColumn("dots" if utf8 else "line"),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                # Takes the rest of the line and is cut there: a second line would move the rows.
                TextColumn(
                    "{task.fields[reason]}",
                    style="dim",
                    markup=False,
                    table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
                ),
            ]
            self._progress = Progress(*columns, console=self.console, transient=True, expand=True)
            self._progress.start()
        return self._progress

    def begin(self, step: str, total: int | None = None) -> None:
        with self._lock:
            self._tasks[step] = (self._open().add_task(step, total=total, reason=""), time.monotonic())

    def advance(self, step: str, done: int) -> None:
        with self._lock:
            if step in self._tasks and self._progress is not None:
                self._progress.update(self._tasks[step][0], completed=done)

    def waiting(self, step: str, reason: str) -> None:
        with self._lock:
            if step in self._tasks and self._progress is not None:
                self._progress.update(self._tasks[step][0], reason=shown(reason))

    def drop(self, step: str) -> None:
        with self._lock:
            task, _ = self._tasks.pop(step, (None, 0.0))
            if task is not None and self._progress is not None:
                self._progress.remove_task(task)

    def aside(self, write: Callable[[], None]) -> None:
        """Write above the rows: they are removed, and drawn again below the text."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
            try:
                write()
            finally:
                if self._progress is not None:
                    self._progress.start()

    def end(self, step: str, note: str = "") -> None:
        with self._lock:
            _, began = self._tasks.get(step, (None, time.monotonic()))
            self.drop(step)
            self._print(f"{step}: {note or 'done'} ({time.monotonic() - began:.1f} s)", "green", "✓ ")

    def say(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}", "yellow")

    def _print(self, text: str, style: str = "", mark: str = "") -> None:
        from rich.text import Text

        utf8 = (self.console.encoding or "").lower().startswith("utf")
        self.console.print(Text.assemble((mark if utf8 else "", style), (shown(text), "" if mark else style)))

    def close(self) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
                self._tasks.clear()


# Output of programs in nodes, which is never changed.
_FOREIGN: Final = frozenset({"stdout", "stderr"})


class Console:
    """The output of one verb. `exit_code` is the exit code of the process when nothing is raised."""

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
        """The observer of progress, made at its first use: live on a terminal that can move its cursor, else plain."""
        if self._observer is None:
            live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")
            self._observer = RichObserver(sys.stderr) if live else PlainObserver(sys.stderr)
        return self._observer

    @property
    def rich(self) -> rich.console.Console:
        """rich's console on stdout, for bars and colours; wide without a terminal, so that lines are not cut."""
        from rich.console import Console as RichConsole

        tty = sys.stdout.isatty()
        return RichConsole(file=sys.stdout, width=None if tty else 200, highlight=False, soft_wrap=not tty)

    def result(self, data: Mapping[str, Any], text: str = "") -> None:
        """Print the verb's result: `data` as JSON, or `text`."""
        self.close()
        if self.json:
            return written(json.dumps(_named(data), indent=2, default=str) + "\n", verbatim=True)
        return written(text.rstrip("\n") + "\n")

    def show(self, text: str) -> None:
        """Print a first part of the result; with JSON nothing, because the whole result comes at the end."""
        if self._observer is not None:
            self._observer.close()  # it opens again when the next step begins
        if not self.json:
            written(text + "\n")

    def part(self, text: str) -> None:
        """Print a part of the result while steps are in progress; with JSON nothing."""
        if self.json:
            return
        if self._observer is None:
            written(text + "\n")
        else:
            self._observer.aside(lambda: written(text + "\n"))

    def fail(self, *problems: Problem, code: int = CheckError.exit_code) -> None:
        """Print these problems and set the exit code, after the result."""
        for problem in problems:
            print(problem, file=sys.stderr)
            self.exit_code = code

    def say(self, text: str) -> None:
        """Print a remark on stderr."""
        self.observer.say(text)

    def close(self) -> None:
        """End the live display, so that it does not overwrite later output."""
        if self._observer is not None:
            self._observer.close()

    def confirm(self, question: str) -> bool:
        """Ask the user; False without a terminal."""
        self.close()
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        print(f"{shown(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _named(data: Any) -> Any:
    """The data, with the program's name as the user started it in all texts (see heddle/base/progname.py)."""
    if isinstance(data, str):
        return as_started(data)
    if isinstance(data, Mapping):
        return {key: value if key in _FOREIGN else _named(value) for key, value in data.items()}
    return [_named(each) for each in data] if isinstance(data, list | tuple) else data


def problems_json(kind: str, code: int, problems: Sequence[Problem]) -> dict[str, Any]:
    """The JSON document of an error: the exit code, the kind (InputError, MachineError, ...) and every problem."""
    rows = [{"where": p.where, "what": p.what, "why": p.why, "hint": p.hint} for p in problems]
    return {"error": {"exit_code": code, "kind": kind, "problems": rows}}


def colour_wanted(stream: Any) -> bool:
    """Whether the stream is a terminal with colours (NO_COLOR and TERM=dumb switch them off)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
