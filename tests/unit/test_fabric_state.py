"""A result says whether its fabric was as its file says: in the table's head and foot, in JSON, in the record."""

from __future__ import annotations

import json
from dataclasses import replace

from heddle.lab.fabricstate import FabricReading, FabricState
from tests.unit import run_samples

FINE = FabricReading()
DOWN = FabricReading(("rtsw1:eth1  the link is down",), ("rtsw1:eth1 is down",))
LOST = FabricReading((), tuple(f"rtsw{n}: 10.0.0.0/24 has no next hop eth1" for n in range(1, 8)))


def outputs_of(before: FabricReading, after: FabricReading, *changed: str) -> tuple[str, dict[str, object]]:
    state = FabricState(before, after, changed)
    result = replace(run_samples.result(), before=state.before, fabric_state=state, warnings=tuple(state.warnings()))
    return result.table(), json.loads(json.dumps(result.to_json()))


def test_a_fabric_converged_all_the_time_has_no_warnings() -> None:
    text, data = outputs_of(FINE, FINE)
    assert "#fabric" not in text
    assert data["warnings"] == []
    assert data["fabric_state"] == {
        "state": "converged",
        "before": {"converged": True, "faults": [], "gaps": []},
        "after": {"converged": True, "faults": [], "gaps": []},
        "changed": [],
    }


def test_a_degraded_fabric_is_named_above_and_below_the_figures_and_in_json() -> None:
    text, data = outputs_of(DOWN, DOWN)
    head, _, foot = text.partition("#        (B)")
    assert "#fabric   : degraded before this run (rtsw1:eth1  the link is down): do not compare it" in head
    assert "#warning  : the fabric was degraded before the run: rtsw1:eth1  the link is down" in foot
    assert data["fabric_state"]["state"] == "degraded"  # type: ignore[index]
    assert data["warnings"] == ["the fabric was degraded before the run: rtsw1:eth1  the link is down"]
    short = replace(run_samples.result(), before=DOWN, fabric_state=FabricState(DOWN, DOWN)).table(short=True)
    assert "#fabric   : degraded before" in short


def test_a_change_during_the_run_is_named_in_both_directions() -> None:
    text, data = outputs_of(FINE, DOWN, "rtsw1", "ctsw1")
    assert "#fabric   : degraded after this run (rtsw1:eth1  the link is down)" in text
    assert data["warnings"] == [
        "the fabric changed during the run, and is degraded now: rtsw1:eth1  the link is down",
        "routes or hashing changed during the run on rtsw1, ctsw1",
    ]
    _, data = outputs_of(DOWN, FINE)
    assert data["fabric_state"]["state"] == "degraded"  # type: ignore[index]
    assert "the fabric changed during the run, and has converged now" in str(data["warnings"])
    text, data = outputs_of(FINE, FINE, "rtsw1")
    assert "#fabric   : routes or hashing changed during this run" in text
    assert data["fabric_state"]["state"] == "changed"  # type: ignore[index]


def test_many_gaps_are_shortened_in_words_and_whole_in_json() -> None:
    text, data = outputs_of(LOST, LOST)
    assert "rtsw4: 10.0.0.0/24 has no next hop eth1; and 3 more" in text
    assert len(data["fabric_state"]["before"]["gaps"]) == 7  # type: ignore[index]


def test_the_record_keeps_it() -> None:
    state = FabricState(DOWN, FINE)
    assert replace(run_samples.result(), fabric_state=state).outcome.fabric_state == state
