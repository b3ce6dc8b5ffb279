"""The output of a verb: one result on stdout, progress and remarks on stderr.

With `--format json` stdout is one JSON document, errors included. Progress is a live display on a terminal, plain lines
elsewhere (CI, a file, a pipe).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import CheckError, Problem, shown
from heddle.base.progname import as_started
from heddle.base.tables import written

if TYPE_CHECKING:
    import rich.console

    from heddle.cli.progress import ClosingObserver


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
        """The observer of progress: live display or plain lines, made at its first use."""
        if self._observer is None:
            from heddle.cli.progress import observer_for

            self._observer = observer_for(sys.stderr)
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
