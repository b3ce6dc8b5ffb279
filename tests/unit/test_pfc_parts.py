"""What agent and keeper are made of, as far as it needs no network: deadlines, the layout, the log, locks."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heddle.fabric.shapes import clos
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.pfc import world
from heddle.switch.pfc.control import AgentState, alive, stop
from heddle.switch.queues.portids import port_ids
from tests.pfcreference import Timers

HOLD = """
import sys, time
from pathlib import Path
from heddle.switch.pfc import world
made = world.World.__new__(world.World)
made._locks = world.os.open(Path(sys.argv[1]) / world.LOCKS, world.os.O_RDWR | world.os.O_CREAT)
made.lock(int(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


def test_deadlines_come_in_their_order_and_the_descriptor_tells_of_the_first() -> None:
    timers = Timers()
    now = time.monotonic_ns()
    timers.push(now + 30_000_000, 1, 10)
    timers.push(now + 10_000_000, 2, 20)
    timers.push(now + 20_000_000, 3, 30)
    timers.arm()
    assert timers.due(now) is None
    assert select.select([timers], [], [], 30)[0] == [timers]
    assert time.monotonic_ns() >= now + 10_000_000
    timers.rang()
    late = now + 25_000_000
    assert [timers.due(late), timers.due(late), timers.due(late)] == [
        (now + 10_000_000, 2, 20),
        (now + 20_000_000, 3, 30),
        None,
    ]
    timers.arm()
    assert select.select([timers], [], [], 30)[0] == [timers]
    assert time.monotonic_ns() >= now + 30_000_000
    timers.close()


def test_an_earlier_deadline_that_is_added_later_comes_first() -> None:
    timers = Timers()
    now = time.monotonic_ns()
    timers.push(now + 10**12, 1, 1)
    timers.arm()
    assert select.select([timers], [], [], 0)[0] == []
    timers.push(now + 5_000_000, 2, 2)
    timers.arm()
    assert select.select([timers], [], [], 30)[0] == [timers]
    timers.close()


def test_a_deadline_replaces_that_of_the_same_kind_and_index_and_can_be_cancelled() -> None:
    timers = Timers()
    timers.push(100, 1, 7)
    timers.push(300, 1, 7)
    timers.push(200, 1, 8)
    timers.push(250, 2, 7)
    timers.cancel(1, 8)
    timers.cancel(1, 9)
    assert [timers.due(1000) for _ in range(3)] == [(250, 2, 7), (300, 1, 7), None]
    timers.push(50, 1, 7)
    timers.push(50, 1, 7)
    assert [timers.due(1000), timers.due(1000)] == [(50, 1, 7), None]
    timers.close()


def test_cancelled_deadlines_wake_nobody_up() -> None:
    timers = Timers()
    now = time.monotonic_ns()
    timers.push(now + 1_000_000, 1, 1)
    timers.push(now + 20_000_000, 1, 2)
    timers.cancel(1, 1)
    timers.arm()
    assert select.select([timers], [], [], 30)[0] == [timers]
    assert time.monotonic_ns() >= now + 20_000_000
    timers.rang()
    timers.push(now + 10**12, 1, 3)
    timers.cancel(1, 2)
    timers.arm()
    assert select.select([timers], [], [], 0.05)[0] == []
    timers.close()


def test_a_timer_that_is_early_enough_is_left_and_the_next_deadline_is_set_when_it_has_expired() -> None:
    timers = Timers()
    now = time.monotonic_ns()
    timers.push(now + 2_000_000, 1, 1)
    timers.arm()
    timers.cancel(1, 1)
    timers.push(now + 40_000_000, 1, 2)
    timers.arm()
    assert select.select([timers], [], [], 30)[0] == [timers]  # for the deadline that was cancelled
    timers.rang()
    assert timers.due(now + 30_000_000) is None
    timers.arm()
    assert select.select([timers], [], [], 30)[0] == [timers]
    assert time.monotonic_ns() >= now + 40_000_000
    assert timers.due(time.monotonic_ns()) == (now + 40_000_000, 1, 2)
    timers.close()


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
            assert (port.ref, port.peer_ref, port.rate_bps, port.mtu) == (
                twin.ref,
                twin.peer_ref,
                twin.rate_bps,
                twin.mtu,
            )


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


def test_a_log_never_grows_beyond_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "pfc.log"
    log = world.Log(path)
    path.write_bytes(bytes(5 << 20))
    log.say("storm", "one more")
    assert path.read_text().endswith("storm: one more\n")
    assert path.stat().st_size < 100


def test_a_link_in_the_labs_directory_leads_the_agent_nowhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "pfc.log").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        world.Log(tmp_path / "pfc.log")
    assert not elsewhere.exists()


def test_running_processes_are_recognised_by_locks_and_not_by_files(tmp_path: Path) -> None:
    assert alive("any", tmp_path) == AgentState(None, None)
    stop("any", tmp_path)
    held = []
    for role in (world.AGENT, world.KEEPER):
        argv = [sys.executable, "-c", HOLD, str(tmp_path), str(role)]
        held.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]))
        assert held[-1].stdout is not None
        assert held[-1].stdout.readline() == "held\n"
    assert alive("any", tmp_path) == AgentState(held[0].pid, held[1].pid)
    held[0].kill()
    held[0].wait()
    assert alive("any", tmp_path) == AgentState(None, held[1].pid)
    stop("any", tmp_path)
    assert held[1].wait() != 0
    assert alive("any", tmp_path) == AgentState(None, None)
    for each in held:
        assert each.stdout is not None
        each.stdout.close()
