"""Every collective on a live fabric, in both loops: right results, proven paths, and the loads that were predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.traffic.collectives import patterns
from heddle.traffic.collectives.hosts import RailPattern
from tests.conftest import Borrow, FabricLab
from tests.netns.test_forecast_live import compare
from tests.unit.readers.test_msccl import all_pairs

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    return fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, link={"host": "20mbit", "fabric": "20mbit"})


@pytest.fixture(scope="module")
def rails(borrow: Borrow) -> Lab:
    """Two hosts with two NICs each; no link joins the planes of their rails."""
    return borrow("rail", "hosts_per_pod=1", "nics_per_host=2", "planes=2", "link.host=20mbit", "link.fabric=20mbit")


@pytest.fixture(scope="module")
def joined(borrow: Borrow) -> Lab:
    """The same with one plane."""
    return borrow("rail", "hosts_per_pod=1", "nics_per_host=2", "link.host=20mbit", "link.fabric=20mbit")


@pytest.mark.parametrize("fastpath", ["on", pytest.param("off", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("collective", "algorithm"), [name for name, each in patterns().items() if not isinstance(each, RailPattern)]
)
def test_results_paths_and_loads_are_right(
    collective: str, algorithm: str, fastpath: Literal["on", "off"], lab: Lab, tmp_path: Path
) -> None:
    compare(
        lab, lab.fabric.policy.routing.ecmp, tmp_path, 2, None, fastpath, collective=collective, algorithm=algorithm
    )


@pytest.mark.parametrize("fastpath", ["on", pytest.param("off", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("collective", "algorithm"), [name for name, each in patterns().items() if isinstance(each, RailPattern)]
)
def test_ranks_copy_inside_their_host_and_send_along_their_rail(
    collective: str, algorithm: str, fastpath: Literal["on", "off"], rails: Lab, tmp_path: Path
) -> None:
    compare(
        rails, rails.fabric.policy.routing.ecmp, tmp_path, 2, None, fastpath, collective=collective, algorithm=algorithm
    )


@pytest.mark.parametrize(("collective", "fastpath"), [("all-reduce", "on"), ("broadcast", "off")])
def test_each_channel_of_a_ring_has_nics_of_its_own_between_hosts(
    collective: str, fastpath: Literal["on", "off"], joined: Lab, tmp_path: Path
) -> None:
    more = {"collective": collective, "channels": 2, "nvlink_rate": 3600}
    compare(joined, joined.fabric.policy.routing.ecmp, tmp_path, 2, None, fastpath, **more)


@pytest.mark.parametrize(("collective", "fastpath"), [("all-gather", "on"), ("reduce-scatter", "off")])
def test_both_columns_are_measured(collective: str, fastpath: str, lab: Lab) -> None:
    done = run(
        lab,
        run_options(collective=collective, size="64K:128K:x2", iters=2, in_place="both", fastpath=fastpath),
        Silent(),
    )
    assert done.wrong == 0 and [row.size for row in done.rows] == [1 << 16, 1 << 17]
    for row in done.rows:
        out, inside = done.sides(row)
        assert out and inside and out.time_us > 0 < inside.time_us and len(inside.iteration_us) == 2


def test_a_program_of_a_file_has_right_results_paths_and_loads(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "p.xml"
    file.write_text(all_pairs(4))
    compare(lab, lab.fabric.policy.routing.ecmp, tmp_path, 2, None, "on", collective="msccl", msccl=str(file))
