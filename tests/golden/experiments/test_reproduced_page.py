"""docs/results/sigcomm24.csv has the checks and bands of the experiment files."""

from __future__ import annotations

from tests.golden.experiments import reproducedpage


def test_the_results_are_those_of_the_checks_and_bands_of_the_files() -> None:
    rows = reproducedpage.results()
    checks = {(each.name, check.name): check for each in reproducedpage.experiments() for check in each.checks}
    assert list(rows) == list(checks)
    for key, check in checks.items():
        bounds, row = check.spec.bounds, rows[key]
        low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
        assert [row["low"], row["high"]] == ["" if each is None else str(each) for each in (low, high)], key
        assert row["sign"] == (check.spec.sign or ""), key
        if row["state"] in ("in band", "sign only", "out of band") and bounds is not None:
            assert bounds.holds(float(row["mean"])) == (row["state"] != "out of band"), key


def test_a_changed_value_changes_the_page() -> None:
    rows = reproducedpage.results()
    key = ("01-random-flows", "mmr")
    assert reproducedpage.table(rows) != reproducedpage.table({**rows, key: {**rows[key], "mean": "1.29"}})
