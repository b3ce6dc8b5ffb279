"""`validate` names what is broken on a live lab; one reading enters each namespace once, and parts fail alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.checks.validate import validate
from heddle.cli.console import Console
from heddle.cli.hashing_change import HashingWords, run_hashing
from heddle.kernel import namespace
from heddle.kernel.fib import read_fib
from heddle.lab import lab as labs
from heddle.lab import snapshot as reading
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.status import status
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import lookup_paths, prove
from heddle.runs.explain import explain
from heddle.switch.counters import read_counters
from heddle.switch.hashing.hashing import pin_dir
from heddle.traffic.flow import Sent
from tests.machine import until
from tests.netns.live import failed, in_node
from tests.netns.static_fabric import some_flows, static_fabric
from tests.readings import read_hashing


@pytest.mark.containers
def test_a_converged_lab_passes_every_check(tiny: Lab) -> None:
    assert [check.name for check in validate(tiny)] == [
        "nodes", "sysctls", "hashing", "queues", "offloads", "order", "programs", "thresholds", "faults", "links",
        "mtu", "neighbours", "addresses", "daemons", "bgp", "routes", "reachability", "depths", "headroom",
        "pauses", "paths", "polarisation", "attached", "separation",
    ]  # fmt: skip
    assert failed(tiny) == {}


CLASS = "tc class change dev eth1 parent"
RATE = f"{CLASS} 1: classid 1:1 htb rate 7mbit burst 8400b cburst 8400b quantum 4214"
WEIGHT = f"{CLASS} 1:1 classid 1:40 htb rate 8bit burst 1b ceil 100mbit cburst 8400b quantum 4214 prio 1"
NIC = "ingress:dequeue as port 29, egress:enqueue as port 29"
# What is broken by hand: node, command, the checks that fail, and how the detail of the first of them begins.
BROKEN = {
    "qdisc": ("rtsw1", "tc qdisc del dev eth1 root", "queues",
              "rtsw1:eth1  the root qdisc is missing; ./inv up --repair --name LAB installs it again"),
    "all programs": ("rtsw1", "tc qdisc del dev eth1 clsact", "programs", "rtsw1:eth1  the port has no program"),
    "one program": ("host1", "tc filter del block 54 pref 10", "programs",  # of ids and indexes that differ by 27
                    f"host1:eth1  the port has {NIC}, not ingress:dequeue as port 29, ingress:nic"),
    "rate": ("rtsw1", RATE, "queues", "rtsw1:eth1  the port is shaped to 7mbit"),
    "weight": ("rtsw1", WEIGHT, "queues",
               "rtsw1:eth1  the port has tbf limit 1073741824b, quantum 4214 prio 1 for class 3"),
    "seed": ("ctsw1", "sysctl -qw net.ipv4.fib_multipath_hash_seed=5", "sysctls hashing",
             "ctsw1  net.ipv4.fib_multipath_hash_seed is 5, not SEED"),
    "offload": ("host1", "ethtool -K eth1 tx on", "offloads", "host1:eth1  the port has tx-checksum on; ./inv up --re"),
}  # fmt: skip


WITH: dict[str, Any] = {"weight": pytest.mark.deep, "offload": pytest.mark.needs("ethtool")}


@pytest.mark.parametrize("what", [pytest.param(each, marks=WITH.get(each, ())) for each in BROKEN])
def test_what_is_broken_fails_its_check_and_no_other_and_is_repaired(tiny: Lab, what: str) -> None:
    """Also a port without its queue: its programs' counters do not fail, since that follows from it."""
    node, command, checks, said = BROKEN[what]
    in_node(tiny, node, command)
    try:
        found = failed(tiny)
    finally:
        repair(tiny, Silent())
    assert set(found) == set(checks.split())
    seed = tiny.fabric.by_name["ctsw1"].hash_seed
    assert found[checks.split()[0]].startswith(said.replace("LAB", tiny.name).replace("SEED", str(seed)))
    assert failed(tiny) == {}


@pytest.mark.deep
def test_a_host_that_cannot_be_reached_at_full_size_is_named(tiny: Lab) -> None:
    in_node(tiny, "host1", "ip link set eth1 mtu 1400")
    try:
        found = failed(tiny)
    finally:
        repair(tiny, Silent())
    # What the link lost was in a queue's books until the agent took it out, a second or two later.
    assert {"reachability", "mtu"} <= set(found) <= {"reachability", "mtu", "depths"}
    assert "host1:eth1 to host2:eth1" in found["reachability"]
    ends = "host1:eth1  the MTU is 1400, not 4200; the other end, rtsw1:eth3, has 4200; "
    assert found["mtu"].startswith(ends)
    until(lambda: failed(tiny) == {})


