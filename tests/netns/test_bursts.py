"""Packets of a backlog leave in groups of `queues.burst`, one timer interrupt each, at the port's rate."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.host.limits import HERE, HYSTERESIS
from heddle.lab import lifecycle as life
from tests.netns.flood import flood

pytestmark = pytest.mark.root

RATE, COUNT, BURST = 10_000_000, 120, 2  # a packet of 4 KB takes 3.3 ms, much longer than a timer is late


def test_a_backlog_leaves_in_groups_of_the_size_of_a_burst(name: str) -> None:
    # Only links between switches are slow, all alike: the first of them forms the groups.
    overrides = [f"queues.burst={BURST}", "link.host=1gbit", f"link.fabric={RATE}bit", "queues.pfc.enabled=false"]
    overrides += ["queues.buffer=4MB", "queues.alpha=16"]
    lab = life.up(load_fabric("tiny", name=name, overrides=overrides)).lab
    assert HERE.value(HYSTERESIS) == 1, "up has set it"
    found = flood(lab, COUNT)
    life.down(name)
    frame_s = 8 * found.size / RATE
    later = found.arrivals[8:]  # an idle port sends more at once
    gaps = [after - before for before, after in pairwise(later)]
    groups = 1 + sum(gap > 0.5 * frame_s for gap in gaps)
    # A late interrupt makes a group larger by as much as was missed, so a busy machine has fewer groups, never more.
    assert groups <= len(later) / BURST + 2, f"{groups} groups of {len(later)} packets"
