"""The text of `./inv predict`: whole tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.forecast import Ask, forecast
from heddle.views.forecasttext import render
from heddle.views.style import WIDTH

HERE = Path(__file__).parent / "forecast"


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
