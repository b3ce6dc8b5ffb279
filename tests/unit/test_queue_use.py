"""What a run says of its queues: the difference of two readings, of all ports and classes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.runs.parts import QueueUse
from heddle.runs.rowreader import COLUMNS
from heddle.runs.series import Series
from heddle.runs.writer import QueueTotals, use_of
from heddle.switch.queues.cells import CAUSES
from heddle.switch.queues.portids import port_ids, row


@pytest.fixture
def fabric() -> Fabric:
    return load_fabric("tiny").fabric


def at(fabric: Fabric, ref: str) -> int:
    node, _, port = ref.partition(":")
    return row(port_ids(fabric)[node, port], 3)


def used(fabric: Fabric) -> QueueUse:
    rows = (len(port_ids(fabric)) + 1) * 8
    counts, drops = np.full((rows, len(COLUMNS)), 1000, np.int64), np.full((rows, len(CAUSES) + 1), 100, np.int64)
    before = QueueTotals(counts, drops, 7)
    after = QueueTotals(counts.copy(), drops.copy(), 9)
    host, near, far = (at(fabric, ref) for ref in ("host1:eth1", "rtsw1:eth1", "ctsw1:eth1"))
    for place, name, more in (
        (host, "paused_ns", 3_000_000), (near, "paused_ns", 2_500_000), (near, "marks", 40), (far, "marks", 2),
        (far, "pfc_sent", 5), (near, "pfc_sent", 6),
    ):  # fmt: skip
        after.counts[place, COLUMNS.index(name)] += more
    after.drops[near, CAUSES.index("headroom")] += 11
    after.drops[far, CAUSES.index("headroom")] += 4
    after.drops[far, -1] += 2
    columns = {name: np.zeros((3, 2), np.int64) for name in COLUMNS}
    columns["peak"][:] = [[90_000, 10], [50_000, 60_000], [70_000, 1]]
    seen = Series(np.array([0.01, 0.02]), np.array([host, near, far], np.int32), columns, 0.01, 2, 0.0)
    return use_of(fabric, before, after, seen)


def test_counts_are_of_the_run_alone_and_of_all_ports_together(fabric: Fabric) -> None:
    found = used(fabric)
    assert (found.marks, found.pauses, found.storms) == (42, 11, 2)
    assert (found.drops, found.dropped) == ({"headroom": 15, "lost": 2}, 17)
    assert (found.paused_ports, found.paused_hosts, found.paused_ms) == (2, 1, 5.5)


def test_the_deepest_queue_is_a_switchs_by_its_highest_bucket(fabric: Fabric) -> None:
    found = used(fabric)
    assert (found.deepest, found.deepest_at, found.bucket_ms) == (70_000, "ctsw1:eth1 class 3", 10.0)
