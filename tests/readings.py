"""What tests and figures read of a running lab, and no verb does alone."""

from __future__ import annotations

import struct
from pathlib import Path

from heddle.kernel.fib import port_names
from heddle.kernel.namespace import NodeHandle, inside
from heddle.kernel.netlink import attributes
from heddle.kernel.uapi import TCA_STATS2
from heddle.lab.lab import Lab
from heddle.runs.series import Recorded
from heddle.runs.store import History
from heddle.switch.hashing.hashing import SwitchHashing, hashing_in, pin_dir
from heddle.switch.hashing.maps import Tables
from heddle.switch.queues import red

_TCA_STATS_APP = 4
_XSTATS = struct.Struct("=IIII")  # struct tc_red_xstats: early, pdrop, other, marked


def read_hashing(lab: str, handle: NodeHandle) -> SwitchHashing:
    """The hashing of a switch now."""
    names = port_names(handle)
    with Tables.pinned(pin_dir(lab, handle.name)) as tables, inside(handle.netns):
        return hashing_in(tables, handle.name, names)


def read_marks(netns: Path) -> dict[tuple[str, int], int]:
    """(port, class) -> packets that left its RED marked, since it was created. Modulo 2^32, as the kernel counts.

    The count includes packets that arrived with CE and would have been marked.
    """
    found = {}
    for key, attrs in red._reds(netns).items():
        statistics = attributes(attrs[TCA_STATS2], 0)
        found[key] = _XSTATS.unpack_from(statistics[_TCA_STATS_APP])[3]
    return found


def series_of(lab: Lab, run: str | None = None) -> Recorded:
    """The queues of a run over time; a failed or interrupted run has them too."""
    found = History.of(lab).open(run)
    return found.needed(found.recorded)
