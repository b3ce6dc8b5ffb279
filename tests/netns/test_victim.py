"""Head-of-line blocking: a flow to an idle port is held back by pauses that are meant for others, in its class only.

What is left of its rate is a figure of `./inv bench queues`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine import until
from tests.marks import deep
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab

pytestmark = pytest.mark.root

# host1 to 4 are behind rtsw1, host5 to 8 behind rtsw2. host8 is idle but for the victim's packets.
CROWD = [("host2", "host5"), ("host3", "host5"), ("host6", "host5"), ("host7", "host5")]
VICTIM = ("host1", "host8")


def paused_ns(net: PfcLab, host: str, number: int = LOSSLESS) -> int:
    """How long a host's NIC has held this class back, as its switch had asked."""
    return int(net.queues.agent["paused_ns"][net.row(f"{host}:eth1", number)])


@pytest.mark.parametrize(
    ("pauses", "number", "suffers"),
    [
        (True, LOSSLESS, True),
        deep(False, LOSSLESS, False),
        deep(True, 0, False),
    ],
    ids=["with PFC", "without PFC", "in another class"],
)
def test_a_flow_to_an_idle_port_is_paused_only_with_pauses_in_its_class(
    tmp_path: Path, pauses: bool, number: int, suffers: bool
) -> None:
    link, queues = {"host": "25mbit", "fabric": "100mbit"}, {"pfc": {"enabled": pauses, "reaction": "60ms"}}
    with pfc_lab(tmp_path, weights=(1,), hosts_per_rack=4, link=link, queues=queues) as net:
        port, crowded = net.down_port(VICTIM[1]), net.down_port(CROWD[0][1])
        with net.loading([(*VICTIM, number)]):
            until(lambda: net.out(port, number) > 100)
            assert paused_ns(net, VICTIM[0], number) == 0, "without the others nothing holds it back"
        with net.loading([(*VICTIM, number), *((source, sink, LOSSLESS) for source, sink in CROWD)]):
            if suffers:
                until(lambda: paused_ns(net, VICTIM[0]) > 0)
            done, others = net.out(port, number), net.out(crowded)
            until(lambda: net.out(port, number) > done + 50 and net.out(crowded) > others + 400)
        assert (paused_ns(net, VICTIM[0], number) > 0) is suffers
        if pauses:
            assert paused_ns(net, CROWD[0][0]) > 0, "those that crowd the port are paused"
            until(net.at_rest)  # that nothing is lost: test_incast.py and test_pfc_agent.py
