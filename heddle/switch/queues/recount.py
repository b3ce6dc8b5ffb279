"""Ports whose queues are installed again: what was counted there without them is put right.

In:  the queues of a lab, and port ids. Out: nothing but the maps: afterwards these ports are empty, and as many bytes
were counted out as in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from heddle.kernel.grace import grace
from heddle.switch.queues.cells import LINK_DOWN, LabQueues
from heddle.switch.queues.portids import row


@contextmanager
def recounted(live: LabQueues, ports: Collection[int]) -> Iterator[None]:
    """Take these ports out of service for a with block. Packets that come there meanwhile are dropped.

    A port whose link is down is not counted in any case: the PFC agent takes care of it (pfc/linkwatch.py).
    """
    flags = live.links["flags"]
    mine = [number for number in ports if not int(flags[number]) & LINK_DOWN]
    for number in mine:
        flags[number] = int(flags[number]) | LINK_DOWN
    grace()
    try:
        yield
        grace()  # what left just before has arrived
        for number in mine:
            live.reset_port(number)
            rows = slice(row(number, 0), row(number + 1, 0))
            for what in ("packets", "bytes"):
                live.cells[f"out_{what}"][rows] = live.cells[f"in_{what}"][rows]
            live.cells["strays"][rows] = 0
    finally:
        for number in mine:
            flags[number] = int(flags[number]) & ~LINK_DOWN
    live.settle()
