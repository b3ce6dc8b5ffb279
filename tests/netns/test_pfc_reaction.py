"""How soon ports stop in a fabric of sixteen switches, with one agent for all of them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from heddle.switch.pfc.reaction import REACTION_BINS, REACTION_STEP_NS
from tests.netns.pfc_lab import LOSSLESS, pfc_lab, until


def test_half_of_all_pauses_hold_within_a_millisecond_with_sixteen_switches(tmp_path: Path) -> None:
    """An incast over the whole fabric, at a rate that a small machine carries with ease."""
    shape = {"racks": 12, "weights": (1, 1, 1, 1), "hosts_per_rack": 1}
    with pfc_lab(tmp_path, **shape, link={"host": "10mbit", "fabric": "10mbit"}) as net:
        assert len(net.lab.fabric.switches) == 16
        *senders, sink = [host.name for host in net.lab.fabric.hosts]
        with net.loading([(name, sink, LOSSLESS) for name in senders]):
            until(lambda: net.closed(f"{senders[0]}:eth1"))
            time.sleep(3)
        until(net.at_rest, seconds=10)
        table = net.queues.agent
        bins = np.ascontiguousarray(table["spare"]).view("<u4").reshape(-1, REACTION_BINS).sum(axis=0)
        middle = int(np.searchsorted(np.cumsum(bins), bins.sum() / 2))  # the bin of the median
        worst = table["reaction_max_ns"].max() / 1e6
        print(f"{bins.sum()} pauses: median below {REACTION_STEP_NS * 2**middle / 1e6:.3f} ms, worst {worst:.3f} ms")
        assert bins.sum() > 100
        assert REACTION_STEP_NS * 2**middle <= 1_000_000
