"""Three tiers under traffic: which rules sort packets twice by the same hash, and which bring them out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.checks.validate import CheckResult, validate
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.policy import HashOptions
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.rehash import set_hashing
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.switch.counters import read_counters
from heddle.traffic.options import RunOptions
from tests.marks import deep
from tests.netns.order import in_order, late


@pytest.fixture(scope="module")
def dc(lab_name: Callable[[], str]) -> Iterator[Lab]:
    """Preset dc in namespaces; tests set its hashing.

    One CTSW of each zone is slow: where all ways are alike and evenly used, even sprayed packets keep their order.
    """
    name = lab_name()
    slow = [f"link.exceptions.{ctsw}=5mbit" for ctsw in ("ctsw2", "ctsw4")]
    try:
        yield life.up(load_fabric("dc", name=name, overrides=slow)).lab
    finally:
        life.down(name)


def checked(lab: Lab) -> CheckResult:
    return next(check for check in validate(lab) if check.name == "polarisation")


def carried(lab: Lab) -> dict[str, int]:
    """Uplink of a CTSW -> RoCE packets that went over it since the lab is up."""
    found: dict[str, int] = {}
    counters = read_counters(lab.fabric)
    for node in lab.fabric.switches:
        if node.level == 2:
            counts = {count.port: count.roce_packets for count in counters[node.name].ports}
            found |= {f"{node.name}:{port}": counts.get(port, 0) for port in ("eth3", "eth4")}
    return found


def used(lab: Lab, **options: object) -> dict[str, list[str]]:
    """CTSW -> the uplinks that a run between the zones used."""
    before = carried(lab)
    hosts = "host1,host5,host2,host6,host3,host7,host4,host8"
    run(lab, RunOptions(qps=16, sizes=(32768,), iters=1, warmup=0, placement=hosts, **options), Silent())  # type: ignore[arg-type]
    after = carried(lab)
    found: dict[str, list[str]] = {}
    for ref, count in after.items():
        if count > before[ref]:
            found.setdefault(ref.partition(":")[0], []).append(ref.partition(":")[2])
    return found


@pytest.mark.parametrize("mode", ["flow", deep("e-ecmp")])
def test_shared_seeds_leave_each_ctsw_one_of_its_uplinks_and_validate_says_why(dc: Lab, mode: str) -> None:
    set_hashing(dc, mode, seed="shared")
    assert {switch: len(ports) for switch, ports in used(dc).items()} == {f"ctsw{c}": 1 for c in range(1, 5)}
    check = checked(dc)
    assert not check.ok
    assert check.detail.startswith("ctsw1 uses 1 of its 2 next hops: rtsw")
    assert "bits of mutual information" in check.detail
    assert f"routing.seed: per-switch, or ./inv hashing {mode} --set seed=per-switch" in check.detail


@pytest.mark.parametrize(("mode", "seed"), [("flow", "per-switch"), deep("e-ecmp", "per-tier")])
def test_seeds_that_differ_between_tiers_use_all_of_them(dc: Lab, mode: str, seed: str) -> None:
    set_hashing(dc, mode, seed=seed)
    assert used(dc) == {f"ctsw{c}": ["eth3", "eth4"] for c in range(1, 5)}
    assert checked(dc).ok


def ran(lab: Lab, transport: str = "rc", size: int = 65536) -> RunResult:
    return run(lab, RunOptions(qps=2, sizes=(size,), iters=2, warmup=0, transport=transport), Silent())


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["flow", "pinned"])
def test_a_queue_pair_on_one_path_keeps_its_order(dc: Lab, mode: str) -> None:
    set_hashing(dc, mode)
    assert "#order" not in in_order(ran(dc)).table()


def test_a_nic_that_takes_any_order_sends_nothing_twice_over_a_fabric_that_sprays(dc: Lab) -> None:
    set_hashing(dc, "spray", HashOptions(choice="random"))
    result = ran(dc, "srd")
    assert late(result) > 0 and result.wrong == 0
    assert sum(flow.counters["retransmitted"] for flow in result.flows) == 0
    assert not [warning for warning in result.warnings if "spray" in warning]
    assert result.nic_loop == "python"
    in_need = ran(dc)
    assert any("use --transport srd" in warning for warning in in_need.warnings)
    assert "transport rc counts packets that arrive out of order as lost" in in_need.table()
    assert in_need.nic_loop == "compiled"


@pytest.mark.deep
def test_a_flowlet_gap_must_be_longer_than_the_delay_difference_of_paths(dc: Lab) -> None:
    set_hashing(dc, "flowlet", HashOptions(gap_ns=1_000))
    assert late(ran(dc)) > 0
    set_hashing(dc, "flowlet", HashOptions(gap_ns=2_000_000_000))
    in_order(ran(dc))
