"""Collectives over links with faults: go-back-N delivers every byte, and each fault shows up where it belongs.

`status`, `validate`, `up --repair` and the reset between two tests know what was set. Faults of `run --fault` last as
long as one run, however it ends, or begin and end in it, and the run records them.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.checks.validate import validate
from heddle.lab import lifecycle as life
from heddle.lab import linkstate, outages
from heddle.lab.faults import orders, packets, record
from heddle.lab.health import restore_configured
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of
from heddle.lab.status import status
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.store import paths_of
from heddle.spec.impairments import LinkFault
from heddle.switch.links import portfaults
from heddle.switch.queues.cells import LINK_FAULT, LabQueues
from heddle.traffic.options import RunOptions
from heddle_plugins.testing.pool import ResetResult, processes_of, reset
from tests.listener import Listener
from tests.machine import patience, rc_timeout, until
from tests.netns.collectives import proven, total
from tests.netns.live import failed, started
from tests.typed import typed

NO_NETEM: Final = portfaults.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
RING: Final = RunOptions(sizes=(1 << 19,), iters=2, warmup=0)
LONG: Final = RunOptions(sizes=(4 << 20,), iters=4, warmup=0, qps=4)


FLAP: Final = "rtsw1:eth1,down,from=300ms,to=1500ms"


SHORT: Final = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)
LOSSY: Final = "rtsw2:eth3,loss=1/32"
Set = dict[str, tuple[LinkFault, str]]


@dataclass
class During:
    """A listener of the table: what is set when the first size has been measured. then: what happens at that moment."""

    lab: Lab
    then: Callable[[], object] = lambda: None
    seen: Set = field(default_factory=dict)

    def head(self, head: RunRecord) -> None:
        pass

    def row(self, row: SizeRow) -> None:
        self.seen = now(self.lab)
        self.then()


def now(lab: Lab) -> Set:
    """Port -> its fault, and what has set it."""
    return {each.port: (each.fault, each.by) for each in packets.read_faults(lab)}


@pytest.fixture(autouse=True)
def cleared(tiny: Lab) -> Iterator[None]:
    yield
    outages.clear_faults(tiny)
    assert packets.read_faults(tiny) == []


def test_every_byte_arrives_and_each_fault_shows_where_it_belongs(tiny: Lab) -> None:
    loss, corrupt, duplicate = "rtsw2:eth3", "rtsw1:eth3", "rtsw2:eth4"  # to three hosts
    outages.set_fault(tiny, [loss], LinkFault(loss=1 / 32))
    outages.set_fault(tiny, [corrupt], LinkFault(corrupt=1 / 32))
    outages.set_fault(tiny, [duplicate], LinkFault(duplicate=1 / 16))
    outages.set_fault(tiny, ["host1", "rtsw1:eth1", "rtsw1:eth2"], LinkFault(loss=1 / 128, duplicate=1 / 32))
    result = run(tiny, RING, Silent())
    paths = proven(tiny)  # what a link lost or copied is in its counters, and a wrong ICRC is counted by queue pair
    twice = {note.split()[5].rstrip(";") for note in paths.notes if "came twice after" in note}
    assert duplicate in twice and len(twice) > 1, paths.notes
    counts = {each.port: each.counts for each in packets.read_faults(tiny) if each.counts is not None}
    assert result.wrong == 0
    assert total(result, "retransmitted") > 0
    assert counts[duplicate]["duplicated"] > 0
    assert result.icrc_errors == counts[corrupt]["corrupted"] > 0, "the ICRC check of the NIC"
    assert result[QueueUse].drops.keys() == {"fault"}
    # The port's own packets, such as IPv6 neighbour discovery, may be lost before and after the run.
    assert 0 < result[QueueUse].drops["fault"] <= sum(each["lost"] for each in counts.values())


@needs_netem
def test_reordered_packets_cause_naks_and_no_wrong_data(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(delay_ns=5_000, reorder=1 / 32))
    result = run(tiny, RING, Silent())
    assert result.wrong == 0
    assert total(result, "out_of_order") > 0
    assert total(result, "retransmitted") > 0


@needs_netem
def test_a_path_of_four_delayed_links_delivers_everything_in_order(tiny: Lab) -> None:
    """Each packet passes up to four delay lines: the kernel must not take that for a loop."""
    outages.set_fault(tiny, ["rtsw*", "ctsw*", "host*"], LinkFault(delay_ns=150, jitter_ns=20))
    result = run(tiny, RunOptions(sizes=(1 << 18,), iters=1, warmup=0), Silent())
    assert result.wrong == 0
    assert (total(result, "out_of_order"), total(result, "retransmitted")) == (0, 0)
    proven(tiny)


def test_status_and_validate_name_a_fault(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw1:eth1"], LinkFault(loss=1 / 256, duplicate=0.005))
    (row,) = status(tiny.name)
    assert row.converged, "routes do not depend on it"
    assert row.link_faults == ("rtsw1:eth1: 1/256 lost, 1/200 duplicated",)
    (check,) = [each for each in validate(tiny, ["faults"]) if each.name == "faults"]
    assert check.ok
    assert check.notes == ("a fault is set on rtsw1:eth1: 1/256 lost, 1/200 duplicated",)


def test_repair_sets_a_fault_again_that_was_changed_by_hand(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw1:eth1"], LinkFault(loss=1 / 256))
    with LabQueues.pinned(tiny.fabric) as live:
        live.links["flags"][live.ids["rtsw1", "eth1"]] ^= LINK_FAULT
    said = failed(tiny, ["faults"])["faults"]
    assert said.startswith("rtsw1:eth1  the link has lost the fault that was set on it; ./inv up --repair")
    done = life.repair_lab(tiny.name).repaired
    assert done is not None and "rtsw1:eth1: link fault set again" in done.done
    assert failed(tiny, ["faults"]) == {}


def test_the_reset_between_two_tests_clears_faults(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw1", "host1:eth1"], LinkFault(loss=1.0))
    assert len(packets.read_faults(tiny)) == 5
    assert reset(tiny, processes_of(tiny)) == ResetResult()
    assert packets.read_faults(tiny) == []


def test_a_fault_lasts_as_long_as_the_run_and_each_port_has_afterwards_what_it_had(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(duplicate=1 / 64))
    faults = (LOSSY, "rtsw1,loss=1/64")
    options = RunOptions(sizes=(1 << 19,), iters=1, warmup=0, timeout=rc_timeout(14), faults=faults)
    table = During(tiny)
    result = run(tiny, options, Silent(), table)
    assert result.wrong == 0
    more = {f"rtsw1:eth{number}": (LinkFault(loss=1 / 64), "run") for number in (1, 2, 3, 4)}
    assert table.seen == {"rtsw2:eth3": (LinkFault(loss=1 / 32), "run"), **more}
    assert now(tiny) == {"rtsw2:eth3": (LinkFault(duplicate=1 / 64), "fault")}
    assert result[QueueUse].drops["fault"] > 0
    proven(tiny)


@pytest.mark.deep
def test_table_and_json_of_the_run_have_its_faults(tiny: Lab) -> None:
    words = ("run", "--size", "64K", "--iters", "1", "--lab", tiny.name)
    done = typed(*words, "--fault", LOSSY)
    assert done.returncode == 0, done.stderr
    assert "\n#faults   : rtsw2:eth3: 1/32 lost (one run)\n" in done.stdout
    data = json.loads(typed(*words, "--fault", LOSSY, "--fault", "host1,corrupt=1%", "--format", "json").stdout)
    assert data["options"]["faults"] == [LOSSY, "host1,corrupt=1%"]
    for when in ("before", "after"):
        assert data["fabric_state"][when]["link_faults"] == [
            "host1:eth1: 1/100 corrupted (one run)", "rtsw2:eth3: 1/32 lost (one run)",
        ]  # fmt: skip
    assert data["fabric_state"]["state"] == "converged" and data["warnings"] == []
    plain = json.loads(typed(*words, "--format", "json").stdout)
    assert plain["options"]["faults"] == [] and "link_faults" not in plain["fabric_state"]["before"]
    compared = typed("compare", plain["run_id"], data["run_id"], "--lab", tiny.name)
    assert "run.faults" in compared.stdout and "faults of links" in compared.stdout, compared.stderr
    assert now(tiny) == {}


@pytest.mark.deep
def test_what_is_set_or_cleared_during_the_run_stays(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw1:eth1"], LinkFault(duplicate=1 / 64))

    def change() -> None:
        outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(corrupt=1 / 64))
        outages.set_fault(tiny, ["rtsw1:eth2"], LinkFault(loss=1 / 64))
        outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(corrupt=1 / 64))
        mine = ["rtsw1:eth2", "rtsw2:eth3", "rtsw1:eth1"]  # the last one is the user's, which the run's hides
        assert orders.clear(tiny) == [f"{ref}: fault of packets" for ref in mine]
        assert now(tiny) == {"rtsw1:eth1": (LinkFault(loss=1 / 64), "run")}, "nothing that belongs to the run"
        outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(corrupt=1 / 64))
        outages.clear_faults(tiny, ["rtsw1:eth1"])

    options = RunOptions(sizes=(1 << 16, 1 << 17), iters=1, warmup=0, faults=(LOSSY, "rtsw1:eth1,loss=1/64"))
    first = iter([change])
    result = run(tiny, options, Silent(), During(tiny, lambda: [each() for each in first]))
    assert now(tiny) == {"rtsw2:eth3": (LinkFault(corrupt=1 / 64), "fault")}
    assert result.fabric_state is not None
    assert any("faults of links changed during the run" in each for each in result.warnings)
    ended = [each for each in result.warnings if "another command ended or replaced it during the run" in each]
    assert [each.partition(":eth")[0] for each in ended] == ["rtsw2", "rtsw1"]


def test_a_clear_leaves_what_a_fault_of_the_run_does_to_links_and_packets(tiny: Lab) -> None:
    """A flap takes its link down, and bit errors are losses: neither is the user's, and nothing else is refused."""
    outages.set_fault(tiny, ["rtsw1:eth2"], LinkFault(loss=1 / 64))

    def change() -> None:
        assert orders.clear(tiny) == ["rtsw1:eth2: fault of packets"]
        assert [each.kind for each in record.read(tiny.dir) if each.run] != []

    text = "rtsw2:eth3,bit-errors,rate=1/1000,ramp=100ms"
    errors = RunOptions(sizes=(1 << 16, 1 << 17), iters=1, warmup=0, faults=(text,))
    first = iter([change])
    result = run(tiny, errors, Silent(), During(tiny, lambda: [each() for each in first]))
    assert not [each for each in result.warnings if "another command ended" in each]
    assert now(tiny) == {}


