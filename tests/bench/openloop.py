"""Packet trimming with open loops: n hosts send to one at line rate, 4 KB frames that are trimmed to 256 bytes.

Trimmed packets go first. So of the line, data has x, with x + (n - x) / 16 = 1: each packet is 16 times as long as its
head. Beyond 16 senders there is no data, and the trim queue drops what the line cannot carry: (n - 16) / n.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.base.events import Observer
from heddle.kernel.libbpf import ensure_bpffs
from heddle.switch.queues.cells import CAUSES, LabQueues
from heddle.switch.queues.classes import row
from tests.machine import until
from tests.netns.blaster import Blast, blast
from tests.netns.static_fabric import static_fabric

from . import Figure, at_least

_RATES: Final = (100_000_000, 25_000_000)  # bit/s; the second where this machine cannot send at the first
_PAYLOAD, _FRAME, _HEAD = 4036, 4094, 256  # bytes: of a packet, of its frame, of a trimmed frame
_SECONDS: Final = 2.0
_KEEPS_UP: Final = 0.98
_MIDDLE: Final = (0.4, 0.85)  # shares of all packets: queues are full, and no sender has finished
_QUEUES: Final = {"lossless": [], "ecn": {"enabled": False}, "trimming": {"queue": 5, "size": _HEAD - 14}}


def figures(observer: Observer) -> Iterator[Figure]:
    """Of 8, 10 and 20 senders."""
    ensure_bpffs()
    for senders in (8, 10, 20):
        observer.say(f"{senders} to one")
        for rate in _RATES:
            data, dropped, sent, left = _open_loop(senders, rate)
            if sent >= _KEEPS_UP * senders:
                break
        name = f"trimming, {senders}:1 at {rate // 10**6} Mb/s:"
        share = max(0.0, (16 - senders) / 15)
        yield at_least(f"{name} what the senders send", sent, "lines", _KEEPS_UP * senders)
        yield Figure(f"{name} data", data, "line", "", f"{share:.3f} +-5%", abs(data - share) <= 0.05 * max(share, 0.2))
        lost, most = max(0.0, (senders - 16) / senders), 0.03 * (senders > 16)
        yield Figure(f"{name} TrimDrop", dropped, "of trims", "", f"{lost:.2f} +-{most:g}", abs(dropped - lost) <= most)
        yield Figure(f"{name} Trim - TrimSent - TrimDrop", left, "packets", "", "0", left == 0)


def _open_loop(senders: int, rate: int) -> tuple[float, float, float, int]:
    """Data's share of the line, drops' share of trims and the senders' rate, in the middle of the time.

    And trims that are neither sent nor dropped, at the end.
    """
    keys = {"queues": _QUEUES, "link": {"host": f"{rate}bit"}}
    with (
        static_fabric("flow", weights=(1,), racks=1, hosts_per_rack=senders + 1, **keys) as lab,
        LabQueues.pinned(lab.fabric) as queues,
    ):
        hosts = lab.fabric.hosts
        count = round(_SECONDS * rate / 8 / _FRAME)
        port = hosts[-1].ports[0]
        at = row(queues.ids[port.peer_node, port.peer_port], 0)
        own = [row(queues.ids[each.name, each.ports[0].name], 0) for each in hosts[:-1]]
        seen: list[tuple[float, ...]] = []

        def look() -> None:
            cell = queues.cells[at]
            now = time.monotonic()
            seen.append((now, cell["out_bytes"], cell["trims"], cell["drops"][CAUSES.index("trim")],
                         queues.cells["out_bytes"][own].sum()))  # fmt: skip

        blast(lab, [Blast(each.name, hosts[-1].name, count, _PAYLOAD) for each in hosts[:-1]], watch=look, hear=False)
        until(lambda: not queues.cells["depth"].any())
        cells = queues.cells[::CLASSES]
        left = int(cells["trims"].sum() - cells["trim_sent"].sum() - cells["drops"][:, CAUSES.index("trim")].sum())
    times = np.array(seen, np.float64)
    sent = times[:, 4] / times[-1, 4]
    middle = times[(sent > _MIDDLE[0]) & (sent < _MIDDLE[1])]
    seconds, *moved = middle[-1] - middle[0]
    line = rate / 8 * seconds
    return moved[0] / line, moved[2] / max(1.0, moved[1]), moved[3] / line, left
