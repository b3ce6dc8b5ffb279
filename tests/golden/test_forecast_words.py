"""The text of `./inv predict`: a whole table, and the error of each mistake in a plan.

forecast/NAME.yml is the plan, forecast/NAME.log the text. `./inv test golden -- --regen-goldens` rewrites the texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.forecast import Ask, forecast
from heddle.views.forecasttext import render
from heddle.views.style import WIDTH

HERE = Path(__file__).parent / "forecast"
BAD = sorted(HERE.glob("bad-*.yml"))


@pytest.mark.parametrize("case", BAD, ids=lambda p: p.stem)
def test_a_wrong_plan_is_explained_in_exactly_these_words(
    case: Path, regen_goldens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    with pytest.raises(InputError) as caught:
        forecast(load_fabric("zone").fabric, load_workload(case.name).workload, Ask(), Silent())
    said = f"{caught.value}\n"
    log = case.with_suffix(".log")
    if regen_goldens:
        log.write_text(said)
    assert said == log.read_text()


def test_every_text_has_its_plan() -> None:
    assert {p.stem for p in HERE.glob("bad-*.log")} == {p.stem for p in BAD}


def test_a_prediction_prints_exactly_these_tables(regen_goldens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    said = []
    for fabric, plan, ask in (
        ("zone", "good-zone.yml", Ask(mode="e-ecmp")),
        ("dc", "ring,qps=16,placement=cyclic", Ask(trials=20, down=("ctsw1",))),
        ("demo", "permutation,qps=2", Ask(mode="spray", down=("host3",), drain=("ctsw2",))),
        ("tiny", "ring,qps=64,size=16K", Ask()),
        ("demo", "ring,transport=srd,entropy=16,sport=own-qpn", Ask()),
    ):
        said.append(render(forecast(load_fabric(fabric).fabric, load_workload(plan).workload, ask, Silent())))
    text = "\n\n\n".join(said) + "\n"
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    log = HERE / "tables.log"
    if regen_goldens:
        log.write_text(text)
    assert text == log.read_text()
