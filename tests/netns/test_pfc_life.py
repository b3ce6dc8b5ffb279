"""The agent runs from `up` to `down`, whichever process is killed; tests/clab/test_life.py has containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from socket import if_nameindex

import pytest

from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.switch.pfc import control as pfc
from heddle.switch.pfc.frame import build
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from tests.conftest import Up
from tests.machine import until

LOSSLESS = 3


def found(lab: Lab) -> tuple[int | None, int | None]:
    """Pids of agent and keeper; None for one that does not run."""
    state = pfc.alive(lab.name)
    return state.agent, state.keeper


def both(lab: Lab) -> tuple[int, int]:
    """Their pids, once both run."""
    until(lambda: None not in found(lab))
    agent, keeper = found(lab)
    assert agent is not None
    assert keeper is not None
    return agent, keeper


def pause(lab: Lab, host: str, quanta: int) -> None:
    """A pause frame from a host's port to its switch."""
    port = lab.fabric.by_name[host].ports[0]
    gates = Gates(lab.handle(host).netns)
    try:
        assert gates.send(port.name, build(gates.macs[port.name], {LOSSLESS: quanta}))
    finally:
        gates.close_sockets()


def take_away(lab: Lab, node: str) -> None:
    """Remove a node by hand."""
    run(["ip", "netns", "del", lab.handle(node).netns.name])


def kill_both(lab: Lab) -> None:
    """So that neither sees the other go."""
    agent, keeper = both(lab)
    os.kill(agent, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    until(lambda: found(lab) == (None, None))


@pytest.mark.deep
def test_pauses_are_obeyed_from_up_to_down_whichever_process_is_killed(
    name: str, up: Up, leftovers: Callable[[str], list[str]]
) -> None:
    lab = up(name).lab
    host, *_, last = lab.fabric.hosts
    with LabQueues.pinned(lab.fabric) as queues:
        row = queues.ids[host.ports[0].peer_node, host.ports[0].peer_port] * 8 + LOSSLESS
        until_ns = queues.agent["until_ns"]

        def obeys() -> None:
            pause(lab, host.name, 65535)
            until(lambda: until_ns[row])
            pause(lab, host.name, 0)
            until(lambda: not until_ns[row])

        first = both(lab)
        obeys()
        for victim in (0, 1):
            before = both(lab)[victim]
            os.kill(before, signal.SIGKILL)
            until(lambda: found(lab)[victim] not in (before, None))  # noqa: B023
            obeys()
        assert not set(both(lab)) & set(first)
        assert not pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)

        # Both at once: the next run does what is asked of restart here.
        pause(lab, host.name, 65535)
        until(lambda: until_ns[row])
        kill_both(lab)
        assert pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)
        both(lab)
        until(lambda: not until_ns[row])
        obeys()

    # Sockets of the agent do not keep a dead node's ends of its links alive.
    port = last.ports[0]
    take_away(lab, last.name)
    with inside(lab.handle(port.peer_node).netns):
        # The kernel takes namespaces down one by one, and others may be before this one.
        until(lambda: port.peer_port not in {word for _, word in if_nameindex()})
    assert f"the namespace of {last.name} was removed" in (lab.dir / "pfc.log").read_text()

    # A lab that is made again after both were killed is as any other.
    kill_both(lab)
    assert life.down(name)
    assert leftovers(name) == []
    again = up(name)
    assert again.created
    pids = both(again.lab)
    for node in again.lab.fabric.nodes:  # with the last of them the two have nothing to do
        take_away(again.lab, node.name)
    until(lambda: found(again.lab) == (None, None))
    assert life.down(name)
    assert leftovers(name) == []
    assert not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
