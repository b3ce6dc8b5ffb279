"""Packet trimming with open loops: n hosts send to one at line rate, 4 KB frames that are trimmed to 256 bytes.

Trimmed packets go first. So of the line, data has x, with x + (n - x) / 16 = 1: each packet is 16 times as long as its
head. Beyond 16 senders there is no data, and the trim queue drops what the line cannot carry: (n - 16) / n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from heddle.base.events import Observer
from heddle.kernel.libbpf import ensure_bpffs
from heddle_plugins.experiments.openloop import open_loop
from tests.netns.static_fabric import static_fabric

from . import Figure, at_least

_RATES: Final = (100_000_000, 25_000_000)  # bit/s; the second where this machine cannot send at the first
_PAYLOAD, _HEAD = 4036, 256  # bytes: of a packet in a frame of 4094, of a trimmed frame
_SECONDS: Final = 2.0
_KEEPS_UP: Final = 0.98
_QUEUES: Final = {"lossless": [], "ecn": {"enabled": False}, "trimming": {"queue": 5, "size": _HEAD - 14}}


def figures(observer: Observer) -> Iterator[Figure]:
    """Of 8, 10 and 20 senders."""
    ensure_bpffs()
    for senders in (8, 10, 20):
        observer.say(f"{senders} to one")
        for rate in _RATES:
            keys = {"queues": _QUEUES, "link": {"host": f"{rate}bit"}}
            with static_fabric("flow", weights=(1,), racks=1, hosts_per_rack=senders + 1, **keys) as lab:
                found = open_loop(lab.fabric, lab.handles(), senders, _PAYLOAD, _SECONDS)
            if found.sent >= _KEEPS_UP * senders:
                break
        name = f"trimming, {senders}:1 at {rate // 10**6} Mb/s:"
        share = max(0.0, (16 - senders) / 15)
        yield at_least(f"{name} what the senders send", found.sent, "lines", _KEEPS_UP * senders)
        near = abs(found.data - share) <= 0.05 * max(share, 0.2)
        yield Figure(f"{name} data", found.data, "line", "", f"{share:.3f} +-5%", near)
        lost, most = max(0.0, (senders - 16) / senders), 0.03 * (senders > 16)
        near = abs(found.dropped - lost) <= most
        yield Figure(f"{name} TrimDrop", found.dropped, "of trims", "", f"{lost:.2f} +-{most:g}", near)
        yield Figure(f"{name} Trim - TrimSent - TrimDrop", found.left, "packets", "", "0", found.left == 0)
