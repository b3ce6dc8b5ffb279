"""`validate` on a live lab: right when nothing is wrong, and naming what is broken when something is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.process import run
from heddle.checks.validate import CheckResult, validate
from heddle.kernel import namespace
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import prove
from heddle.traffic.flow import Sent
from heddle.views.pathstext import paths_text
from tests.machine import patience
from tests.netns.static_fabric import some_flows

pytestmark = pytest.mark.root


def inside(lab: Lab, node: str, *command: str) -> None:
    run(["nsenter", f"--net={lab.handle(node).netns}", *command])


def failed(lab: Lab) -> dict[str, CheckResult]:
    return {check.name: check for check in validate(lab) if not check.ok}


@contextmanager
def broken(lab: Lab, node: str, breaks: str, repair: str) -> Iterator[dict[str, CheckResult]]:
    inside(lab, node, *breaks.split())
    try:
        yield failed(lab)
    finally:
        inside(lab, node, *repair.split())


@pytest.mark.containers
def test_a_converged_lab_passes_every_check(tiny: Lab) -> None:
    assert [check.name for check in validate(tiny)] == [
        "nodes", "sysctls", "hashing", "queues", "offloads", "order", "programs", "thresholds", "faults", "links",
        "daemons", "bgp", "routes", "reachability", "depths", "headroom", "pauses", "paths", "polarisation",
    ]  # fmt: skip
    assert failed(tiny) == {}


def test_a_wrong_rate_is_named(tiny: Lab) -> None:
    wrong = "tc class change dev eth1 parent 1: classid 1:1 htb rate 7mbit burst 8400b cburst 8400b quantum 4214"
    port = tiny.fabric.by_name["rtsw1"].port("eth1")
    with broken(tiny, "rtsw1", wrong, wrong.replace("7mbit", f"{port.rate_bps}bit")) as found:
        assert set(found) == {"queues"}
        assert "rtsw1:eth1 is shaped to 7mbit" in found["queues"].detail


def test_a_deleted_qdisc_is_named_once(tiny: Lab) -> None:
    """Also its programs': what passes meanwhile is missing in the counters of that port, and that follows from it."""
    port = tiny.fabric.by_name["rtsw1"].port("eth1")
    try:
        inside(tiny, "rtsw1", "tc", "qdisc", "del", "dev", "eth1", "root")
        found = failed(tiny)
        assert set(found) == {"queues"}
        assert found["queues"].detail == f"{port.ref}: the root qdisc is missing"
    finally:
        repair(tiny, Silent())
    assert failed(tiny) == {}
    try:
        inside(tiny, "rtsw1", "tc", "qdisc", "del", "dev", "eth1", "clsact")
        found = failed(tiny)
        assert set(found) == {"programs"}
        assert f"{port.ref} has no program" in found["programs"].detail
    finally:
        repair(tiny, Silent())


@pytest.mark.deep
def test_a_wrong_weight_is_named(tiny: Lab) -> None:
    own = "rate 8bit burst 1b ceil 100mbit cburst 8400b"
    wrong = f"tc class change dev eth1 parent 1:1 classid 1:40 htb {own} quantum 4214 prio 1"
    with broken(tiny, "rtsw1", wrong, wrong.replace("4214", "16856")) as found:
        assert set(found) == {"queues"}
        assert "rtsw1:eth1, class 3: tbf limit 1073741824b, quantum 4214 prio 1, not" in found["queues"].detail
    assert failed(tiny) == {}


def test_a_changed_sysctl_is_named(tiny: Lab) -> None:
    seed = tiny.fabric.by_name["ctsw1"].hash_seed
    key = "net.ipv4.fib_multipath_hash_seed"
    path = Path("/proc/sys", key.replace(".", "/"))

    def write(value: int | None) -> None:
        with namespace.inside(tiny.handle("ctsw1").netns):
            path.write_text(str(value))

    write(5)
    try:
        found = failed(tiny)
    finally:
        write(seed)
    assert set(found) == {"sysctls", "hashing"}
    assert f"ctsw1: {key} is 5, not {seed}" in found["sysctls"].detail


@pytest.mark.needs("ethtool")
def test_an_offload_and_a_detached_program_are_named(tiny: Lab) -> None:
    with broken(tiny, "host1", "ethtool -K eth1 tx on", "ethtool -K eth1 tx off") as found:
        assert set(found) == {"offloads"}
        assert found["offloads"].detail == "host1:eth1 has tx-checksum on"
    pin = f"/sys/fs/bpf/heddle/{tiny.name}/_hosts/nic"
    attach = f"tc filter add dev eth1 ingress pref 10 handle 1 bpf direct-action object-pinned {pin}"
    with broken(tiny, "host1", "tc filter del dev eth1 ingress pref 10", attach) as found:
        assert set(found) == {"programs"}
        has, wanted = found["programs"].detail.split(", not ")
        assert has == "host1:eth1 has ingress:dequeue as port 13, egress:enqueue as port 13"
        assert "ingress:nic" in wanted
    assert failed(tiny) == {}


@pytest.mark.deep
def test_a_host_that_cannot_be_reached_at_full_size_is_named(tiny: Lab) -> None:
    mtu = tiny.fabric.policy.mtu
    with broken(tiny, "host1", "ip link set eth1 mtu 1400", f"ip link set eth1 mtu {mtu}") as found:
        # What the link lost was in a queue's books until the agent took it out, a second or two later.
        assert {"reachability"} <= set(found) <= {"reachability", "depths"}
        assert "host1:eth1 to host2:eth1" in found["reachability"].detail
    end = time.monotonic() + patience(60)
    while left := failed(tiny):
        assert set(left) == {"depths"}
        assert time.monotonic() < end, left


def test_routes_that_change_during_a_run_are_reported(tiny: Lab) -> None:
    flow = some_flows(tiny.fabric, 1)[0]
    before = collect_before(tiny)
    inside(tiny, "rtsw1", "ip", "route", "add", "192.0.2.0/24", "dev", "eth1")
    try:
        sent = [Sent(flow, 0, 0)]
        result = prove(tiny.fabric, collect_after(tiny, before, sent))
        assert any("changed during the run: rtsw1" in note for note in result.notes)
        assert any("1 QPs had nothing to send" in note for note in result.notes)
    finally:
        inside(tiny, "rtsw1", "ip", "route", "del", "192.0.2.0/24")


@pytest.mark.deep
@pytest.mark.parametrize("keys", [{"routing": {"ecmp": "flow"}}, {"routing": {"ecmp": "e-ecmp"}}])
def test_prediction_and_oracle_agree_where_bgp_made_the_routes(fabric_lab: object, keys: dict[str, object]) -> None:
    from heddle.proof.verdict import lookup_paths

    assert callable(fabric_lab)
    link = {"host": "25mbit", "fabric": "25mbit"}
    lab = fabric_lab(racks=3, ctsw=5, hosts_per_rack=1, link=link, **keys)
    result = lookup_paths(lab, some_flows(lab.fabric, 300))
    assert result.agree, paths_text(result)
    assert {len(proof.oracle) for proof in result.flows} == {3}
    assert failed(lab) == {}
