"""The table of a run on the terminal while it is measured: header first, then row by row, then the trailer.

A narrow terminal gets rows of 80 columns. With `--format json` nothing is printed here.
When stdout fails (closed by its reader, a full disk), the run continues and is kept; the error is raised at the end.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from heddle.base.problems import MachineError
from heddle.runs.runtable import WIDE

if TYPE_CHECKING:
    from heddle.cli.console import Console
    from heddle.runs.results import RunResult
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import RunHead, SizeRow


class LiveTable:
    """Prints the parts of one table as they arrive."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._head: RunHead | None = None
        self._narrow = False
        self._lost: BrokenPipeError | MachineError | None = None

    def head(self, head: RunHead) -> None:
        """Print all lines up to the names of the columns."""
        self._head = head
        self._narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
        self._print(*head.lines(narrow=self._narrow))

    def row(self, row: SizeRow) -> None:
        """Print one line."""
        if self._head is not None:
            self._print(self._head.row(row, narrow=self._narrow))

    def end(self, result: RunResult) -> None:
        """Print the trailer; with JSON the whole result."""
        if self._lost is not None:
            raise self._lost
        self._out.result(result.to_json(), "\n".join(result.foot()))

    def interrupted(self, record: RunRecord, lasting: bool) -> None:
        """Print the trailer of a run that Ctrl-C ended. lasting: the lab stays up, and the run is kept in it."""
        if self._head is None:
            return
        why = "; ".join(record.failure)
        kept = [f"#run      : {record.id}; ./inv runs lists the runs of {record.header.lab}"] if lasting else []
        self._print(self._head.emulated_line(), *kept, f"# Collective test {why}: {record.header.options.collective}")

    def _print(self, *lines: str) -> None:
        if self._lost is None:
            try:
                self._out.part("\n".join(lines))
            except (BrokenPipeError, MachineError) as error:
                self._lost = error
