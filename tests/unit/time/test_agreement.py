"""The committed comparison of forecasts: what it claims holds, and its forecasts are those of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import agreement
from tests.bench.agreement import CASES, Row, read_rows

ROWS = read_rows()
LEAST, MOST = 1.0, 2.25  # of htsim: fluid is a lower bound


def outside(rows: list[Row]) -> list[str]:
    return [row.case for row in rows if row.source == "htsim" and not LEAST <= row.ratio <= MOST]


def test_htsim_takes_longer_than_the_fluid_forecast_and_at_most_the_published_band() -> None:
    published, rows = agreement.published(), [row for row in ROWS if row.source == "htsim"]
    assert {row.case: round(1e6 * row.time_s, 4) for row in rows} == {
        f"{name}, {paths} paths, {size} MB": tail for (name, paths, size), tail in published.items()
    }
    assert len(rows) == 112 and outside(rows) == []
    assert outside([replace(row, forecast_s=row.forecast_s / 2) for row in rows]), "links twice as fast"
    assert outside([replace(row, forecast_s=row.forecast_s * 2) for row in rows]), "links half as fast"


def test_htsim_takes_the_time_of_its_bits_at_least() -> None:
    """The forecast of the equal fabric, by arithmetic: NICs send all the time, then the last bit crosses four links."""
    for row in ROWS:
        if row.case.startswith("400g_nscc, 128 paths"):
            size = int(row.case.split()[-2]) * 1_000_000
            assert 8 * size / 400e9 < row.forecast_s < 1.03 * 8 * size / 400e9 + 4e-6 < row.time_s * 1.03


@pytest.mark.parametrize("case", [case for case in CASES if case.exact], ids=lambda case: case.name)
def test_forecasts_equal_arithmetic_and_those_of_the_page(case: agreement.Case) -> None:
    assert case.exact is not None
    fabric = case.setup.fabric()
    found = case.forecast(fabric)[0]
    assert found == pytest.approx(case.exact(fabric), rel=1e-9)
    rows = [row for row in ROWS if (row.case, row.fabric) == (case.name, case.setup.name)]
    assert {row.source for row in rows} == ({"arithmetic", "live"} if case.live else {"arithmetic"})
    assert all(row.forecast_s == pytest.approx(found, rel=1e-9) for row in rows)


@pytest.mark.parametrize("name", ["tree", "shift"])
def test_live_runs_are_within_ten_percent_where_packets_are_followed(name: str) -> None:
    assert max(agreement.errors(ROWS)) <= 10
    case = next(case for case in CASES if case.name == name)
    row = next(row for row in ROWS if (row.case, row.fabric) == (name, case.setup.name))
    (seconds,), model = case.modelled(case.setup.fabric())
    assert seconds == pytest.approx(row.forecast_s, rel=1e-6) and row.model == model == "packets"
    free = replace(case.setup, overrides=(*case.setup.overrides, "queues.pfc.enabled=false")).fabric()
    (flows,), model = case.modelled(free)
    assert model == "flows" and not 0.9 <= row.time_s / flows <= 1.1, "max-min fairness alone is wrong here"


def test_a_run_that_is_unreliable_is_not_in_the_median() -> None:
    good, bad = Row("a", "f", "live", 1.0, 1.04), Row("b", "f", "live", 1.0, 3.0, "processor 0: 100% busy")
    assert agreement.errors([good, bad]) == [pytest.approx(4.0)]
    assert [each.ok for each in agreement.figures_of([good, bad])[-2:]] == [True, True]
    assert [each.ok for each in agreement.figures_of([good, replace(bad, doubt="")])[-2:]] == [False, False]
