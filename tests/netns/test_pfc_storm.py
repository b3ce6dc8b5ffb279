"""A host that pauses for ever: the watchdog cuts it off, everybody else goes on, and it is let back in afterwards."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.kernel.namespace import inside
from tests.machine import until
from tests.marks import deep
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab

_ETH_P_IP = 0x0800
DETECT_S = 0.4


@pytest.fixture(scope="module", params=["drop", deep("forward")])
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PfcLab]:
    watchdog = {"detect": "400ms", "restore": "400ms", "action": request.param}
    one_way: dict[str, Any] = {"weights": (1,)}  # a single CTSW: the paths of all flows are the same
    with pfc_lab(tmp_path_factory.mktemp("pfc"), queues={"pfc": {"watchdog": watchdog}}, **one_way) as found:
        yield found


@contextlib.contextmanager
def listening(net: PfcLab, host: str) -> Iterator[list[int]]:
    """The sizes of IPv4 packets that come to a host, behind the programs at its port."""
    found: list[int] = []
    ended = threading.Event()
    with inside(net.lab.handle(host).netns):
        taker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with taker:
        taker.bind((net.lab.fabric.by_name[host].ports[0].name, _ETH_P_IP))
        taker.settimeout(0.05)

        def take() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    found.append(len(taker.recv(65536)))

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield found
        finally:
            ended.set()
            thread.join()


def test_a_host_that_pauses_for_ever_is_cut_off_in_time_and_let_in_again(net: PfcLab) -> None:
    """Two flows over one uplink, to two hosts of a rack. One of those pauses: what is for it fills the way of both."""
    senders = [host.name for host in net.lab.fabric.hosts[:2]]
    stormy, calm = (host.name for host in net.lab.fabric.hosts[2:4])
    port, other = net.down_port(stormy), net.down_port(calm)
    row = net.row(port)
    flows = zip(senders, (stormy, calm), (0, 0.005), strict=True)
    dropping = net.lab.fabric.policy.queues.pfc.watchdog.action == "drop"
    full, modest = (net.loading([(sender, sink, LOSSLESS)], every=every) for sender, sink, every in flows)
    with full, modest:
        until(lambda: net.out(other) > 20)
        start = time.monotonic()
        with net.pausing(stormy), listening(net, stormy) as taken:
            until(lambda: net.closed(port))
            time.sleep(0.05)
            taken.clear()
            until(lambda: net.queues.agent["watchdog"][row])
            # How soon after that, and when it is over: tests/unit/test_watchdog.py, with a simulated clock.
            assert time.monotonic() - start >= DETECT_S
            until(lambda: not net.closed(port))  # the agent says it first, then it opens the gate
            out = net.out(other)
            until(lambda: net.out(other) > out + 50)
            assert int(net.queues.agent["storms"][row]) == 1
            dropped = int(net.queues.cells["drops"][row][3])
            assert (dropped > 0) is dropping
            assert (not taken) is dropping, "what was let out of the gate goes on to the host, or no further"
        until(lambda: not net.queues.agent["watchdog"][row])
        out = net.out(port)
        until(lambda: net.out(port) > out + 20)
        assert int(net.queues.cells["drops"][row][3]) >= dropped
        assert int(net.queues.agent["storms"][row]) == 1
    assert "storm" in net.log()
    assert "calm" in net.log()
    until(net.at_rest)


def test_a_storm_is_over_in_time_without_agent_and_keeper(net: PfcLab) -> None:
    """An agent that was stopped for long can take a pause for a storm. If both are killed then, no process ends it."""
    sender, stormy = net.lab.fabric.hosts[0].name, net.lab.fabric.hosts[2].name
    port, watchdog = net.down_port(stormy), net.queues.agent["watchdog"]
    with net.loading([(sender, stormy, LOSSLESS)], every=0.03):  # too few to fill the queues before the port, too
        with net.pausing(stormy):
            until(lambda: watchdog[net.row(port)] and not net.closed(port))
            net.kill_both()
        out = net.out(port)
        until(lambda: net.out(port) > out + 20)
        assert watchdog[net.row(port)], "no process has ended it"
    net.start()
    until(lambda: not watchdog.any() and net.at_rest())
