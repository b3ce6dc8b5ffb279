"""What happens to gates when the processes behind them are killed or stopped, links fail, and rules change.

In a whole lab the two run from `up` to `down`; test_lab_life.py has containers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import if_nameindex
from typing import Any

import pytest

from heddle.base.ethernet import pfc_frame
from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.switch.pfc import control as pfc
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of
from heddle.wire.layout import ETHERTYPE_IPV4
from tests.conftest import Up
from tests.machine import until
from tests.marks import deep
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab
from tests.netns.sockets import packet_socket, taking


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
            pfc.reload(net.lab.name)
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
        assert gates.send(port.name, pfc_frame(gates.macs[port.name], {LOSSLESS: quanta}))
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


DETECT_S = 0.4


@pytest.fixture(scope="module", params=["drop", deep("forward")])
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PfcLab]:
    watchdog = {"detect": "400ms", "restore": "400ms", "action": request.param}
    one_way: dict[str, Any] = {"weights": (1,)}  # a single CTSW: the paths of all flows are the same
    with pfc_lab(tmp_path_factory.mktemp("pfc"), queues={"pfc": {"watchdog": watchdog}}, **one_way) as found:
        yield found


@contextlib.contextmanager
def listening(watched: PfcLab, host: str) -> Iterator[list[int]]:
    """The sizes of IPv4 packets that come to a host, behind the programs at its port."""
    found: list[int] = []
    nic = watched.lab.fabric.by_name[host].ports[0]
    taker = packet_socket(watched.lab.handle(host).netns, nic.name, ETHERTYPE_IPV4)
    with taking(taker, lambda frame, _: found.append(len(frame))):
        yield found


def test_a_host_that_pauses_for_ever_is_cut_off_in_time_and_let_in_again(watched: PfcLab) -> None:
    """Two flows over one uplink, to two hosts of a rack. One of those pauses: what is for it fills the way of both."""
    senders = [host.name for host in watched.lab.fabric.hosts[:2]]
    stormy, calm = (host.name for host in watched.lab.fabric.hosts[2:4])
    port, other = watched.down_port(stormy), watched.down_port(calm)
    row = watched.row(port)
    flows = zip(senders, (stormy, calm), (0, 0.005), strict=True)
    dropping = watched.lab.fabric.policy.queues.pfc.watchdog.action == "drop"
    full, modest = (watched.loading([(sender, sink, LOSSLESS)], every=every) for sender, sink, every in flows)
    with full, modest:
        until(lambda: watched.out(other) > 20)
        start = time.monotonic()
        with watched.pausing(stormy), listening(watched, stormy) as taken:
            until(lambda: watched.closed(port))
            time.sleep(0.05)
            taken.clear()
            until(lambda: watched.queues.agent["watchdog"][row])
            # How soon after that, and when it is over: tests/unit/test_pfc_parts.py, with a simulated clock.
            assert time.monotonic() - start >= DETECT_S
            until(lambda: not watched.closed(port))  # the agent says it first, then it opens the gate
            out = watched.out(other)
            until(lambda: watched.out(other) > out + 50)
            assert int(watched.queues.agent["storms"][row]) == 1
            dropped = int(watched.queues.cells["drops"][row][3])
            assert (dropped > 0) is dropping
            assert (not taken) is dropping, "what was let out of the gate goes on to the host, or no further"
        until(lambda: not watched.queues.agent["watchdog"][row])
        out = watched.out(port)
        until(lambda: watched.out(port) > out + 20)
        assert int(watched.queues.cells["drops"][row][3]) >= dropped
        assert int(watched.queues.agent["storms"][row]) == 1
    assert "storm" in watched.log()
    assert "calm" in watched.log()
    until(watched.at_rest)


def test_a_host_that_is_paused_for_long_waits_and_loses_nothing(watched: PfcLab) -> None:
    """The watchdog is a function of switches: a deep incast pauses hosts for longer than any port of a switch."""
    sender, sink = (watched.lab.fabric.hosts[at].name for at in (0, 2))
    port = watched.lab.fabric.by_name[sender].ports[0].ref
    with watched.loading([(sender, sink, LOSSLESS)]):
        until(lambda: watched.out(port) > 20)
        drops = watched.drops()
        with watched.pausing(watched.down_port(sender)):
            until(lambda: watched.closed(port) and watched.queues.cells["depth"][watched.row(port)] > 0)
            out = watched.out(port)
            time.sleep(3 * DETECT_S)
            assert watched.closed(port) and watched.out(port) <= out + 1  # one packet may have been on its way
            assert not watched.queues.agent["storms"][watched.row(port)]
            assert watched.drops() == drops
        until(lambda: watched.out(port) > out + 20)
    until(watched.at_rest)


def test_a_storm_is_over_in_time_without_agent_and_keeper(watched: PfcLab) -> None:
    """An agent that was stopped for long can take a pause for a storm. If both are killed then, no process ends it."""
    sender, stormy = watched.lab.fabric.hosts[0].name, watched.lab.fabric.hosts[2].name
    port, watchdog = watched.down_port(stormy), watched.queues.agent["watchdog"]
    with watched.loading([(sender, stormy, LOSSLESS)], every=0.03):  # too few to fill the queues before the port, too
        with watched.pausing(stormy):
            until(lambda: watchdog[watched.row(port)] and not watched.closed(port))
            watched.kill_both()
        out = watched.out(port)
        until(lambda: watched.out(port) > out + 20)
        assert watchdog[watched.row(port)], "no process has ended it"
    watched.start()
    until(lambda: not watchdog.any() and watched.at_rest())
