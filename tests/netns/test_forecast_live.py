"""An offline prediction against a fabric that runs: next hops as kernels have them, and what ports really carried.

And every collective, in both loops: right results, proven paths, and the loads that were predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import load_workload
from heddle.host.preflight import frr_release
from heddle.kernel.fib import read_fib
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down
from heddle.lab.rehash import set_hashing
from heddle.offline.forecast import Ask, forecast
from heddle.offline.result import Prediction
from heddle.offline.wires import Trouble, forwarding_of, trouble_of, wires_of
from heddle.proof.verdict import PathsResult
from heddle.runs.run import run, run_workload
from heddle.spec.routingpolicy import HashOptions
from heddle.traffic.collectives import patterns
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.workload import Workload
from heddle.wire.layout import AETH_BYTES, LAYOUTS
from tests.conftest import Borrow, FabricLab
from tests.marks import deep, long
from tests.netns.collectives import proven, total
from tests.unit.readers.test_msccl import all_pairs

FABRICS: dict[str, dict[str, Any]] = {
    "two tiers, e-ecmp": {"racks": 2, "ctsw": 3, "hosts_per_rack": 2, "routing": {"ecmp": "e-ecmp"}},
    "three tiers, flow": {"zones": 2, "racks": 2, "ctsw": 2, "atsw": 3, "hosts_per_rack": 1},
}
LINK = {"host": "20mbit", "fabric": "20mbit"}


@pytest.fixture(scope="module")
def lab_of(fabric_lab: FabricLab) -> Callable[[str], Lab]:
    """A lab of FABRICS, the same for all tests."""
    return cache(lambda name: fabric_lab(link=LINK, **FABRICS[name]))


def kernels_differ(lab: Lab, trouble: Trouble | None = None, release: tuple[int, ...] | None = None) -> list[str]:
    """Where predicted next hops are not those of the kernels, in their order and with their weights."""
    wires = wires_of(lab.fabric)
    forwarding = forwarding_of(wires, trouble, release)
    found = []
    for row, node in enumerate(lab.fabric.switches):
        fib = read_fib(lab.handle(node.name), lab.fabric.policy.ip_version)
        for prefix, owner in lab.fabric.edge_prefixes.items():
            if owner == node.name:
                continue
            hops = fib.routes.get(prefix, ())
            kernel = [(f"{node.name}:{hop.port}", hop.weight) for hop in hops if not hop.dead]
            group = int(forwarding.group[row, lab.fabric.edge_of[owner] - 1])
            part = slice(*forwarding.start[group : group + 2]) if group >= 0 else slice(0)
            ports = [wires.ports[at] for at in forwarding.member[part]]
            expected = list(zip(ports, forwarding.weight[part].tolist(), strict=True))
            if kernel != expected:
                found.append(f"{node.name} to {prefix}: kernel {kernel}, predicted {expected}")
    return found


@pytest.mark.parametrize("name", ["two tiers, e-ecmp", deep("three tiers, flow")])
def test_ports_carry_exactly_the_bytes_predicted_offline(
    name: str, lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    lab = lab_of(name)
    assert kernels_differ(lab) == []
    compare(lab, lab.fabric.policy.routing.ecmp, tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        deep({"qps": 16, "qp_mode": "round-robin", "chunk": "8K"}),
        {"qps": 4, "sport": "own-qpn", "fastpath": "off"},
        deep({"qps": 4, "sport": "rxe"}),
        deep({"qps": 4, "sport": "fixed", "ranks": 2, "placement": "host4,host1"}),
        {"qps": 3, "transport": "uc", "sport": "list:50000,50001"},
        {"qps": 2, "transport": "srd", "entropy": 5},
        long({"qps": 3, "qp_mode": "round-robin", "transport": "srd", "entropy": 256, "sport": "own-qpn"}),
        {"qps": 2, "collective": "matrix", "matrix": "shift:1;host1,host3,100K;1:3,3,4K"},
        deep({"qps": 2, "collective": "broadcast", "root": 2, "datatype": "bfloat16"}),
    ],
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_every_transport_and_source_port_mode_is_predicted(
    more: dict[str, Any], lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    """One iteration, so that the packets of a queue pair that sprays begin with its first source port."""
    lab = lab_of("two tiers, e-ecmp")
    assert lab.fabric.policy.routing.ecmp == "e-ecmp"
    compare(lab, "e-ecmp", tmp_path, warmup=0, **more)


@pytest.fixture(scope="module")
def sixteen(fabric_lab: FabricLab) -> Lab:
    return fabric_lab(racks=4, ctsw=2, hosts_per_rack=4, link={"host": "50mbit", "fabric": "50mbit"})


@pytest.mark.deep
@pytest.mark.parametrize("name", [long("two-tenants"), "storage-and-training"])  # offline: tests/unit
def test_the_jobs_of_a_shipped_workload_load_the_links_as_predicted(name: str, sixteen: Lab) -> None:
    workload = load_workload(f"{name},iters=1,warmup=0,local_ack_timeout=22").workload
    done = run_workload(sixteen, workload, Silent())
    assert done.wrong == 0 and len(done.jobs) == len(workload.jobs) == 2
    assert all(flow.counters["retransmitted"] == 0 for job in done.jobs for flow in job.flows)
    assert_carried(proven(sixteen), forecast(sixteen.fabric, workload, Ask(), Silent()), "flow", times=1)


def compare(
    lab: Lab, mode_name: str, folder: Path, warmup: int = 1, ask: Ask | None = None, fastpath: str = "auto", **more: Any
) -> None:
    """Run, prove, and compare the ports' counters with a prediction from the fabric file and a mode.

    more: keys of the plan, which are arguments of a run.
    """
    keys: dict[str, Any] = {"collective": "all-reduce", "qps": 6, "size": "300000", "placement": "cyclic", **more}
    # No packet is lost here; but with a shorter timeout a busy machine makes a NIC take one for lost.
    options = run_options(**keys, iters=1, warmup=warmup, local_ack_timeout=20, fastpath=fastpath)
    result = run(lab, options, Silent())
    assert result.wrong == result.icrc_errors == result.stray == total(result, "retransmitted") == 0
    proof = proven(lab)
    for flow, found in zip(result.flows, proof.flows, strict=True):
        assert not flow.sent.packets or found.predicted == found.oracle == found.measured
        assert found.counted == (flow.sent.packets,) * len(found.measured)
    plan = folder / "plan.yml"
    plan.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    ahead = forecast(lab.fabric, load_workload(str(plan)).workload, ask or Ask(mode=mode_name), Silent())
    assert_carried(proof, ahead, mode_name, options.iters + options.warmup)


def assert_carried(proof: PathsResult, ahead: Prediction, mode_name: str, times: int) -> None:
    """What switches counted in so many iterations is what was predicted."""
    mode = ahead.modes[0]
    assert mode.mode == mode_name
    assert mode.flows is not None
    ids = ahead.wires.id_of
    counted = {link.port: (link.flows, link.bytes) for link in proof.links}
    predicted = {port: (round(mode.flows[ids[port]]), round(mode.bytes[ids[port]]) * times) for port in counted}
    assert counted == predicted
    assert proof.mmr.bytes == pytest.approx(mode.mmr[1], abs=1e-4)
    switches = np.flatnonzero(ahead.wires.owner >= 0)
    assert {ahead.wires.ports[at] for at in switches if mode.bytes[at]} <= set(counted)


def test_jobs_carry_together_the_bytes_predicted_offline(lab_of: Callable[[str], Lab], tmp_path: Path) -> None:
    lab = lab_of("two tiers, e-ecmp")
    (tmp_path / "m.csv").write_text("src,dst,bytes\nhost4,0:3,40K\n2,host4,8K\n")
    (tmp_path / "w.yml").write_text("""\
