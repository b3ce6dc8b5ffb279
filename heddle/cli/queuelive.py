"""`./inv queues --watch`: a table that is redrawn in place on a terminal; elsewhere one table after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from heddle.base.tables import written
from heddle.views.queuetext import PORTS, agent_lines, amount, headroom_lines, port_cells, queues_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from heddle.cli.console import Console
    from heddle.lab.queues import QueueRow, QueuesResult, SwitchRow

_AROUND: Final = 6  # lines around the rows: title, header, blank lines, number of hidden rows
_FEWEST: Final = 3
_GAP: Final = 2  # characters between two columns
_NOTHING: Final = ("-", "ok")  # cells without an event
# Columns (indexes in PORTS) that a narrow terminal leaves out, in this order: history first, current state last.
_DISPENSABLE: Final = (11, 10, 12, 7, 5, 3, 4, 6, 1, 8)


class Screen:
    """The output of readings, for a with block."""

    def __init__(self, stream: TextIO, out: Console) -> None:
        self._live: Live | None = None
        self._began = time.monotonic()
        self._readings = 0
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from rich.live import Live

            # On the alternate screen, as in `top` and `less`: the terminal's text is restored at the end.
            self._live = Live(console=out.rich, auto_refresh=False, screen=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self, result: QueuesResult, rows: Sequence[QueueRow], switches: Sequence[SwitchRow], hidden: int) -> None:
        """Draw one reading."""
        self._readings += 1
        passed = time.monotonic() - self._began
        if self._live is None:
            gap = "\n" if self._readings > 1 else ""
            written(f"{gap}{result.lab}, after {passed:.1f} s\n{queues_text(result, rows, switches, hidden)}\n")
            return
        size = self._live.console.size
        drawn = page(result, rows, switches, hidden, passed, size.width, size.height)
        self._live.update(drawn, refresh=True)


def page(
    result: QueuesResult,
    rows: Sequence[QueueRow],
    switches: Sequence[SwitchRow],
    hidden: int,
    passed: float,
    width: int,
    height: int,
) -> RenderableType:
    """A terminal's page of `height` lines. When not all rows fit, paused rows and deep queues are shown first.

    On a narrow terminal whole columns are left out, empty ones first, so that no number is cut.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = [(line, "") for line in (*_buffers(switches), *headroom_lines(result))]
    lines += [(line, "bold red") for line in agent_lines(result)]
    below = [Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in lines]
    room = max(_FEWEST, height - _AROUND - len(below))
    first = sorted(rows, key=lambda row: (not row.paused, -max(row.depth, row.occupancy), -row.high_water))[:room]
    shown = [row for row in rows if row in first]  # in the fabric's order, so that rows do not move
    table = Table(box=None, pad_edge=False, header_style="bold")
    cells = [port_cells(row) for row in shown]
    columns = _columns(cells, width)
    for at in columns:
        name = PORTS[at]
        table.add_column(name, no_wrap=True, justify="left" if name in ("port", "class", "trims", "drops") else "right")
    for row, words in zip(shown, cells, strict=True):
        styles = _styles(row)
        table.add_row(*(Text(words[at], style=styles[at]) for at in columns))
    more = len(rows) - len(shown)
    hid = len(PORTS) - len(columns) - (not any(row.trims for row in shown))
    wider = f"too narrow for {hid} column{'' if hid == 1 else 's'}" if hid else ""
    said = [f"{more} rows do not fit" if more else "", f"{hidden} quiet" if hidden else "", wider]
    rest = Text(", ".join(each for each in said if each), style="dim", no_wrap=True, overflow="ellipsis")
    title = f"{result.lab}: queues, {passed:.1f} s; Ctrl-C ends"
    return Group(Text(title, style="bold"), table, *([rest] if rest else []), Text(""), *below)


def _columns(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Indexes in PORTS of the columns that fit into `width` characters."""
    widths = [max(map(len, column)) for column in zip(PORTS, *cells, strict=True)]
    kept = [at for at, name in enumerate(PORTS) if name != "trims" or any(words[at] != "-" for words in cells)]
    empty = [at for at in _DISPENSABLE if all(words[at] in _NOTHING for words in cells)]
    for at in (*empty, *(each for each in _DISPENSABLE if each not in empty)):
        if sum(widths[each] + _GAP for each in kept) - _GAP <= width:
            break
        if at in kept:
            kept.remove(at)
    return kept


def _styles(row: QueueRow) -> tuple[str, ...]:
    """One style per cell of `port_cells`: current activity and faults are highlighted."""
    busy = {"depth": "cyan" if row.depth else "dim", "ingress": "cyan" if row.occupancy else "dim"}
    styles: dict[str, Any] = {
        **busy,
        "marks": "yellow" if row.marks else "dim",
        "CE in": "" if row.ce_in else "dim",
        "paused": "bold magenta" if row.paused else "magenta" if row.paused_ms else "dim",
        "watchdog": "dim" if row.watchdog == "ok" else "bold red",
        "trims": "yellow" if row.trims else "dim",
        "drops": "red" if row.dropped else "dim",
    }
    return tuple(styles.get(name, "") for name in PORTS)


def _buffers(switches: Sequence[SwitchRow]) -> list[str]:
    """The switches with the fullest buffers, on one line."""
    fullest = sorted(switches, key=lambda each: -each.used / max(1, each.buffer))[:4]
    words = [f"{each.switch} {amount(each.used)} of {amount(each.buffer)}" for each in fullest if each.used]
    return [f"buffers: {', '.join(words)}"] if words else []
