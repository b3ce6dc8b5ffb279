"""The agent in a lab's life: there from `up` to `down`, whatever is killed in between; told of both runtimes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Up
from tests.netns.pfc_lab import until
from topologies import lab as life
from topologies.lab import Lab
from topologies.namespace import inside
from topologies.switch import pfc
from topologies.switch.cells import LabQueues
from topologies.switch.pfc.gates import Gates

LOSSLESS = 3


def both(lab: Lab) -> tuple[int, int]:
    """Pids of agent and keeper, once both run."""
    until(lambda: None not in vars_of(lab))
    agent, keeper = vars_of(lab)
    assert agent is not None
    assert keeper is not None
    return agent, keeper


def vars_of(lab: Lab) -> tuple[int | None, int | None]:
    state = pfc.alive(lab.name)
    return state.agent, state.keeper


@pytest.fixture
def lab(name: str, up: Up) -> Lab:
    return up(name).lab


def pause(lab: Lab, host: str, quanta: int) -> None:
    """A pause frame from a host's port to its switch."""
    from topologies.switch.pfc.frame import build

    port = lab.fabric.by_name[host].ports[0]
    gates = Gates(lab.handle(host).netns)
    try:
        assert gates.send(port.name, build(gates.macs[port.name], {LOSSLESS: quanta}))
    finally:
        gates.close_sockets()


def test_pauses_are_obeyed_whoever_is_killed_and_down_leaves_nothing(
    lab: Lab, leftovers: Callable[[str], list[str]]
) -> None:
    host = lab.fabric.hosts[0]
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
            before = both(lab)
            os.kill(before[victim], signal.SIGKILL)
            until(lambda: vars_of(lab)[victim] not in (before[victim], None))  # noqa: B023
            obeys()
        agent, keeper = both(lab)
        assert agent != first[0]
        assert keeper != first[1]
        assert not pfc.mend(lab)

        pause(lab, host.name, 65535)
        until(lambda: until_ns[row])
        os.kill(agent, signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        until(lambda: vars_of(lab) == (None, None))
        assert pfc.mend(lab)
        both(lab)
        until(lambda: not until_ns[row])
        obeys()
    assert (lab.dir / "pfc.log").exists()
    pids = both(lab)
    assert life.down(lab.name)
    assert leftovers(lab.name) == []
    assert not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


def test_a_lab_made_again_after_its_agent_was_killed_works(lab: Lab, up: Up) -> None:
    agent, keeper = both(lab)
    os.kill(agent, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    assert life.down(lab.name)
    again = up(lab.name)
    assert again.created
    both(again.lab)


def test_a_node_that_is_taken_away_is_let_go(lab: Lab) -> None:
    """Sockets of the agent must not keep a dead node's ends of its links alive."""
    host = lab.fabric.hosts[0]
    port = host.ports[0]
    both(lab)
    if lab.runtime.name == "containerlab":
        from topologies.engine.docker import docker

        docker(["rm", "-f", f"clab-{lab.name}-{host.name}"])
    else:
        from topologies.process import run

        run(["ip", "netns", "del", lab.handle(host.name).netns.name])
    with inside(lab.handle(port.peer_node).netns):
        from socket import if_nameindex

        until(lambda: port.peer_port not in {name for _, name in if_nameindex()}, seconds=10.0)
    assert f"{host.name} has no namespace any more" in (lab.dir / "pfc.log").read_text()
    both(lab)
