"""The PFC watchdog's clock: when a storm begins and ends, with a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from heddle.switch.pfc.loop import DETECT
from heddle.switch.pfc.rows import RowState
from heddle.switch.pfc.watchdog import Watchdog
from heddle.switch.queues import cells
from tests.pfcreference import Timers

SECOND = 10**9
ROW = 11  # class 3 of port 1


@dataclass
class Port:
    """One gate, the numbers that a watchdog goes by, and what it has opened."""

    dog: Watchdog
    timers: Timers
    queues: Any
    rows: RowState
    opened: list[int] = field(default_factory=list)

    def until(self, end: int) -> None:
        """Let the time pass, and have the watchdog look whenever it wants to."""
        while (due := self.timers.due(end)) is not None:
            when, kind, index = due
            (self.dog.look if kind == DETECT else self.dog.calm)(index, when)

    def close(self, now: int) -> None:
        self.queues.agent["closed_since_ns"][ROW] = now
        self.rows.heard[ROW] = now
        self.dog.closed(ROW, now)

    @property
    def state(self) -> int:
        return int(self.queues.agent["watchdog"][ROW])


def made(queues: Any) -> Port:
    rules = SimpleNamespace(detect_ns=[SECOND] * 16, restore_ns=[2 * SECOND] * 16, action=[1] * 16)
    ports = {1: SimpleNamespace(ref="rtsw1:eth1", peer_ref="host1:eth1")}
    world = SimpleNamespace(queues=queues, ports=ports, log=SimpleNamespace(say=lambda kind, text: None))
    timers, rows = Timers(), RowState(16)
    opened: list[int] = []

    def release(index: int, now: int) -> None:
        opened.append(now)
        queues.agent["closed_since_ns"][index] = 0
        dog.opened(index)

    dog = Watchdog(cast(Any, world), cast(Any, rules), timers, rows, release)
    return Port(dog, timers, queues, rows, opened)


@pytest.fixture
def port() -> Iterator[Port]:
    queues = SimpleNamespace(cells=np.zeros(16, cells.CELL), agent=np.zeros(16, cells.AGENT))
    found = made(queues)
    yield found
    found.timers.close()


def test_packets_that_wait_for_the_detection_time_are_a_storm(port: Port) -> None:
    port.queues.cells["depth"][ROW] = 5000
    port.close(10 * SECOND)
    port.until(11 * SECOND - 1)
    assert (port.state, port.opened) == (0, [])
    port.until(11 * SECOND)
    assert (port.state, port.opened) == (1, [11 * SECOND])
    assert port.queues.agent["storms"][ROW] == 1 and port.queues.agent["storm_since_ns"][ROW] == 11 * SECOND


def test_time_counts_from_when_packets_wait_and_not_from_when_the_gate_was_closed(port: Port) -> None:
    port.close(10 * SECOND)
    port.until(10 * SECOND + 900_000_000)
    port.queues.cells["depth"][ROW] = 5000
    port.until(11 * SECOND + 850_000_000)
    assert port.state == 0
    port.until(12 * SECOND)
    (opened,) = port.opened
    assert 11.9 * SECOND <= opened <= 11.92 * SECOND


def test_detection_starts_again_after_the_queue_was_empty(port: Port) -> None:
    port.queues.cells["depth"][ROW] = 5000
    port.close(10 * SECOND)
    port.queues.cells["depth"][ROW] = 0
    port.until(11 * SECOND)
    port.queues.cells["depth"][ROW] = 5000
    port.until(11 * SECOND + 990_000_000)
    assert port.opened == []
    port.until(12 * SECOND + 20_000_000)
    assert len(port.opened) == 1


def test_detection_starts_again_when_a_packet_leaves(port: Port) -> None:
    port.queues.cells["depth"][ROW] = 5000
    port.close(10 * SECOND)
    port.queues.cells["last_out_ns"][ROW] = 10 * SECOND + 600_000_000
    port.until(11 * SECOND + 599_999_999)
    assert port.state == 0
    port.until(11 * SECOND + 600_000_000)
    assert port.state == 1


def test_a_storm_is_over_when_no_pause_has_come_for_the_restoration_time(port: Port) -> None:
    port.queues.cells["depth"][ROW] = 5000
    port.close(10 * SECOND)
    port.until(11 * SECOND)
    port.rows.heard[ROW] = 11 * SECOND + 500_000_000
    port.until(13 * SECOND + 499_999_999)
    assert port.state == 1
    port.until(13 * SECOND + 500_000_000)
    assert port.state == 0 and not port.rows.storms()


def test_a_storm_that_an_agent_before_has_left_ends_in_time(port: Port) -> None:
    port.queues.agent["watchdog"][ROW] = 2
    successor = made(port.queues)
    successor.dog.adopt(20 * SECOND)
    successor.until(22 * SECOND - 1)
    assert successor.state == 2 and successor.rows.storms() == [ROW]
    successor.until(22 * SECOND)
    assert successor.state == 0 and not successor.rows.storms()
    successor.timers.close()
