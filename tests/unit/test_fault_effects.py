"""What faults did to a run: only from what was recorded, each in the time of the fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.lab.runfaults import RunFaultSpan, faults_on
from heddle.runs.parts.effects import FaultEffects

TINY: Final = load_fabric("tiny").fabric
NS: Final = 10**9


def measured(text: str, spans: list[tuple[int, int | None]], changes: list[int], proof: Any = None) -> Any:
    """A run of 10 s from 100 s on: iterations of 1 s and 1 GB; 3 lost packets in each bucket from 2 s to 4 s."""
    (planned,) = faults_on(TINY, [text])
    ends = np.arange(0.5, 10.5, 0.5)
    drops = np.where((ends > 2) & (ends <= 4), 3, 0).reshape(1, -1)
    series = SimpleNamespace(ends_s=ends, starts_s=ends - 0.5, columns={"drops": drops})
    begins = np.arange(10.0)
    its = SimpleNamespace(begin_s=begins, end_s=begins + 1, size=np.full(10, 10**9))
    pattern = SimpleNamespace(busbw_factor=lambda size: 2.0)
    clock = SimpleNamespace(
        spans=[RunFaultSpan(planned, 100 * NS + begin, end and 100 * NS + end) for begin, end in spans],
        route_changes=[100 * NS + each for each in changes],
    )
    return SimpleNamespace(
        faults=clock, began_ns=100 * NS, ended_ns=110 * NS, plan=SimpleNamespace(pattern=pattern, size=4, k=4000),
        timeline=SimpleNamespace(iterations=its), queues=SimpleNamespace(series=series), fabric=TINY,
        flows=(1, 2, 3), proof=proof,
    )  # fmt: skip


def qp(*predicted: str, stray: bool = False) -> Any:
    return SimpleNamespace(predicted=predicted, seen=SimpleNamespace(stray=(("rtsw1:eth2", 5),) if stray else ()))


def test_losses_routes_bandwidth_and_moved_qps_of_a_link_that_was_down() -> None:
    proof = SimpleNamespace(flows=(qp("rtsw1:eth1", "ctsw1:eth2", stray=True), qp("rtsw1:eth2"), qp("ctsw1:eth1")))
    spans: list[tuple[int, int | None]] = [(2 * NS, 5 * NS)]
    run = measured("rtsw1:eth1,down,from=2s,to=5s", spans, [NS, 2 * NS + 10**8, 5 * NS + 3 * 10**8], proof)
    found = FaultEffects.of_run(run)
    assert found is not None
    assert found.lines() == [
        "#effect   : rtsw1:eth1 down at 2.00 s: 12 packets lost, the last after 2.00 s; "
        "last route change after 0.10 s; last route change 0.30 s after its end; busbw 2, 2, 2 GB/s",
        "#effect   : 2 of 3 QPs had a path over these links; 1 left their path",
    ]
    assert found.table().rows == (("rtsw1:eth1 down", "2", "12", "0", "2", "0.1", "0.3", "2", "2", "2"),)


def test_losses_after_the_end_of_a_fault_are_not_the_faults() -> None:
    """A sample that began before the end counts for the fault, and the last loss is not later than that end."""
    found = FaultEffects.of_run(measured("rtsw1:eth1,down,from=2s,to=3.2s", [(2 * NS, 3 * NS + 2 * 10**8)], []))
    assert found is not None
    (only,) = found.faults
    assert (only.lost, only.lost_after) == (9, 3) and only.last_loss_s == pytest.approx(1.2)
    assert "9 packets lost, the last after 1.20 s; 3 more after its end; " in found.lines()[0]


def test_what_was_not_seen_is_not_stated_and_a_later_fault_ends_the_time_of_one() -> None:
    spans: list[tuple[int, int | None]] = [(NS // 2, None), (3 * NS, None)]
    found = FaultEffects.of_run(measured("rtsw1:eth1,slow-link,rate=10%,from=500ms", spans, []))
    assert found is not None
    first, second = found.faults
    assert (first.lost, first.until_s, second.lost, second.last_loss_s) == (6, 3.0, 6, 1.0)
    assert first.busbw[0] is None and first.busbw[2] is None and first.settled_s is None
    assert (found.expected, found.moved) == (None, None)
    assert found.lines()[0].endswith("6 packets lost, the last after 2.50 s; busbw -, 2, - GB/s")
    assert found.lines()[2].endswith("a line counts all losses from its fault on until the next began")


def test_of_a_fault_that_another_command_ended_nothing_is_stated() -> None:
    run = measured("rtsw1:eth1,slow-link,rate=10%,from=2s", [(2 * NS, None)], [])
    assert FaultEffects.of_run(run) is not None
    run.faults.spans[0].taken = True
    assert FaultEffects.of_run(run) is None


@pytest.mark.parametrize("text", ["rtsw1:eth1,loss=1%", "rtsw1:eth1,down,to=5s"])
def test_a_fault_that_was_set_before_the_first_packet_has_no_before(text: str) -> None:
    assert FaultEffects.of_run(measured(text, [(-NS, None)], [])) is None