def test_routes_that_change_during_a_run_are_reported(tiny: Lab) -> None:
    flow = some_flows(tiny.fabric, 1)[0]
    before = collect_before(tiny)
    in_node(tiny, "rtsw1", "ip route add 192.0.2.0/24 dev eth1")
    try:
        sent = [Sent(flow, 0, 0)]
        result = prove(tiny.fabric, collect_after(tiny, before, sent))
        assert any("changed during the run: rtsw1" in note for note in result.notes)
        assert any("1 QPs had nothing to send" in note for note in result.notes)
    finally:
        in_node(tiny, "rtsw1", "ip route del 192.0.2.0/24")


IN_KERNELS = LabPart.FIBS | LabPart.HASHING | LabPart.COUNTERS | LabPart.DROPS | LabPart.CARRIER | LabPart.PORTS


@pytest.fixture
def entered(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each node's namespace is entered."""
    names = {handle.netns.stat().st_ino: name for name, handle in tiny.handles().items()}
    counts: Counter[str] = Counter()
    setns = namespace.setns

    def counted(fd: int, kind: int) -> None:
        if (inode := os.fstat(fd).st_ino) in names:
            counts[names[inode]] += 1
        setns(fd, kind)

    monkeypatch.setattr(namespace, "setns", counted)
    yield counts


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LabPart]]:
    """The parts of each snapshot of a lab that is taken."""
    found: list[LabPart] = []
    whole = reading.take

    def counted(*positional: object, **named: object) -> Snapshot:
        assert isinstance(positional[2], LabPart)
        found.append(positional[2])
        return whole(*positional, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(labs, "take", counted)
    yield found


def test_all_parts_together_enter_each_namespace_once(tiny: Lab, entered: Counter[str]) -> None:
    now = tiny.snapshot(~LabPart(0))
    assert entered == dict.fromkeys(tiny.handles(), 1)
    switches = {node.name for node in tiny.fabric.switches}
    assert set(now.fibs) == set(now.hashing) == set(now.counters) == set(now.epochs) == set(now.sessions) == switches
    assert set(now.drops) == {port.ref for node in tiny.fabric.switches for port in node.ports}
    assert not (now.down or now.foreign_roots or now.silent or now.drained)
    assert {state for peers in now.sessions.values() for state in (peers or {}).values()} == {"Established"}
    assert (
        len(now.queues.switches) == tiny.fabric.space[0] > len(tiny.fabric.nodes)
        and not now.queues.cells.flags.writeable
    )


@pytest.mark.deep
def test_parts_in_one_reading_are_what_single_readers_find_and_only_named_nodes_are_entered(
    tiny: Lab, entered: Counter[str]
) -> None:
    now = tiny.snapshot(IN_KERNELS)
    for node in tiny.fabric.switches:
        handle = tiny.handle(node.name)
        assert now.fibs[node.name] == read_fib(handle)
        assert now.hashing[node.name] == read_hashing(tiny.name, handle)
        assert now.counters[node.name].flows == read_counters(tiny.fabric, [node.name])[node.name].flows
    entered.clear()
    assert set(tiny.snapshot(LabPart.FIBS, ["rtsw1"]).fibs) == {"rtsw1"}
    assert entered == {"rtsw1": 1}


def test_status_takes_one_snapshot(tiny: Lab, entered: Counter[str], taken: list[LabPart]) -> None:
    (row,) = status(tiny.name)
    assert row.converged and row.bgp.established == row.bgp.expected > 0
    assert entered == dict.fromkeys(tiny.handles(), 4), "once for the snapshot, sysctls, features, sizes of GRO each"
    assert len(taken) == 1 and not taken[0] & (LabPart.COUNTERS | LabPart.QUEUES)


def test_each_verb_takes_one_snapshot(tiny: Lab, taken: list[LabPart]) -> None:
    flows = some_flows(tiny.fabric, 4)

    def one(verb: str) -> None:
        assert len(taken) == 1, verb
        taken.clear()

    assert all(check.ok for check in validate(tiny))
    one("validate")
    assert read_queues(tiny).rows
    one("queues")
    run_hashing(Console("json"), tiny.name, HashingWords())
    one("hashing")
    assert lookup_paths(tiny, flows).agree
    one("predict")
    assert explain(tiny, f"{flows[0].src},{flows[0].dst}").agree
    one("hashing --explain")


@pytest.mark.deep
def test_a_part_that_fails_fails_alone_where_errors_are_kept() -> None:
    with static_fabric() as lab:
        pin = pin_dir(lab.name, "rtsw1") / "active"
        aside = Path(f"{pin}-aside")
        pin.rename(aside)
        try:
            with pytest.raises(MachineError, match="hashing maps"):
                lab.snapshot(LabPart.FIBS | LabPart.HASHING)
            now = lab.snapshot(LabPart.FIBS | LabPart.HASHING, keep_errors=True)
            assert set(now.fibs) == {node.name for node in lab.fabric.switches}
            with pytest.raises(MachineError, match="hashing maps"):
                _ = now.hashing
        finally:
            aside.rename(pin)
        assert lab.snapshot(LabPart.HASHING).hashing
