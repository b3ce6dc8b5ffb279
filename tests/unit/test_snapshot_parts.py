"""A snapshot holds what was asked for, and says so when something else is used."""

from __future__ import annotations

import pytest

from heddle.base.problems import MachineError, Problem
from heddle.lab.snapshot import LabPart, NodeSnapshot, NotReadError, Snapshot, take
from heddle.switch.counters import FlowCount, SwitchCounters
from tests.unit.test_paths_report import FABRIC, HASHING, fibs, snapshot


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (LabPart.FIBS, "fibs"),
        (LabPart.HASHING, "hashing"),
        (LabPart.HASHING, "epochs"),
        (LabPart.HASHING, "statistics"),
        (LabPart.COUNTERS, "counters"),
        (LabPart.DROPS, "drops"),
        (LabPart.DROPS, "backlog_drops"),
        (LabPart.QUEUES, "queues"),
        (LabPart.CARRIER, "down"),
        (LabPart.ROOTS, "foreign_roots"),
        (LabPart.SESSIONS, "sessions"),
        (LabPart.DRAINED, "drained"),
        (LabPart.SILENT, "silent"),
    ],
)
def test_a_part_that_was_not_read_raises_and_names_the_part(part: LabPart, name: str) -> None:
    everything = ~LabPart(0)
    found = Snapshot("zone", everything & ~part, {"rtsw1": NodeSnapshot("rtsw1")})
    with pytest.raises(NotReadError, match=rf"lab zone has no {part.name}: pass LabPart\.{part.name}"):
        getattr(found, name)


def test_a_part_that_could_not_be_read_raises_its_own_error_each_time_it_is_used() -> None:
    error = MachineError(Problem("bpf", "the maps", "are gone"))
    found = Snapshot("zone", LabPart.FIBS | LabPart.HASHING, {}, failed={LabPart.HASHING: error})
    assert found.fibs == {}
    for _ in range(2):
        with pytest.raises(MachineError, match="the maps are gone"):
            _ = found.hashing


def test_a_snapshot_is_frozen_and_another_with_the_same_content_is_equal() -> None:
    found = snapshot(fibs(), HASHING)
    assert found == snapshot(fibs(), HASHING)
    with pytest.raises(AttributeError):
        found.lab = "other"  # type: ignore[misc]


def test_a_lab_without_daemons_cannot_be_asked_for_their_sessions() -> None:
    with pytest.raises(ValueError, match="no daemons to ask"):
        take(FABRIC, {}, LabPart.SESSIONS)


def test_other_counters_replace_those_of_every_node_and_nothing_else() -> None:
    table = {
        s.name: SwitchCounters(s.name, (FlowCount("eth1", "a", "b", 7, 1, 5, 50),), (), 0) for s in FABRIC.switches
    }
    found = snapshot(fibs(), HASHING, drops={"rtsw1:eth1": 3}).with_counters(table)
    assert found.counters == table and found.drops == {"rtsw1:eth1": 3} and found.fibs == fibs()
