"""What a column of counters means. Readers of kept runs import it, and no transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """A counter that a transport reports for each queue pair, besides packets, bytes and marks, which the NIC counts.

    key:  its name in JSON rows and in `QpEnd.counters`. unit: packets, times, ...
    text: the label that the table prints after the sum over all queue pairs: `retransmitted`.
    line: the line of the table that shows it: `packets` (with wrong ICRCs), `order` (packets that arrived before an
          earlier one); empty: in JSON only.
    mean: a state at the end of the run: that of all queue pairs is the mean, not the sum.
    """

    key: str
    unit: str
    text: str
    line: Literal["", "packets", "order"] = ""
    mean: bool = False
