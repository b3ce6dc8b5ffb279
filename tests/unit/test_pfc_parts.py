"""Pause frames, deadlines, layout, log and locks of agent and keeper, and the watchdog, with a simulated clock."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.l2 import Ether

from heddle.base.ethernet import MAX_QUANTA, PFC_FRAME_BYTES, PfcFrame, pfc_frame, quanta_ns, read_pfc_frame
from heddle.base.process import is_stopped, start_of
from heddle.fabric.shapes import clos
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.pfc import control, world
from heddle.switch.pfc.agent import Watchdog
from heddle.switch.pfc.control import AgentState, alive
from heddle.switch.pfc.loop import DETECT, RowState
from heddle.switch.queues import cells
from heddle.switch.queues.classes import port_ids
from tests.machine import until
from tests.pfcreference import DeadlineTable


def test_the_layout_agrees_with_the_fabric() -> None:
    fabric = clos.build(ClosSpec(name="lay", racks=2, ctsw=2, hosts_per_rack=2))
    spaces = {node.name: Path("/run/netns", node.name) for node in fabric.nodes}
    layout = world.AgentConfig(Path("/somewhere"), spaces, fabric)
    again = world.AgentConfig.from_json(layout.to_json())
    assert (again.directory, again.spaces) == (layout.directory, spaces)
    assert port_ids(again.fabric) == port_ids(fabric)
    for node, other in zip(fabric.nodes, again.fabric.nodes, strict=True):
        assert (node.name, node.role, node.level) == (other.name, other.role, other.level)
        for port, twin in zip(node.ports, other.ports, strict=True):
            for name in ("ref", "peer_ref", "rate_bps", "mtu"):
                assert getattr(port, name) == getattr(twin, name)


def test_the_log_keeps_few_lines_of_a_kind_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("heddle.switch.pfc.world.time.time", lambda: now[0])
    log = world.Log(tmp_path / "pfc.log")
    for number in range(100):
        log.say("storm", f"number {number}")
    log.say("link", "another kind")
    lines = (tmp_path / "pfc.log").read_text().splitlines()
    assert sum("storm" in line for line in lines) == 5
    assert lines[-1].endswith("link: another kind")
    now[0] += 1
    log.say("storm", "later")
    assert "later (and 95 more lines like the last)" in (tmp_path / "pfc.log").read_text().splitlines()[-1]


def test_the_log_is_bounded_and_a_link_in_the_directory_leads_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "pfc.log"
    log = world.Log(path)
    path.write_bytes(bytes(5 << 20))
    log.say("storm", "one more")
    assert path.read_text().endswith("storm: one more\n")
    assert path.stat().st_size < 100
    # A link in the labs directory leads the agent nowhere.
    elsewhere = tmp_path / "elsewhere"
    path.unlink()
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        world.Log(tmp_path / "pfc.log")
    assert not elsewhere.exists()


def test_a_process_works_if_it_is_the_recorded_one_not_stopped_and_its_heartbeat_is_new() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        now, started = time.monotonic_ns(), start_of(child.pid) or 0
        try:
            assert control._process(child.pid, started, now) == (child.pid, started, True)
            assert control._process(child.pid, started, now - 4 * 10**9) == (child.pid, started, False)
            assert control._process(child.pid, started + 1, now) is None, "another process has its pid"
            child.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(child.pid))
            assert control._process(child.pid, started, now) == (child.pid, started, False)
        finally:
            child.kill()
    assert control._process(child.pid, started, now) is control._process(0, 0, now) is None
    assert [AgentState(7, None, stuck).fault("keeper") for stuck in ((), (8,))] == [
        "is not running", "does not work: it is stopped or frozen (process 8)"
    ]  # fmt: skip
    assert AgentState(7, None).fault("agent") == ""
    assert alive("nolab") == AgentState(None, None)


MAC = bytes.fromhex("02a1b2c3d4e5")
CASES = ({3: 0xFFFF}, {3: 0}, {0: 1, 7: 2}, {number: 1000 + number for number in range(8)}, dict[int, int]())


@pytest.mark.parametrize("quanta", CASES)
def test_a_parsed_frame_has_the_fields_it_was_built_from_and_scapy_builds_the_same(quanta: dict[int, int]) -> None:
    frame = pfc_frame(MAC, quanta)
    assert len(frame) == PFC_FRAME_BYTES
    assert read_pfc_frame(frame) == PfcFrame(MAC, quanta)
    words = {f"c{number}_enabled": int(number in quanta) for number in range(8)}
    words |= {f"c{number}_pause_time": quanta.get(number, 0) for number in range(8)}
    theirs = Ether(dst="01:80:c2:00:00:01", src="02:a1:b2:c3:d4:e5", type=0x8808)
    theirs /= MACControlClassBasedFlowControl(**words)
    assert frame[: len(bytes(theirs))] == bytes(theirs)[:PFC_FRAME_BYTES]


@pytest.mark.parametrize("quanta", [{8: 1}, {-1: 1}, {0: MAX_QUANTA + 1}, {0: -1}])
def test_values_outside_a_frames_fields_are_refused(quanta: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="class"):
        pfc_frame(MAC, quanta)
    with pytest.raises(ValueError, match="MAC of 5 bytes"):
        pfc_frame(MAC[:5], {})


def test_other_frames_and_times_whose_bit_is_clear_are_not_read() -> None:
    frame = pfc_frame(MAC, {3: 5})
    pause = bytearray(frame)
    pause[14:16] = b"\0\1"  # the older PAUSE
    for other in (b"", frame[:33], b"\xff" + frame[1:], bytes(pause), frame[:12] + b"\x08\0" + frame[14:]):
        assert read_pfc_frame(other) is None
    # A time whose bit is clear is not read.
    clear = bytearray(frame)
    clear[18:20] = b"\xff\xff"  # of class 0
    assert read_pfc_frame(bytes(clear)) == PfcFrame(MAC, {3: 5})
    # A quantum is 512 bit times of the link.
    assert quanta_ns(1, 100_000_000) == 5120
    assert quanta_ns(65535, 100_000_000) == pytest.approx(335_539_200)
    assert quanta_ns(65535, 25_000_000) == 1_342_156_800


SECOND = 10**9
ROW = 11  # class 3 of port 1


@dataclass
class Port:
    """One gate, the numbers that a watchdog goes by, and what it has opened."""

    dog: Watchdog
    timers: DeadlineTable
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
    timers, rows = DeadlineTable(), RowState(16)
    opened: list[int] = []

    def release(index: int, now: int) -> None:
        opened.append(now)
        queues.agent["closed_since_ns"][index] = 0
        dog.opened(index)

    dog = Watchdog(cast(Any, world), cast(Any, rules), timers, rows, release)
    return Port(dog, timers, queues, rows, opened)


@pytest.fixture
def port() -> Port:
    queues = SimpleNamespace(cells=np.zeros(16, cells.CELL), agent=np.zeros(16, cells.AGENT))
    return made(queues)


def test_packets_that_wait_for_the_detection_time_are_a_storm_until_no_pause_comes_for_a_time(port: Port) -> None:
    port.queues.cells["depth"][ROW] = 5000
    port.close(10 * SECOND)
    port.until(11 * SECOND - 1)
    assert (port.state, port.opened) == (0, [])
    port.until(11 * SECOND)
    assert (port.state, port.opened) == (1, [11 * SECOND])
    assert port.queues.agent["storms"][ROW] == 1 and port.queues.agent["storm_since_ns"][ROW] == 11 * SECOND
    port.rows.heard[ROW] = 11 * SECOND + 500_000_000
    port.until(13 * SECOND + 499_999_999)
    assert port.state == 1
    port.until(13 * SECOND + 500_000_000)
    assert port.state == 0 and not port.rows.storms()


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


def test_a_storm_that_an_agent_before_has_left_ends_in_time(port: Port) -> None:
    port.queues.agent["watchdog"][ROW] = 2
    successor = made(port.queues)
    successor.dog.adopt(20 * SECOND)
    successor.until(22 * SECOND - 1)
    assert successor.state == 2 and successor.rows.storms() == [ROW]
    successor.until(22 * SECOND)
    assert successor.state == 0 and not successor.rows.storms()
