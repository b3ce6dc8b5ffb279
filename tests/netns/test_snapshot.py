"""One reading of a real lab: each namespace is entered once, each verb takes one snapshot, and parts fail alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.checks.validate import validate
from heddle.cli.console import Console
from heddle.cli.hashing_change import HashingWords, run_hashing
from heddle.kernel import namespace
from heddle.kernel.fib import read_fib
from heddle.lab import lab as labs
from heddle.lab import snapshot
from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.status import status
from heddle.proof.verdict import lookup_paths
from heddle.runs.explain import explain
from heddle.switch.counters import read_counters
from heddle.switch.hashing.hashing import pin_dir, read_hashing
from tests.netns.static_fabric import some_flows, static_fabric

pytestmark = pytest.mark.root

IN_KERNELS = LabPart.FIBS | LabPart.HASHING | LabPart.COUNTERS | LabPart.DROPS | LabPart.CARRIER | LabPart.ROOTS


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
    whole = snapshot.take

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
    assert len(now.queues.switches) == len(tiny.fabric.nodes) and not now.queues.cells.flags.writeable


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


def test_status_enters_each_namespace_once(tiny: Lab, entered: Counter[str], taken: list[LabPart]) -> None:
    (row,) = status(tiny.name)
    assert row.converged and row.bgp.established == row.bgp.expected > 0
    assert entered == dict.fromkeys(tiny.handles(), 1)
    assert len(taken) == 1 and not taken[0] & (LabPart.COUNTERS | LabPart.HASHING | LabPart.QUEUES)


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
    one("paths --predict")
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
