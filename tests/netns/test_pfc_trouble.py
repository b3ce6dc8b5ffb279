"""What happens to gates when the processes behind them are killed or stopped, links fail, and rules change.

In a whole lab the two run from `up` to `down`; test_lab_life.py has containers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from heddle.switch.queues.classes import policies_of
from tests.conftest import Up
from tests.machine import until
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PfcLab]:
    """With the compiled loop; test_pfc_agent.py has both."""
    roomy = {"pfc": {"reaction": "300ms"}}  # the machine may be busy, and the amount of headroom is not tested here
    with pfc_lab(tmp_path_factory.mktemp("pfc"), queues=roomy) as found:
        yield found


@contextmanager
def incast(net: PfcLab) -> Iterator[str]:
    """All hosts but the last send to that as fast as they can. Gives the last port."""
    *senders, sink = [host.name for host in net.lab.fabric.hosts]
    port = net.down_port(sink)
    with net.loading([(name, sink, LOSSLESS) for name in senders]):
        until(lambda: any(net.closed(f"{name}:eth1") for name in senders))
        yield port
    until(net.at_rest)


def both(net: PfcLab) -> bool:
    """Whether agent and keeper run."""
    state = net.agent()
    return state.agent is not None and state.keeper is not None


def goes_on(net: PfcLab, port: str) -> None:
    """No gate stays closed past its time, and packets leave by the port, for which the loaded hosts have to be let."""
    until(lambda: net.overdue_ms() == 0)
    out = net.out(port)
    until(lambda: net.out(port) > out + 100)


def test_the_two_run_in_a_namespace_of_the_lab_where_down_finds_them(net: PfcLab) -> None:
    state = net.agent()
    spaces = {handle.netns.stat().st_ino for handle in net.lab.handles().values()}
    for pid in (state.agent, state.keeper):
        assert Path(f"/proc/{pid}/ns/net").stat().st_ino in spaces
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


def test_whichever_is_killed_the_other_replaces_it_and_no_gate_stays_closed(net: PfcLab) -> None:
    with incast(net) as port:
        for victim in ("agent", "keeper", "agent"):
            old = getattr(net.agent(), victim)
            os.kill(old, signal.SIGKILL)
            until(lambda: both(net) and getattr(net.agent(), victim) != old)  # noqa: B023
            goes_on(net, port)


@pytest.mark.deep
def test_an_agent_that_is_stopped_is_replaced_and_its_gates_open_in_time(net: PfcLab) -> None:
    sink = net.lab.fabric.hosts[-1].name
    with incast(net) as port:
        old = net.agent().agent
        assert old is not None
        os.kill(old, signal.SIGSTOP)
        net.pause(sink, 1)
        until(lambda: both(net) and net.agent().agent != old)
        goes_on(net, port)
    assert "is unresponsive" in net.log()
    # And so is a keeper.
    old = net.agent().keeper
    assert old is not None
    os.kill(old, signal.SIGSTOP)
    until(lambda: net.agent().keeper not in (old, None))


@pytest.mark.deep
def test_a_link_that_fails_under_load_leaves_no_bytes_counted_and_works_again(net: PfcLab) -> None:
    sink = net.lab.fabric.hosts[-1].name
    port = net.lab.fabric.by_name[sink].ports[0].peer_ref
    node, name = port.split(":")
    down = net.queues.links["flags"]
    here, there = net.row(port) // 8, net.row(f"{sink}:eth1") // 8
    with incast(net):
        for _ in range(2):
            net.lab.ip(node, "link", "set", name, "down")
            until(lambda: down[here] & 2 and down[there] & 2)
            until(lambda: not net.queues.cells["depth"][net.row(port)])
            net.lab.ip(node, "link", "set", name, "up")
            net.lab.ip(node, "neigh", "replace", *neighbour(net, sink), "dev", name, "nud", "permanent")
            until(lambda: not down[here] & 2 and not down[there] & 2)
            out = net.out(port)
            until(lambda: net.out(port) > out + 20)  # noqa: B023
    assert f"{port} is down" in net.log()


def neighbour(net: PfcLab, host: str) -> tuple[str, str, str]:
    """What `ip neigh` forgets of a host when its link goes down."""
    port = net.lab.fabric.by_name[host].ports[0]
    assert port.address is not None
    return str(port.address.ip), "lladdr", port.mac


@pytest.mark.deep
def test_rules_that_change_hold_in_the_agent_too(net: PfcLab) -> None:
    """PFC off: every gate opens, pauses are neither obeyed nor sent. On again: as before."""
    sink = net.lab.fabric.hosts[-1].name
    port = net.down_port(sink)
    queues = net.lab.fabric.policy.queues
    off = replace(queues, pfc=replace(queues.pfc, enabled=False))
    with incast(net):
        with net.pausing(sink):
            until(lambda: net.closed(port))
            net.queues.set_policies(policies_of(net.lab.fabric, off))
            pfc.reload(net.lab.name, net.place)
            until(lambda: not net.queues.agent["until_ns"].any(), seconds=1.0)
            time.sleep(0.2)
            assert not net.queues.agent["until_ns"].any()
            sent = int(net.queues.agent["pfc_sent"].sum())
            assert net.rate(port, 0.3) > 0
            assert int(net.queues.agent["pfc_sent"].sum()) == sent
        net.queues.set_policies(policies_of(net.lab.fabric))
        until(lambda: net.queues.agent["pfc_sent"].sum() > sent, seconds=2.0)


def found(lab: Lab) -> tuple[int | None, int | None]:
    """Pids of agent and keeper; None for one that does not run."""
    state = pfc.alive(lab.name)
    return state.agent, state.keeper


def pids(lab: Lab) -> tuple[int, int]:
    """Their pids, once pids run."""
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
    agent, keeper = pids(lab)
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

        first = pids(lab)
        obeys()
        for victim in (0, 1):
            before = pids(lab)[victim]
            os.kill(before, signal.SIGKILL)
            until(lambda: found(lab)[victim] not in (before, None))  # noqa: B023
            obeys()
        assert not set(pids(lab)) & set(first)
        assert not pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)

        # Both at once: the next run does what is asked of restart here.
        pause(lab, host.name, 65535)
        until(lambda: until_ns[row])
        kill_both(lab)
        assert pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)
        pids(lab)
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
    last_pids = pids(again.lab)
    for node in again.lab.fabric.nodes:  # with the last of them the two have nothing to do
        take_away(again.lab, node.name)
    until(lambda: found(again.lab) == (None, None))
    assert life.down(name)
    assert leftovers(name) == []
    assert not any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in last_pids
    )
