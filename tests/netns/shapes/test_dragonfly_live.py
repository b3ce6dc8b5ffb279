"""A dragonfly that runs: routes by the length of AS paths, whatever is down; every path proven in each hashing mode."""

from __future__ import annotations

import pytest

from heddle.fabric.hashmodes import SPREADING
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down
from heddle.lab.rehash import set_hashing
from tests.conftest import Borrow
from tests.marks import long
from tests.netns.collectives import proven, ran
from tests.netns.live import failed
from tests.netns.shapes.outages import check_routes

# A global link, a local link, a switch.
OUTAGES = {"sw1:eth4": link_down, "sw1:eth1": link_down, "sw2": link_down, "sw5": drain}


@pytest.fixture(scope="module", params=["groups=3", long("groups=9")])
def lab(borrow: Borrow, runtime: str, request: pytest.FixtureRequest) -> Lab:
    """With 3 groups four links join two groups, with 9 groups a single one."""
    return borrow("dragonfly", request.param, "hosts_per_switch=1", runtime=runtime)


def prove(lab: Lab, gone: str = "", **options: str) -> None:
    """Prediction, kernels and counters agree on every QP of an all-to-all of up to 18 hosts, of all groups."""
    lost = {port.peer_node for node in lab.fabric.switches for port in node.ports if node.name == gone}
    hosts = lab.fabric.hosts[:: -(-len(lab.fabric.hosts) // 18)]
    ranks = ",".join(host.name for host in hosts if host.name not in lost)
    ran(lab, collective="all-to-all", algorithm="", sizes=(1 << 13,), iters=1, warmup=0, placement=ranks, **options)
    paths = proven(lab)
    count = ranks.count(",") + 1
    here = {proof.flow.src: lab.fabric.by_name[proof.flow.first_hop.partition(":")[0]] for proof in paths.flows}
    assert len(here) == count
    assert not [proof for proof in paths.flows for step in proof.measured if str(step).startswith(f"{gone}:") and gone]


def test_every_kernel_has_the_routes_of_the_prediction_whatever_is_down(lab: Lab) -> None:
    assert failed(lab) == {}
    for word, outage in OUTAGES.items():
        check_routes(lab, word, outage)


MODES = [long(mode, "all") for mode in ("flow", "e-ecmp", "pinned", "exact-match", *sorted(SPREADING))]


@pytest.mark.parametrize(("mode", "down"), [("flow", "sw1:eth4"), *MODES])
def test_paths_are_proven_in_every_mode(lab: Lab, mode: str, down: str) -> None:
    transport = {"transport": "srd"} if mode == "spray" else {}
    set_hashing(lab, mode)
    try:
        prove(lab, **transport)
        for word, outage in OUTAGES.items() if down == "all" else [(down, OUTAGES[down])]:
            with outage(lab, word):
                prove(lab, "" if outage is drain else word, **transport)
    finally:
        set_hashing(lab, "flow")
