"""The topologies of topologies/examples come up as they are, and every path in them is proven. Both runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.checks.validate import validate
from heddle.endpoints.runoptions import run_options
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.status import status
from heddle.runs.run import run
from tests.marks import deep
from tests.netns.collectives import proven

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "topologies/examples").glob("*.clab.yml"))


@pytest.mark.parametrize(
    "path", [path if "ospf" in path.name else deep(path) for path in EXAMPLES], ids=lambda path: path.name
)
def test_an_example_topology_comes_up_and_its_paths_are_proven(path: Path, runtime: str, name: str) -> None:
    lab = life.up(import_topology(path, runtime, name), runtime=runtime, source=str(path)).lab
    (found,) = status(name)
    assert (found.state, found.converged, found.faults) == ("up", True, ())
    assert run(lab, run_options(collective="all-to-all", size="256K", qps=8, iters=2), Silent()).wrong == 0
    proof = proven(lab)
    ways: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for row in proof.flows:
        ways.setdefault((row.flow.src, row.flow.dst), set()).add(tuple(row.measured))
    assert max(len(each) for each in ways.values()) > 1, "the example shows equal-cost paths"
    assert {check.name: check.detail for check in validate(lab) if not check.ok} == {}
