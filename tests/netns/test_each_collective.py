"""Every collective on a live fabric, in both loops: right results, proven paths, and the loads that were predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from heddle.lab.lab import Lab
from heddle.traffic.collectives import patterns
from tests.conftest import FabricLab
from tests.netns.test_forecast_live import compare

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    return fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, link={"host": "20mbit", "fabric": "20mbit"})


@pytest.mark.parametrize("fastpath", ["on", "off"])
@pytest.mark.parametrize(("collective", "algorithm"), list(patterns()))
def test_results_paths_and_loads_are_right(
    collective: str, algorithm: str, fastpath: Literal["on", "off"], lab: Lab, tmp_path: Path
) -> None:
    compare(
        lab, lab.fabric.policy.routing.ecmp, tmp_path, 2, None, fastpath, collective=collective, algorithm=algorithm
    )
