"""A part of a run is one class and one entry of PARTS, a figure one of FIGURES: what shows and stores runs follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest

from heddle.base.tables import Table
from heddle.host.capacity import Cause
from heddle.runs.compare import compare
from heddle.runs.figures import FIGURES, Figure
from heddle.runs.measured import MeasuredRun
from heddle.runs.parts import PARTS
from heddle.runs.parts.part import MARK, Card, RunPart
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RECORD, RunRecord
from heddle.views.report.page import report_html
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep


@dataclass(frozen=True, slots=True)
class Weather(RunPart):
    """A part that only this test has."""

    degrees: float
    at: Mapping[str, int]

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self:
        return cls(float(len(measured.flows)), {})

    def lines(self) -> list[str]:
        return [f"#weather  : {self.degrees:g} degrees"]

    def doubts(self) -> tuple[Cause, ...]:
        return (Cause("sockets", None, None, sure=False, text="too warm"),) if self.degrees > 30 else ()

    def doubt_lines(self) -> list[str]:
        return [cause.text for cause in self.doubts()]

    def lost(self) -> dict[str, int]:
        return {"rain": 2} if self.degrees > 30 else {}

    def cards(self) -> tuple[Card, ...]:
        return (("sky", "blue", "no cloud"),)

    def table(self) -> Table:
        return Table("Weather of the run", ("place", "value"), tuple((name, str(n)) for name, n in self.at.items()))


@pytest.fixture(autouse=True)
def weather(monkeypatch: pytest.MonkeyPatch) -> None:
    def degrees(job: RunRecord) -> float | None:
        return None if (found := job.part(Weather)) is None else found.degrees

    monkeypatch.setitem(PARTS, "weather", Weather)
    warmth = Figure(unit="degrees", text="of the air", title="warmth", run=degrees)
    monkeypatch.setitem(FIGURES.core, "warmth", warmth)


MILD, HOT = Weather(20.0, {"host7": 21}), Weather(40.0, {})


def test_a_new_part_is_in_the_document_the_table_and_what_makes_a_run_doubtful() -> None:
    mild, hot = (samples.having(samples.result(), weather=each) for each in (MILD, HOT))
    assert mild.to_json()["weather"] == {"degrees": 20.0, "at": {"host7": 21}}
    assert samples.result().to_json()["weather"] is None
    assert "#weather  : 20 degrees\n" in mild.table() and f"{MARK} too warm\n" in hot.table()
    assert not mild.limited and hot.limited and [each["text"] for each in hot.to_json()["unreliable"]] == ["too warm"]
    assert (mild.lost, hot.lost) == ({"buffer": 2}, {"buffer": 2, "rain": 2})
    assert mild[Weather] is mild.part(Weather) is MILD and getattr(mild, "weather") is MILD  # noqa: B009 - no type
    assert samples.result().part(Weather) is None


def test_a_stored_run_has_the_new_part_and_comparison_and_report_show_it(tmp_path: Path) -> None:
    record = samples.record()
    mild, warm = (
        keep(tmp_path, number, samples.having(record, weather=part))
        for number, part in enumerate((MILD, replace(MILD, degrees=25.0)), 1)
    )
    stored = json.loads((mild.path / RECORD).read_text())["outcome"]
    assert stored["weather"] == {"degrees": 20.0, "at": {"host7": 21}} and stored["admission"] is None
    assert mild.record[Weather] == MILD
    (warmth,) = (each for each in compare(mild, warm).ratios if each.figure == "warmth")
    assert (warmth.unit, warmth.a, warmth.b, warmth.ratio) == ("degrees", 20.0, 25.0, 1.25)
    page = report_html([mild])
    assert "Weather of the run" in page and "host7" in page and "blue" in page


def test_a_run_from_before_the_part_or_from_after_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = samples.record()
    before = keep(tmp_path, 1)
    path = before.path / RECORD
    data = json.loads(path.read_text())
    del data["outcome"]["weather"]
    path.write_text(json.dumps(data))
    assert before.record.done and before.record.part(Weather) is None
    after = keep(tmp_path, 2, samples.having(record, weather=MILD))
    monkeypatch.delitem(PARTS, "weather")
    assert after.record[QueueUse] == samples.USE
    assert "weather" not in after.record.parts


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run = keep(tmp_path)
    path = run.path / RECORD
    data = json.loads(path.read_text())
    data["outcome"]["weather"] = {"degrees": "warm", "at": {}}
    path.write_text(json.dumps(data))
    assert "weather: degrees: Input should be a valid number" in run.damage
