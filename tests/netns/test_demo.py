"""The demo end to end, on a machine where a lab of its name may run already."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heddle.base.events import Silent
from heddle.cli import demo as stage
from heddle.cli.demo import demo
from heddle.lab.lab import Lab


def test_three_acts_are_right_and_proven_and_leave_nothing(
    lab_name: Callable[[], str], leftovers: Callable[[str], list[str]]
) -> None:
    name = lab_name()
    shown: list[str] = []
    result = demo(Silent(), shown.append, name)
    assert [p.act.qps for p in result.played] == [1, 16, 16]
    assert not result.problems
    assert len(shown) == 3
    first, more, last = (p.paths.mmr.bytes for p in result.played)
    assert first is not None and more is not None and last is not None
    assert abs(first - more) < 0.05  # one five-tuple for all QPs of a pair
    assert last < 0.75 * first
    assert set(result.to_json()) >= {"acts", "gain", "emulated"}
    assert "times as fast" in result.text()
    assert leftovers(name) == []


@pytest.mark.deep
def test_a_reader_that_goes_away_leaves_no_lab(
    lab_name: Callable[[], str], leftovers: Callable[[str], list[str]]
) -> None:
    name = lab_name()

    def gone(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        demo(Silent(), gone, name)
    assert leftovers(name) == []


def test_a_running_lab_called_demo_is_left_alone(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_names", lambda stem: iter([tiny.name, "free"]))
    assert stage.free_name("demo") == "free"