share_nics: true
iters: 1
local_ack_timeout: 20
jobs:
  a: {collective: all-reduce, ranks: 0:3, size: 100K, qps: 3}
  b: {matrix: m.csv, ranks: 0:4, qps: 2}
  c: {matrix: "shift:1", ranks: [3, 2, 1], size: 16K, after: a, sport: own-qpn}
""")
    workload = load_workload(str(tmp_path / "w.yml")).workload
    result = run_workload(lab, workload, Silent())
    assert result.wrong == 0
    assert not any(flow.counters.get("retransmitted", 0) for job in result.jobs for flow in job.flows)
    assert_carried(proven(lab), forecast(lab.fabric, workload, Ask(mode="e-ecmp"), Silent()), "e-ecmp", times=2)


@pytest.mark.deep
def test_the_bytes_beyond_a_prediction_with_admission_are_the_acks_of_cts_that_the_run_names(sixteen: Lab) -> None:
    options = run_options(
        collective="all-reduce", size="300000", iters=1, warmup=0, local_ack_timeout=22, admission="on"
    )
    result = run(sixteen, options, Silent())
    acks = total(result, "cts_acks")
    assert result.wrong == total(result, "retransmitted") == total(result, "cts_resent") == 0 < acks
    assert f"#admission: {acks:,} ACKs of CTS are counted with the data, and not predicted" in result.table()
    ahead = forecast(sixteen.fabric, Workload.of(options), Ask(), Silent())
    mode, ids = ahead.modes[0], ahead.wires.id_of
    beyond = {link.port: link.bytes - round(mode.bytes[ids[link.port]]) for link in proven(sixteen).links}
    ack = LAYOUTS[4].overhead_bytes + AETH_BYTES
    assert all(each >= 0 and each % ack == 0 for each in beyond.values()), beyond
    # Each of them leaves by the port to its host, once.
    hosts = {port.peer_ref for host in sixteen.fabric.hosts for port in host.ports}
    assert sum(each for port, each in beyond.items() if port in hosts) == acks * ack
    assert sum(beyond.values()) < 0.01 * sum(mode.bytes)


@pytest.mark.deep
def test_predicted_next_hops_are_the_kernels_when_links_are_down_and_switches_drained(
    lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    lab, gone = lab_of("three tiers, flow"), Ask(down=("ctsw1:eth1",), drain=("atsw2",))
    with link_down(lab, "ctsw1:eth1"), drain(lab, "atsw2"):
        assert kernels_differ(lab, trouble_of(lab.fabric, gone.down, gone.drain)) == []
        compare(lab, "flow", tmp_path, ask=gone)  # the MMR too: links that are gone are in no mean


@pytest.mark.deep
def test_a_mode_that_was_switched_to_is_predicted_by_its_name(lab_of: Callable[[str], Lab], tmp_path: Path) -> None:
    lab = lab_of("three tiers, flow")
    set_hashing(lab, "pinned", HashOptions())
    try:
        compare(lab, "pinned", tmp_path)
    finally:
        set_hashing(lab, "flow", HashOptions())


@pytest.mark.deep
def test_predicted_weighted_next_hops_are_the_kernels(fabric_lab: FabricLab) -> None:
    link = {**LINK, "exceptions": {"ctsw2": "5mbit", "rtsw3:eth1": "10mbit"}}
    lab = fabric_lab(racks=3, ctsw=3, hosts_per_rack=1, link=link, routing={"ucmp": True})
    assert kernels_differ(lab, release=frr_release()) == []


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


@pytest.mark.parametrize("fastpath", ["on", "off"])
@pytest.mark.parametrize("rail", [False, True], ids=["one NIC", "rails"])
def test_every_collective_has_right_results_proven_paths_and_the_loads_that_were_predicted(
    fastpath: str, rail: bool, lab: Lab, joined: Lab, tmp_path: Path
) -> None:
    """Each is a step of one job. Those of rails copy inside their host."""
    lab = joined if rail else lab
    names = [name for name, each in patterns().items() if isinstance(each, RailPattern) == rail]
    steps = "".join(f"  - {{collective: {collective}, algorithm: {algorithm}}}\n" for collective, algorithm in names)
    (tmp_path / "all.yml").write_text(
        f"size: 100000\nqps: 2\niters: 1\nlocal_ack_timeout: 20\nplacement: cyclic\nfastpath: {fastpath}\n"
        f"steps:\n{steps}"
    )
    workload = load_workload(str(tmp_path / "all.yml")).workload
    (job,) = run_workload(lab, workload, Silent()).jobs
    assert job.wrong == job.icrc_errors == job.stray == total(job, "retransmitted") == 0
    assert job.nic_loop == ("compiled" if fastpath == "on" else "python")
    times = job.options.iters + job.options.warmup
    mode = lab.fabric.policy.routing.ecmp
    assert_carried(proven(lab, job.id), forecast(lab.fabric, workload, Ask(mode=mode), Silent()), mode, times)


@pytest.mark.deep
def test_a_collective_of_rails_uses_no_link_between_planes(rails: Lab, tmp_path: Path) -> None:
    collective, algorithm = next(name for name, pattern in patterns().items() if isinstance(pattern, RailPattern))
    compare(rails, rails.fabric.policy.routing.ecmp, tmp_path, collective=collective, algorithm=algorithm)


@pytest.mark.long
@pytest.mark.parametrize("fastpath", ["on", "off"])
@pytest.mark.parametrize(("collective", "algorithm"), patterns())
def test_each_collective_by_itself_too(
    collective: str, algorithm: str, fastpath: str, lab: Lab, rails: Lab, tmp_path: Path
) -> None:
    """In the gate: all of them as steps of one job, above, and some by themselves in other modules."""
    rail = isinstance(patterns()[collective, algorithm], RailPattern)
    fabric, more = rails if rail else lab, dict[str, Any](collective=collective, algorithm=algorithm)
    compare(fabric, fabric.fabric.policy.routing.ecmp, tmp_path, fastpath=fastpath, **more)


@pytest.mark.deep
@pytest.mark.parametrize(("collective", "fastpath"), [("all-reduce", "on"), ("broadcast", "off")])
def test_each_channel_of_a_ring_has_nics_of_its_own_between_hosts(
    collective: str, fastpath: Literal["on", "off"], joined: Lab, tmp_path: Path
) -> None:
    more = dict[str, Any](collective=collective, channels=2, nvlink_rate=3600)
    compare(joined, joined.fabric.policy.routing.ecmp, tmp_path, fastpath=fastpath, **more)


@pytest.mark.deep
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
    compare(lab, lab.fabric.policy.routing.ecmp, tmp_path, fastpath="on", collective="msccl", msccl=str(file))
