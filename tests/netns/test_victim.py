"""Head-of-line blocking: a flow to an idle port suffers from pauses that are meant for others, in its class only."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab

pytestmark = pytest.mark.root

# host1 to 4 are behind rtsw1, host5 to 8 behind rtsw2. host8 is idle but for the victim's packets.
CROWD = [("host2", "host5"), ("host3", "host5"), ("host6", "host5"), ("host7", "host5")]
VICTIM = ("host1", "host8")
SECONDS = 1.5


def rates(net: PfcLab, number: int) -> tuple[float, float]:
    """Packets a second of the victim, in this class: alone, and while four others crowd host5's port in class 3."""
    port = net.down_port(VICTIM[1])
    found = []
    for crowd in ([], CROWD):
        flows = [(*VICTIM, number), *((source, sink, LOSSLESS) for source, sink in crowd)]
        with net.loading(flows):
            time.sleep(0.7)
            found.append(net.rate(port, SECONDS, number))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("pauses", "number", "suffers"),
    [(True, LOSSLESS, True), (False, LOSSLESS, False), (True, 0, False)],
    ids=["with PFC", "without PFC", "in another class"],
)
def test_a_flow_to_an_idle_port_loses_half_of_its_rate_only_with_pauses_in_its_class(
    tmp_path: Path, pauses: bool, number: int, suffers: bool
) -> None:
    link, queues = {"host": "25mbit", "fabric": "100mbit"}, {"pfc": {"enabled": pauses}}
    with pfc_lab(tmp_path, weights=(1,), hosts_per_rack=4, link=link, queues=queues) as net:
        alone, crowded = rates(net, number)
        assert alone > 0.85 * 25e6 / 8 / 3942, "without the others it has its port to itself"
        if suffers:
            assert crowded < 0.5 * alone
        else:
            assert crowded > 0.85 * alone
