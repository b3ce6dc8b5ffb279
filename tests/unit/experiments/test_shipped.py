"""Shipped experiments: what each claims and what breaks it, and the published results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pytest

from heddle.base.events import Silent
from heddle_plugins.experiments.finding import experiments_shipped, find_experiment
from heddle_plugins.experiments.folders import folders_shipped, load_folder
from heddle_plugins.experiments.loading import Experiment, load_experiment
from heddle_plugins.experiments.outcome import breaks, unbroken
from heddle_plugins.experiments.running import Running
from heddle_plugins.experiments.spec import BreakSpec
from tests.golden.experiments import reproducedpage
from tests.marks import long


@pytest.fixture(scope="module")
def shipped() -> Mapping[str, Sequence[Experiment]]:
    """The experiments that Heddle ships by their folder; "" for those without one. They take seconds to read."""
    alone = [load_experiment(*find_experiment(each)) for each in experiments_shipped()]
    others = {name: load_folder(name).experiments for name in folders_shipped() if name != "sigcomm24"}
    return {"": alone, **others, "sigcomm24": reproducedpage.experiments()}


def test_every_shipped_experiment_is_right_and_says_what_it_shows(shipped: Mapping[str, Sequence[Experiment]]) -> None:
    assert [each.name for each in shipped[""]] == experiments_shipped()
    for each in shipped[""]:
        assert each.checks and each.spec.reads, each.name
        assert f"./inv experiment {each.name}" in find_experiment(each.name)[0].read_text()


@pytest.mark.parametrize("name", ["", *(long(each) if each == "sigcomm24" else each for each in folders_shipped())])
def test_every_claim_that_is_shipped_says_how_it_fails_and_fails_so_without_a_lab(
    name: str, shipped: Mapping[str, Sequence[Experiment]]
) -> None:
    for each in shipped[name]:
        assert each.checks
        for check in each.checks:
            assert check.spec.bounds is None or check.broken is not None, f"{each.name}: {check.name} cannot fail"
        broken = [found for found in breaks(each) if not any(variant.live for variant in found.variants)]
        results = [Running(found, Silent()).run() for found in broken]
        left = unbroken(each, results)
        assert not [check.name for found in broken for check in found.checks if check.name in left], (each.name, left)


RAMP: Final = {"queues.ecn.kmin", "queues.ecn.kmax"}  # both ends of one ramp
TOGETHER: Final = {
    "ecn-threshold: earlier": "above kmax all packets are marked, also with pmax 0",
    "ecn-threshold: lossless": "a lossy queue drops nothing until its buffer is full",
    "12-incast: lossless": "without PFC nothing is dropped until a buffer is full",
    "04-pfc-incast: loss": "a lossy queue drops nothing until its buffer is full",
}


def things(by: BreakSpec) -> set[tuple[str, str]]:
    """The changed keys with their values. The same change of several runs is one."""
    groups = [*by.runs.values(), *([{"set": by.set}] if by.set else [])]
    return {(key, str(value)) for group in groups for key, value in leaves(group)}


def leaves(group: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def test_what_breaks_a_shipped_claim_is_one_change(shipped: Mapping[str, Sequence[Experiment]]) -> None:
    """An exchange of two runs has one key with two values: it shows the order of a comparison, and not a cause."""
    several = {}
    for each in chain(*shipped.values()):
        for check in each.checks:
            found = set() if check.spec.broken_by is None else things(check.spec.broken_by)
            if len(found) > 1 and not ({key for key, _ in found} == RAMP and len(found) == 2):
                several[f"{each.name}: {check.name}"] = sorted(found)
    assert set(several) == set(TOGETHER), several
    exchanged = BreakSpec(runs={"a": {"run": {"recovery": "x"}}, "b": {"run": {"recovery": "y"}}})
    both = BreakSpec(runs={"a": {"run": {"fault": []}}, "b": {"run": {"fault": []}}})
    assert (len(things(exchanged)), len(things(both))) == (2, 1)
    assert len(things(BreakSpec(runs={"a": {"hashing": "flow", "run": {"sport": "fixed"}}}))) == 2


def test_a_shipped_value_over_hash_seeds_has_an_interval_over_them(shipped: Mapping[str, Sequence[Experiment]]) -> None:
    seeded = {
        f"{each.name}: {check.name}": check.spec.draws
        for each in chain(*shipped.values()) for check in each.checks
        if any("routing.seed" in each.axes_of(call) for call in check.expression.calls)
    }  # fmt: skip
    assert len(seeded) > 10 and set(seeded.values()) == {"routing.seed"}, seeded


FITTED: Final = "19-posting"  # a model that was fitted to the published values claims nothing
# State of each check that needs no lab, and why it is not another one: docs/sigcomm24.md.
OFFLINE: Final = {
    "01-random-flows": {"mmr": "in band"},
    "04-queue-pairs": {"faster": "sign only", "gain": "out of band"},
    "06-uplinks": {"faster": "sign only", "spread": "sign only", "te": "in band", "two_down": "in band"},
    "08-te": {"te_spread": "in band", "e_ecmp_spread": "in band", "gain": "out of band"},
    "09-te-failure": {"beaten": "sign only"},
    "18-icrc": {"ttl_and_ecn": "sign only", "sport": "sign only"},
}


@pytest.fixture(scope="module")
def files() -> Sequence[Experiment]:
    """The experiments of the folder. It takes seconds, so that no module reads it when it is imported."""
    return reproducedpage.experiments()


def offline(experiment: Experiment) -> Experiment:
    """Its checks with a claim that need no lab."""
    live = {each.run for each in experiment.variants if each.live}
    claims = [each.name for each in experiment.checks if each.spec.bounds is not None]
    names = [each.name for each in experiment.checks if not live & {call.run for call in each.expression.calls}]
    chosen = [name for name in names if name in claims]
    return experiment.only(chosen) if chosen else replace(experiment, checks=(), variants=())


def test_every_claim_has_two_sides_or_a_sign_a_source_and_something_that_breaks_it(files: Sequence[Experiment]) -> None:
    for each in files:
        assert each.spec.claim is not None and each.spec.claim.source and each.spec.reads, each.name
        claims = [check for check in each.checks if check.spec.bounds is not None]
        assert bool(claims) == (each.name != FITTED), each.name
        for check in claims:
            spec, bounds = check.spec, check.spec.bounds
            assert spec.published is not None and spec.about, (each.name, check.name)
            assert spec.broken_by is not None and spec.broken_by.why, (each.name, check.name)
            assert check.broken is not None and bounds is not None, (each.name, check.name)
            assert spec.sign is not None or (
                bounds.low is not None and bounds.high is not None and bounds.low < bounds.high
            ), (each.name, check.name)


def test_no_check_has_a_grid_so_that_all_tables_have_the_same_columns(files: Sequence[Experiment]) -> None:
    assert not [
        (each.name, check.name) for each in files for check in each.checks if check.expression.free(each.axes_of)
    ]


def test_live_claims_have_three_repeats(files: Sequence[Experiment]) -> None:
    live = [(each.name, variant) for each in files for variant in each.variants if variant.live and each.name != FITTED]
    assert live and not [name for name, variant in live if variant.repeats < 3]


def test_live_runs_of_one_hash_draw_claim_only_that_they_agree_with_their_prediction(
    files: Sequence[Experiment],
) -> None:
    """Claims on the network's hash need draws, and live runs here have one seed."""
    drawn = {"04-queue-pairs", "06-uplinks", "08-te", "09-te-failure"}
    for each in [each for each in files if each.name in drawn]:
        live = {variant.run for variant in each.variants if variant.live}
        for check in each.checks:
            runs = {call.run for call in check.expression.calls}
            if runs & live and check.spec.bounds is not None:
                assert check.spec.published == reproducedpage.PREDICTION and runs - live, check.name


@pytest.mark.parametrize("name", [long(each) if each in ("08-te", "09-te-failure") else each for each in OFFLINE])
def test_an_offline_check_has_its_state(name: str, files: Sequence[Experiment]) -> None:
    (experiment,) = [offline(each) for each in files if each.name == name]
    result = Running(experiment, Silent()).run()
    assert {row.name: row.state for row in result.rows} == OFFLINE[name]


def test_the_offline_checks_are_all_tried_and_broken_without_a_lab(files: Sequence[Experiment]) -> None:
    """Above, the broken runs are made."""
    found = {each.name: {check.name for check in offline(each).checks} for each in files}
    assert {name: checks for name, checks in found.items() if checks} == {n: set(c) for n, c in OFFLINE.items()}
    every = [check for each in files for check in offline(each).checks]
    assert not [check.name for check in every if check.broken is None or any(v.live for v in check.broken.variants)]


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
