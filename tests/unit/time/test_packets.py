"""Packets in queues with pauses: by hand, against max-min rates, and with a victim; all bits arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from heddle.base.problems import CheckError
from heddle_plugins.time.engine import Course, NetworkState
from heddle_plugins.time.maxmin import Incidence, max_min
from heddle_plugins.time.packets import PacketEngine, Switching
from heddle_plugins.time.tasks import Tasks
from tests.unit.time.test_maxmin import paths
from tests.unit.time.test_pauses import TREE

BITS = 1000.0  # of a packet
RATES = (25.0, 25.0, 100.0, 2.0, 25.0)  # packets a second, of the links of TREE
NEVER = 1000.0  # packets, more than are in flight


def engine_of(
    found: Incidence, rates: tuple[float, ...], jobs: Sequence[tuple[int, ...]], *, xoff: float = 10, window: int = 64,
    shared: float = 1e6, burst: float = 0,
) -> PacketEngine:  # fmt: skip
    """Each flow sends one message; flows of the second job again and again."""
    flows, courses = iter(range(found.flows)), list[Course]()
    for packets in jobs:
        tasks = Tasks(1)
        for many in packets:
            tasks.add(np.array([next(flows)]), np.array([many * BITS]))
        tasks.ends = [[*range(len(packets))]]
        courses.append(Course("", [tasks], repeat=0 if courses else 1))
    flight = np.full(found.flows, window * BITS)
    state = NetworkState(found, np.array(rates) * BITS, np.full(found.flows, np.inf), 0.0, xoff * BITS, flight)
    links = len(rates)
    rules = Switching(BITS, xoff * BITS, 0.7 * xoff * BITS, [burst * BITS] * links, [0] * links, [shared * BITS])
    return PacketEngine(state, courses, rules, log=True)


def simulated(
    found: Incidence, rates: tuple[float, ...], packets: tuple[int, ...], *, xoff: float = 10, window: int = 64,
    shared: float = 1e6, burst: float = 0,
) -> tuple[PacketEngine, list[float]]:  # fmt: skip
    """Each flow sends one message; the seconds at which each has arrived."""
    engine = engine_of(found, rates, [packets], xoff=xoff, window=window, shared=shared, burst=burst)
    engine.run()
    order, _, _, end = engine.messages
    assert engine.times.bits == pytest.approx(found.load(np.array(packets) * BITS), rel=1e-9), "all bits have crossed"
    assert engine.times.packets == found.load(np.array(packets, float)).sum()
    return engine, end[np.argsort(order)].tolist()


def test_a_full_link_is_shared_in_turns_of_eight_packets() -> None:
    both = paths([0], [0], links=1)
    # Packets 1 to 8 and 17 to 18 are of the first flow; a packet leaves every second, the first one at once.
    engine, ends = simulated(both, (1.0,), (10, 10))
    assert ends == pytest.approx([17, 19]) and engine.times.full_s == pytest.approx([19])
    assert simulated(both, (1.0,), (10, 10), burst=2)[1] == pytest.approx([15, 17]), "the bucket has two packets"
    with pytest.raises(CheckError, match="a link has no rate"):
        simulated(both, (0.0,), (1, 1))


def test_queues_that_do_not_reach_xoff_share_by_max_min() -> None:
    found, rates = paths([0, 2], [1, 2], [3, 4], links=5), (25.0, 25.0, 10.0, 25.0, 7.0)
    fair = max_min(found, np.array(rates))
    many = tuple(round(40 * each) for each in fair.tolist())
    _, ends = simulated(found, rates, many, xoff=NEVER, window=16)
    assert ends == pytest.approx([40, 40, 40], rel=0.05)
    assert simulated(found, rates, (many[0] // 2, *many[1:]), xoff=NEVER)[1] != pytest.approx([40] * 3, rel=0.05)


def test_a_victim_waits_behind_packets_for_a_slow_link() -> None:
    packets = 100, 100
    free = simulated(TREE, RATES, packets, xoff=NEVER)[1]
    assert free == pytest.approx([99 / 2, 99 / 25], rel=0.02)
    slow, victim = simulated(TREE, RATES, packets)[1]
    # Up to Xoff of its packets pass before the first pause, and the queue ahead at the end is not its own.
    assert slow == pytest.approx(99 / 2, rel=0.02) and 0.8 * slow < victim < slow
    assert simulated(TREE, RATES, packets, window=8)[1] == pytest.approx(free, rel=0.05), "no link holds Xoff"
    little = simulated(TREE, RATES, packets, xoff=NEVER, shared=20)[1]
    assert little[1] > 0.6 * slow, "a small buffer pauses sooner"


@pytest.mark.parametrize("shared", [1e6, 20])  # with a small buffer, Xoff falls below Xon
def test_a_ring_of_pauses_ends_it_also_beside_a_job_that_goes_on(shared: float) -> None:
    # Links 0, 1 and 2 are a ring of switches; each flow comes from a host and takes two of them to the next host.
    turns = [[3, 0, 1, 6], [4, 1, 2, 7], [5, 2, 0, 8]]
    rates, packets = (25.0,) * 3 + (100.0,) * 6, (200,) * 3
    stopped = engine_of(paths(*turns, links=9), rates, [packets], shared=shared).run()
    assert stopped.ring == (0, 1, 2) and stopped.ends == [None]
    aside = engine_of(paths(*turns, [9], links=10), (*rates, 1000.0), [packets, (1,)], shared=shared)
    assert aside.run().ring == (0, 1, 2)
    for xoff, window, flows in ((NEVER, 64, 3), (10, 4, 3), (10, 64, 2)):
        goes = engine_of(paths(*turns[:flows], links=9), rates, [packets[:flows]], xoff=xoff, window=window).run()
        assert goes.ring == () and goes.ends[0] is not None
