"""A fat tree that runs: every path proven by each hashing mode, whole, with a link down and with a core down."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.fabric.hashmodes import MODES
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down
from heddle.lab.rehash import set_hashing
from tests.conftest import Borrow
from tests.marks import deep
from tests.netns.collectives import proven, ran
from tests.netns.live import failed
from tests.netns.shapes.outages import check_routes


@pytest.fixture(scope="module")
def lab(borrow: Borrow, runtime: str) -> Lab:
    """The preset: 20 switches, 16 hosts."""
    return borrow("fattree", runtime=runtime)


def prove(lab: Lab, **options: Any) -> set[str]:
    """The ports that an all-to-all of all hosts has used: prediction, kernels and counters agree on every QP."""
    result = ran(lab, collective="all-to-all", algorithm="", sizes=(1 << 14,), iters=1, warmup=0, **options)
    paths = proven(lab)
    assert len(paths.flows) == len(result.flows) == 16 * 15
    if not any(proof.spread for proof in paths.flows):
        assert all(proof.predicted == proof.oracle == proof.measured for proof in paths.flows)
    return {str(step) for proof in paths.flows for step in proof.measured}


OUTAGES = {"edge1:eth1": link_down, "core4": link_down, "agg3": drain}


@pytest.mark.parametrize("word", ["edge1:eth1", "core4", deep("agg3")])
def test_every_kernel_has_the_routes_of_the_prediction_whatever_is_down(lab: Lab, word: str) -> None:
    check_routes(lab, word, OUTAGES[word])


def test_every_check_passes_and_every_path_is_proven(lab: Lab) -> None:
    assert failed(lab) == {}
    used = prove(lab)
    assert {f"core{core}:eth{pod}" for core in range(1, 5) for pod in range(1, 5)} <= used


@pytest.mark.long("every mode, each with a link down, a switch down and one drained")
@pytest.mark.parametrize("mode", MODES)
def test_paths_are_proven_in_every_mode_whatever_is_down(lab: Lab, mode: str) -> None:
    transport = {"transport": "srd"} if mode == "spray" else {}
    set_hashing(lab, mode)
    try:
        used = prove(lab, **transport)
        assert all(any(word in (port, port.partition(":")[0]) for port in used) for word in OUTAGES)
        for word, outage in OUTAGES.items():
            with outage(lab, word):
                used = prove(lab, **transport)
            if outage is link_down:  # a drained switch still forwards inside its pod
                assert not [port for port in used if word in (port, port.partition(":")[0])]
    finally:
        set_hashing(lab, "flow")