def test_all_faults_end_where_the_fabric_is_restored_though_packets_of_bgp_are_lost(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw1:eth1"], LinkFault(loss=1))
    outages.set_fault(tiny, ["ctsw1:eth1"], LinkFault(loss=1))
    orders.set_kind(tiny, "down", ["rtsw2:eth2"], {}, 30)

    def sessions_end() -> bool:
        with suppress(CheckError):
            linkstate.wait(tiny, 0.3)
            return False
        return True

    until(sessions_end)
    restore_configured(tiny)
    assert record.read(tiny.dir) == () and now(tiny) == {}


def test_a_run_that_fails_leaves_no_fault(tiny: Lab) -> None:
    dark = RunOptions(sizes=(1 << 16,), iters=1, warmup=0, timeout=14, retries=1, faults=("rtsw2:eth3,loss=100%",))
    with pytest.raises(CheckError):
        run(tiny, dark, Silent())
    assert now(tiny) == {}


def test_a_link_that_goes_down_in_a_run_comes_back_and_no_path_is_proven_that_changed(tiny: Lab) -> None:
    result = run(tiny, replace(LONG, faults=(FLAP,)), Silent())
    assert result.wrong == 0
    times = result[FaultTimes]
    (span,) = times.spans
    begin, end = (ns - times.began_ns for ns in (span.begin_ns, span.end_ns or 0))
    assert 0.3e9 <= begin < end and end >= 1.5e9
    assert any(
        line.startswith("#faults   : rtsw1:eth1 down, in wall time of the run: 0.")
        for line in result.table().splitlines()
    )
    (effect,) = result[FaultEffects].faults
    assert effect.settled_s is not None and effect.back_s is not None, "the kernels' routes changed, and came back"
    assert effect.busbw[1] is not None
    assert result.fabric_state is not None and result.fabric_state.word == "changed"
    assert {"ctsw1", "rtsw1"} <= set(result.fabric_state.changed)
    paths = paths_of(tiny)
    assert any("rtsw1:eth1 down" in note and "requested with --fault" in note for note in paths.notes)
    moved = [proof for proof in paths.flows if "rtsw1:eth1" in (proof.predicted or ())]
    assert any(proof.why for proof in moved), "packets of a QP took two paths"
    assert all(proof.measured == proof.predicted for proof in paths.flows if not proof.why)
    assert not paths.agree and result.proof is not None and not result.proof.agree
    assert state_of(tiny) == State((), ()) and record.read(tiny.dir) == ()
    proven_after = run(tiny, SHORT, Silent())
    assert proven_after.proof is not None and proven_after.proof.agree, "the lab is as before"


@pytest.mark.long("10 seconds and more")
def test_a_flap_and_a_loss_in_parts_of_a_run_and_a_fault_that_never_comes(tiny: Lab) -> None:
    texts = (
        "rtsw1:eth1,down,from=100ms,to=200ms,every=600ms",
        "rtsw2:eth3,loss=1/32,to=200ms",
        "rtsw1,loss=1%,from=600s",
    )
    result = run(tiny, replace(LONG, faults=texts), Silent())
    assert result.wrong == 0
    times = result[FaultTimes]
    flaps = [span for span in times.spans if span.down]
    assert len(flaps) >= 2
    assert {span.port for span in times.spans} == {"rtsw1:eth1", "rtsw2:eth3"}
    assert len(times.missed) == 4
    assert result[QueueUse].drops["fault"] > 0
    assert packets.read_faults(tiny) == [] and state_of(tiny).dead == ()


def test_a_link_that_is_down_for_the_whole_run_has_its_routes_before_and_every_path_is_proven(tiny: Lab) -> None:
    result = run(tiny, replace(SHORT, faults=("rtsw1:eth1,down",)), Silent())
    assert result.wrong == 0
    proven(tiny)
    assert result.fabric_state is not None and result.fabric_state.word == "degraded"
    assert state_of(tiny).dead == ()


def test_a_host_without_its_only_link_ends_the_run_with_the_fault_in_the_error(tiny: Lab) -> None:
    dark = replace(LONG, timeout=14, retries=1, faults=("host3:eth1,down,from=200ms",))
    with pytest.raises(CheckError) as caught:
        run(tiny, dark, Silent())
    assert "--fault  rtsw2:eth3 down was set at that time, as requested" in str(caught.value)
    assert state_of(tiny).dead == () and record.read(tiny.dir) == ()
    linkstate.wait(tiny)


BOTH: Final = ("--fault", LOSSY, "--fault", "rtsw1:eth1,down,from=200ms")


def ended_by(lab: Lab, number: signal.Signals) -> None:
    """A long run that gets a signal when both of its faults are set."""
    with started("run", "--size", "16M", "--iters", "1000", *BOTH, lab=lab) as process:
        lossy = {"rtsw2:eth3": (LinkFault(loss=1 / 32), "run")}
        until(lambda: now(lab) == lossy and state_of(lab).dead == ("rtsw1:eth1",), process=process)
        process.send_signal(number)
        process.communicate(timeout=patience(60))
        assert process.returncode != 0


def as_before(lab: Lab) -> None:
    """No link is down, no fault is set, and routes are those of the fabric."""
    assert (now(lab), state_of(lab).dead, record.read(lab.dir)) == ({}, (), ())
    linkstate.wait(lab)


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_in_the_middle_of_its_faults_leaves_none(tiny: Lab, number: signal.Signals) -> None:
    ended_by(tiny, number)
    as_before(tiny)


def test_faults_of_a_run_that_was_killed_are_named_and_the_next_run_undoes_them(tiny: Lab) -> None:
    outages.set_fault(tiny, ["rtsw2:eth3"], LinkFault(duplicate=1 / 64))
    ended_by(tiny, signal.SIGKILL)
    unfinished = {each.key for each in record.read(tiny.dir) if each.unfinished}
    assert ("down", "rtsw1:eth1") in unfinished
    (row,) = status(tiny.name)
    assert row.link_faults == ("rtsw2:eth3: 1/32 lost (one run)",)
    assert any("is down for one run" in each for each in row.faults)
    assert "if that run was killed, the next run clears it" in typed("fault", "--lab", tiny.name).stdout
    heard = Listener()
    result = run(tiny, SHORT, heard)
    killed = "a run that was killed had left faults on "
    assert heard.warnings[0].startswith(killed) and heard.warnings[0].endswith(", which are cleared now")
    assert set(heard.warnings[0].removeprefix(killed).split(", ")[:2]) == {"rtsw1:eth1", "rtsw2:eth3"}
    assert result.fabric_state is not None and result.fabric_state.word == "converged"
    assert result.fabric_state.before.link_faults == ("rtsw2:eth3: 1/64 duplicated",)
    assert now(tiny) == {"rtsw2:eth3": (LinkFault(duplicate=1 / 64), "fault")} and state_of(tiny).dead == ()


@pytest.mark.long
def test_repair_and_clear_undo_faults_of_a_run_that_was_killed_too(tiny: Lab) -> None:
    ended_by(tiny, signal.SIGKILL)
    done = life.repair_lab(tiny.name).repaired
    assert done is not None
    assert {f"{each}: fault of a run that was killed, undone" for each in ("rtsw1:eth1", "rtsw2:eth3")} <= {*done.done}
    as_before(tiny)
    ended_by(tiny, signal.SIGKILL)
    assert "rtsw2:eth3" in outages.clear_faults(tiny)
    assert now(tiny) == {}
    heard = Listener()
    run(tiny, SHORT, heard)
    assert [each for each in heard.warnings if "rtsw2:eth3" in each] == []
    as_before(tiny)
