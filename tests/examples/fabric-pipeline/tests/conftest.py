"""The traffic of our training jobs. Change it here, and all tests use it."""

import pytest


@pytest.fixture
def all_to_all(heddle_run):
    """Expert parallelism. Our NICs use one UDP source port for all queue pairs: a 5-tuple hash cannot separate them."""
    return lambda: heddle_run(collective="all-to-all", sizes="512K", qps=16, iters=2, sport="fixed")


@pytest.fixture
def incast(heddle_run):
    """A checkpoint: all ranks write to one."""
    return lambda: heddle_run(collective="incast", sizes="256K", qps=4, iters=2)


@pytest.fixture
def marked():
    """The share of a run's data packets that arrived with ECN's mark CE, 0 to 1."""
    return lambda run: sum(flow.ce for flow in run.flows) / sum(flow.sent.packets for flow in run.flows)


@pytest.fixture
def reliable():
    """Skip the rest of a test if the CPU of this machine was the bottleneck: then bandwidths are not the fabric's."""

    def check(*runs):
        if any(run.machine.limited for run in runs):
            pytest.skip("the host CPU was the bottleneck: results and paths are checked, figures are not")

    return check
