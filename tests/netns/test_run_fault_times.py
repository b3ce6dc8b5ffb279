"""Faults that begin and end in a run: links that go down and flap, losses for a while; and runs that end meanwhile."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.lab import lifecycle as life
from heddle.lab import linkstate
from heddle.lab.faults import packets, record
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of
from heddle.lab.status import status
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from tests.listener import Listener
from tests.machine import child, patience, until
from tests.netns.collectives import proven

pytestmark = pytest.mark.root

ROOT: Final = Path(__file__).parents[2]
SHORT: Final = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)
FLAP: Final = "rtsw1:eth1,down,from=300ms,to=1500ms"
LONG: Final = RunOptions(sizes=(4 << 20,), iters=4, warmup=0, qps=4)


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


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
def test_a_run_that_is_ended_in_the_middle_of_a_fault_leaves_the_link_up(tiny: Lab, number: signal.Signals) -> None:
    ended_in_fault(tiny, number)
    assert state_of(tiny).dead == () and record.read(tiny.dir) == ()
    linkstate.wait(tiny)


def test_the_next_run_sets_a_link_up_that_a_killed_run_left_down(tiny: Lab) -> None:
    ended_in_fault(tiny, signal.SIGKILL)
    assert state_of(tiny).dead == ("rtsw1:eth1",)
    assert [(each.key, each.unfinished) for each in record.read(tiny.dir)] == [(("down", "rtsw1:eth1"), True)]
    (row,) = status(tiny.name)
    assert any("is down for one run" in each for each in row.faults)
    heard = Listener()
    result = run(tiny, SHORT, heard)
    assert result.fabric_state is not None and result.fabric_state.word == "converged"
    assert heard.warnings[0] == "a run that was killed had left faults on rtsw1:eth1, which are cleared now"
    assert state_of(tiny).dead == () and record.read(tiny.dir) == ()


@pytest.mark.deep
def test_repair_sets_such_a_link_up_too(tiny: Lab) -> None:
    ended_in_fault(tiny, signal.SIGKILL)
    done = life.repair_lab(tiny.name).repaired
    assert done is not None and "rtsw1:eth1: fault of a run that was killed, undone" in done.done
    assert state_of(tiny).dead == () and record.read(tiny.dir) == ()


def ended_in_fault(lab: Lab, number: signal.Signals) -> None:
    """A long run that gets a signal when its link is down."""
    words = [str(ROOT / "inv"), "run", "--size", "16M", "--iters", "1000", "--fault", "rtsw1:eth1,down,from=200ms"]
    with child([*words, "--lab", lab.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        until(lambda: state_of(lab).dead == ("rtsw1:eth1",), process=process)
        process.send_signal(number)
        process.communicate(timeout=patience(60))
        assert process.returncode != 0
