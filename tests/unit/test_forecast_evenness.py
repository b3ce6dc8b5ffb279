"""Offline verdicts on uplinks: each path to a rack should get its share of the flows."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle.fabric.shapes import build
from heddle.forecast.forecast import Ask, forecast
from heddle.forecast.planfile import load_plan
from heddle.forecast.result import Prediction
from heddle.predict.statistics import EVEN, UNEVEN
from heddle.spec.shapes.clos import ClosSpec

TWO = {
    "racks": 8,
    "ctsw": 4,
    "hosts_per_rack": 4,
    "link": {"exceptions": {f"ctsw1:eth{n}": "10mbit" for n in range(2, 6)}},
}
THREE = {
    "zones": 2,
    "racks": 4,
    "ctsw": 4,
    "atsw": 3,
    "hosts_per_rack": 4,
    "link": {"exceptions": {"ctsw1:eth2": "10mbit", "atsw2:eth4": "20mbit", "ctsw5": "50mbit"}},
}


def predicted(shape: dict[str, object], seed: str | int, *, ucmp: bool) -> Prediction:
    routing = {"ucmp": ucmp, "seed": seed}
    spec = ClosSpec.model_validate({"name": "small", **shape, "routing": routing})
    return forecast(build(spec), load_plan("all-to-all,qps=16"), Ask(), Silent())


@pytest.mark.parametrize("seed", ["per-switch", 7, 8])
def test_a_fair_hash_over_weighted_paths_is_even_if_weights_differ_between_racks(seed: str | int) -> None:
    found = predicted(TWO, seed, ucmp=True).evenness[1]
    assert found.verdict == EVEN
    assert found.degrees == 8 * 3
    assert found.flows == 32 * 28 * 16


def test_weights_do_not_hide_polarisation() -> None:
    assert {d: e.verdict for d, e in predicted(THREE, "per-switch", ucmp=True).evenness.items()} == {1: EVEN, 2: EVEN}
    assert {d: e.verdict for d, e in predicted(THREE, "shared", ucmp=True).evenness.items()} == {1: EVEN, 2: UNEVEN}


def test_without_weights_narrow_links_get_as_many_flows_as_others() -> None:
    assert predicted(TWO, "per-switch", ucmp=False).evenness[1].verdict == EVEN
