"""When the passes of the NICs begin changes what packets cost, and no result."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import FastPath, RunOptions
from heddle.views.pathstext import paths_text
from tests.alteredworker import altered
from tests.marks import deep
from tests.netns.order import in_order

pytestmark = pytest.mark.root


def _sent(lab: Lab, name: str, loop: FastPath) -> dict[str, tuple[int, int, tuple[str, ...]]]:
    """A run without errors, late packets and retransmissions: of each flow its packets, bytes and ports."""
    options = RunOptions(sizes=(1 << 18,), qps=4, iters=2, placement="cyclic", fastpath=loop)
    with altered(name):
        result = in_order(run(lab, options, Silent()))
    assert result.wrong == 0
    assert [sum(flow.counters[key] for flow in result.flows) for key in ("retransmitted", "timeouts")] == [0, 0]
    paths = paths_of(lab)
    assert paths.agree, paths_text(paths)
    return {str(proof.flow): (proof.sent.packets, proof.sent.bytes, proof.measured) for proof in paths.flows}


@pytest.mark.parametrize("loop", ["on", deep("off")])
@pytest.mark.parametrize("name", ["no time between passes", "passes six frames apart"])
def test_results_do_not_depend_on_the_time_between_passes(tiny: Lab, name: str, loop: FastPath) -> None:
    assert _sent(tiny, name, loop) == _sent(tiny, "", loop)
