"""What happens to gates when the processes behind them are killed or stopped, links fail, and rules change."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.switch.pfc import control as pfc
from heddle.switch.queues.classes import policies_of
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
def test_with_both_killed_at_once_packets_go_around_a_gate_that_is_past_its_time(net: PfcLab) -> None:
    source, *_, sink = [host.name for host in net.lab.fabric.hosts]
    port = net.down_port(sink)
    net.pause(sink, 20_000)  # 410 ms, in which a busy machine has surely closed the gate, and been seen to
    until(lambda: net.closed(port))
    net.kill_both()
    time.sleep(0.75)
    assert net.overdue_ms() > 300
    with net.loading([(source, sink, LOSSLESS)]):
        out = net.out(port)
        until(lambda: net.out(port) > out + 20)
    net.start()
    until(lambda: not net.closed(port) and net.at_rest())


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
