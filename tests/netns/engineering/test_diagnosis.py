"""A diagnosis of a live lab names the cause and the place, and does not read the record of faults that were set."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.checks.validate import validate
from heddle.lab import outages
from heddle.lab.facts import FACTS
from heddle.lab.faults import packets, record
from heddle.lab.lab import Lab
from heddle.lab.queues import wait_empty
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RECORD
from heddle.runs.store import History
from heddle.spec.impairments import LinkFault
from heddle.traffic.options import RunOptions
from heddle_plugins.engineering.diagnosis.diagnosis import Diagnosis, diagnose
from heddle_plugins.engineering.runsection import diagnosis_text
from tests import incidents
from tests.conftest import Borrow
from tests.machine import patience
from tests.netns.collectives import proven, ran, run_and
from tests.typed import typed

BAD = "rtsw2:eth1"
HIDDEN = ("faults", "fabric_state")  # of the record of a run: what `run --fault`, and the lab's own list, say of faults


def of_last(lab: Lab, *, probes: bool = True) -> Diagnosis:
    return diagnose(History.of(lab).open(), lab, Silent() if probes else None)


def named(found: Diagnosis) -> tuple[str, str, str]:
    assert found.verdict is not None
    return found.verdict.cause, found.verdict.object, found.verdict.confidence


def refused(*_: Any) -> Any:
    raise AssertionError("the record of faults was read")


def test_a_lossy_link_is_named_also_when_every_record_of_it_is_gone(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    outages.set_fault(tiny, [BAD], LinkFault(loss=1 / 8))
    try:
        result = ran(tiny, qps=4, placement="cyclic", sizes=(1 << 17,))
        seen = of_last(tiny)
        assert named(seen) == ("link-lossy", BAD, "established")
        path = History.of(tiny).open(result.id).path / RECORD
        stored = json.loads(path.read_text())
        stored["header"]["options"]["faults"] = []
        stored["outcome"] |= dict.fromkeys(HIDDEN)
        path.write_text(json.dumps(stored))
        kept = record.read(tiny.dir)
        record.write(tiny.dir, ())
        with monkeypatch.context() as hiding:
            hiding.setattr(record, "read", refused)
            hiding.setattr(packets, "wanted_faults", refused)
            again = of_last(tiny)
        record.write(tiny.dir, kept)
        assert [each.to_json() for each in again.findings] == [each.to_json() for each in seen.findings]
    finally:
        outages.clear_faults(tiny)


@pytest.mark.deep
def test_what_the_run_did_not_use_is_found_by_probes(tiny: Lab) -> None:
    ran(tiny, ranks=2, sizes=(1 << 14,))  # both are in the first rack
    outages.set_fault(tiny, ["ctsw2:eth2"], LinkFault(loss=1 / 8))
    try:
        assert not of_last(tiny, probes=False).fault
        found = of_last(tiny)
        assert named(found) == ("link-lossy", "ctsw2:eth2", "established")
        assert found.case.probed
    finally:
        outages.clear_faults(tiny)


@pytest.mark.parametrize(
    "kind", [incidents.misrouted, incidents.wrong_seed, incidents.wrong_threshold, incidents.slow_link],
    ids=lambda kind: str(kind.__name__),
)  # fmt: skip
def test_what_an_operator_did_by_hand_is_named(tiny: Lab, kind: Any) -> None:
    ran(tiny, sizes=(1 << 14,))  # the last run of another test may have had a fault
    incident = kind(tiny, random.Random(3))
    with incident.around():
        found = of_last(tiny, probes=False)
    assert found.verdict is not None
    assert (found.verdict.cause, found.verdict.object in incident.objects) == (incident.cause, True)
    assert not of_last(tiny, probes=False).fault, "it is over"


def test_a_lab_without_a_finished_run_is_watched_for_a_second(tiny: Lab) -> None:
    incident = incidents.storm(tiny, random.Random(5))
    with incident.around():
        found = diagnose(None, tiny)
    assert found.verdict is not None
    assert (found.verdict.cause, found.verdict.object in incident.objects) == (incident.cause, True)
    assert found.to_json()["run_id"] is None


@pytest.mark.long("10 seconds and more")
def test_routes_that_a_run_lost_for_a_moment_are_a_fault_and_not_the_machine(tiny: Lab) -> None:
    """A route of a host is unreachable for a moment: packets are sent again, and the states around the run agree."""
    incident = incidents.lost_route(tiny, random.Random(1))

    def cut() -> None:
        with incident.around():
            time.sleep(0.2)

    run_and(tiny, RunOptions(sizes=(1 << 20,), iters=30, warmup=0, qps=4), cut)
    found = of_last(tiny, probes=False)
    assert found.verdict is not None
    named_by = (found.verdict.cause, found.verdict.object in incident.objects, found.verdict.confidence)
    assert named_by == (incident.cause, True, "established"), diagnosis_text(found)


@pytest.mark.deep
def test_what_validate_fails_on_is_named_beside_an_established_fault(tiny: Lab) -> None:
    """A host without its address, which no fact shows, beside a link with a wrong MTU.

    Packets that the link loses count as waiting for a second or two. So checks count that fail before and after.
    """
    with ExitStack() as stack:
        assert wait_empty(tiny, patience(30)) == []
        stack.enter_context(incidents.small_mtu(tiny, random.Random(1)).around())
        stack.enter_context(incidents.without_address(tiny, random.Random(2)).around())
        named_by = {each.name for each in validate(tiny) if not each.ok}
        found = of_last(tiny) if History.of(tiny).ids() else diagnose(None, tiny, Silent())
        named_by &= {each.name for each in validate(tiny) if not each.ok}
    assert found.verdict is not None and found.verdict.cause == "wrong-mtu"
    said = {each.cause for each in found.findings} | {line.source for each in found.findings for line in each.evidence}
    facts = {FACTS[each.kind].check for each in found.case.facts} | ({"paths"} if "unproven-paths" in said else set())
    assert {name for name in named_by if name not in facts and f"check {name}" not in said} == set()
    assert "reachability" in named_by


@pytest.mark.long("10 seconds and more")
def test_the_verb_prints_the_verdict_first_also_without_a_run(tiny: Lab) -> None:
    for each in History.of(tiny).ids():
        History.of(tiny).remove([each])
    with incidents.small_mtu(tiny, random.Random(1)).around():
        none = typed("diagnose", f"--lab={tiny.name}")
    assert none.returncode == 0 and " the MTU is 1500, not 4200" in none.stdout.partition("\n")[0]
    assert "run        : none; the lab was read twice, a second apart" in none.stdout
    assert typed("diagnose", f"--lab={tiny.name}", "--run=3").returncode == 2
    result = ran(tiny, sizes=(1 << 14,))
    assert result.lost is not None and not sum(result.lost.values()), (
        "the queues are empty of the probes that the small MTU has lost"
    )
    with incidents.misrouted(tiny, random.Random(3)).around():
        done = typed("diagnose", f"--lab={tiny.name}", "--format=json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["verdict"]["cause"] == document["findings"][0]["cause"] == "misrouting"
    node = document["verdict"]["object"]
    assert document["root_causes"] == [
        {"resource": {"kind": "node", "node": node}, "fault_type": "host_static_blackhole"}
    ]
    assert document["is_anomaly"] is True


@pytest.mark.long("10 seconds and more")
def test_a_buffer_that_trims_is_named_and_each_trimmed_packet_is_part_of_the_proof(borrow: Borrow) -> None:
    lab = borrow("tiny", *incidents.SHALLOW)
    incident = incidents.shallow(lab, random.Random(1))
    result = ran(lab, transport="srd", **incident.options)
    found = of_last(lab, probes=False)
    assert found.verdict is not None and not found.fault
    assert (found.verdict.cause, found.verdict.object in incident.objects) == (incident.cause, True)
    paths, queues = proven(lab), result[QueueUse]
    assert sum(paths.trimmed.values()) == queues.trims > 0
    assert sum(paths.lost.values()) == sum(queues.drops.values())
