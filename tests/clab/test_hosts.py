"""What users do with nodes that are containers: BGP by hand, a host's own program, runs, a table of exact matches."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from heddle.base.ethernet import MAX_QUANTA, pfc_frame
from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab import rehash
from heddle.lab.lab import Lab
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.switch.queues.cells import LabQueues
from tests.machine import patience, until
from tests.netns.collectives import proven
from tests.readings import read_hashing

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
LOSSLESS = 3


def test_bgp_is_configured_by_hand(tiny: Lab) -> None:
    """As in workshop unit 01."""
    asn = tiny.fabric.by_name["rtsw1"].asn
    for word, sessions in (("", 3), ("no ", 4)):
        lines = ["configure terminal", f"router bgp {asn}", f"{word}neighbor eth1 shutdown"]
        tiny.output("rtsw1", ["vtysh", *(word for line in lines for word in ("-c", line))])
        until(lambda: status(tiny.name)[0].bgp.established == sessions)  # noqa: B023
    tiny.wait(timeout=patience(60))


def test_a_program_of_a_host_pauses_its_switch(tiny: Lab) -> None:
    """The image has Python, and may send any frame: here the longest pause of class 3."""
    frame = pfc_frame(bytes.fromhex("020400050001"), {LOSSLESS: MAX_QUANTA}).hex()
    code = f"from socket import *; s = socket(17, 3); s.bind(('eth1', 0)); s.send(bytes.fromhex('{frame}'))"
    command = ["python3", "-c", code]
    port = tiny.fabric.by_name["host1"].ports[0]
    with LabQueues.pinned(tiny.fabric) as queues:
        row = queues.ids[port.peer_node, port.peer_port] * 8 + LOSSLESS
        paused_ns = queues.agent["paused_ns"]
        before = int(paused_ns[row])
        assert tiny.exec("host1", command) == 0
        until(lambda: paused_ns[row] > before)  # counted when the pause is over


def test_a_run_has_admission_and_dcqcn(tiny: Lab) -> None:
    """As in workshop unit 07."""
    result = run(tiny, run_options(size="256K", iters=2, admission="on", cc="dcqcn"), Silent())
    assert result.wrong == 0
    proven(tiny)


def test_a_table_of_exact_matches_steers_by_the_interfaces_of_containers(tiny: Lab) -> None:
    rack2 = ip_network("10.0.1.0/24")
    rehash.set_hashing(tiny, "exact-match")
    for port in ("eth2", "eth1"):
        rehash.set_exact(tiny, "rtsw1", {(50000, rack2): (port,)})
        run(tiny, run_options(size="64K", iters=1, qps=2, placement="cyclic", sport="list:50000,50001"), Silent())
        paths = proven(tiny)
        first = {each.measured[0] for each in paths.flows if (each.flow.sport, each.flow.src) == (50000, "host1")}
        assert first <= {f"rtsw1:{port}"}
        assert read_hashing(tiny.name, tiny.handle("rtsw1")).steering.exact == {(50000, rack2): (port,)}
