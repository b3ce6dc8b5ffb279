"""Runs with --transport rxe: the kernel's packets take the predicted paths, and carry the right data.

The counts come from programs at the NICs, the prediction from the plan, the oracle from the kernel's own routes.
"""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.endpoints.verbs.launching import launch
from heddle.kernel import rdma
from heddle.lab.lab import Lab
from heddle.runs.past import paths_of
from heddle.runs.run import run
from heddle.switch import stackcounts
from heddle.traffic.options import RunOptions, SourcePorts
from heddle.views.pathstext import paths_text

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")


@pytest.mark.parametrize(
    ("collective", "qps", "ports"),
    [
        ("all-reduce", 1, SourcePorts()),
        ("all-to-all", 4, SourcePorts()),
        ("incast", 2, SourcePorts("list", (50000, 50001))),
    ],
)
def test_the_data_are_right_and_every_path_is_proven(tiny: Lab, collective: str, qps: int, ports: SourcePorts) -> None:
    options = RunOptions(
        collective, sizes=(1 << 16,), iters=1, warmup=1, qps=qps, source_ports=ports, transport="rxe", timeout=20
    )
    result = run(tiny, options, Silent())
    assert (result.wrong, result.nic_loop) == (0, "verbs")
    assert result.icrc_errors is result.stray is result.machine.socket_drops is None  # the kernel counts none of them
    paths = paths_of(tiny)
    assert paths.agree, paths_text(paths)
    for flow in result.flows:
        again, behind, ahead = (flow.counters[key] for key in ("retransmitted", "duplicates", "out_of_order"))
        assert flow.received is not None and flow.received - behind - ahead == flow.sent.packets - again
    assert sum(flow.sent.packets > 0 for flow in result.flows) >= len(result.flows) / 2  # a small message has one part
    assert {flow.sent.flow.qpn for flow in result.flows} >= {rdma.QPS_BEFORE_FIRST + 1} or collective == "incast"
    assert not rdma.links(f"{tiny.name}-")
    assert not stackcounts.attached(tiny.name)


def test_what_a_killed_run_left_is_removed_by_the_next_one_and_by_down(tiny: Lab) -> None:
    handle = tiny.handles()["host1"]
    name = rdma.link_name(tiny.name, "host1", "eth1")
    rdma.add_link(handle.netns, name, "eth1")
    stackcounts.attach(tiny.name, [(handle.netns, "eth1")], 1)
    result = run(tiny, RunOptions(sizes=(1 << 14,), iters=1, warmup=0, transport="rxe", timeout=20), Silent())
    assert result.wrong == 0
    assert not rdma.links(name)
    rdma.add_link(handle.netns, name, "eth1")
    rdma.remove_links_of(tiny.name)
    assert not rdma.links(name)


def test_launch_runs_a_program_of_perftest_between_two_hosts(tiny: Lab) -> None:
    import tempfile

    with tempfile.TemporaryFile() as file:
        assert launch(tiny, "host1", "host3", ["ib_write_bw", "-n", "5", "-s", "4096", "--tclass=98"], file) == 0
        file.seek(0)
        said = file.read().decode()
    assert "RDMA_Write BW Test" in said and "4096" in said.splitlines()[-2]
    assert not rdma.links(f"{tiny.name}-")


def test_launch_names_what_is_wrong(tiny: Lab) -> None:
    with pytest.raises(InputError, match="is not a host"):
        launch(tiny, "host1", "hots3", ["ib_write_bw"])
    with pytest.raises(InputError, match="is set by launch itself"):
        launch(tiny, "host1", "host3", ["ib_write_bw", "-d", "x"])
    with pytest.raises(CheckError, match="ended with exit code"):
        launch(tiny, "host1", "host3", ["ib_write_bw", "--no-such-flag"])
