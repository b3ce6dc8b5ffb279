"""The published results: what each check claims, and the state of those that need no lab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle_plugins.experiments.folders import load_folder
from heddle_plugins.experiments.loading import Experiment
from heddle_plugins.experiments.running import Running
from tests.golden.experiments.reproducedpage import PREDICTION

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
    return load_folder("sigcomm24").experiments


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
                assert check.spec.published == PREDICTION and runs - live, check.name


@pytest.mark.parametrize("name", OFFLINE)
def test_an_offline_check_has_its_state(name: str, files: Sequence[Experiment]) -> None:
    (experiment,) = [offline(each) for each in files if each.name == name]
    result = Running(experiment, Silent()).run()
    assert {row.name: row.state for row in result.rows} == OFFLINE[name]


def test_the_offline_checks_are_all_tried_and_broken_without_a_lab(files: Sequence[Experiment]) -> None:
    """test_experiments.py makes the broken runs."""
    found = {each.name: {check.name for check in offline(each).checks} for each in files}
    assert {name: checks for name, checks in found.items() if checks} == {n: set(c) for n, c in OFFLINE.items()}
    every = [check for each in files for check in offline(each).checks]
    assert not [check.name for check in every if check.broken is None or any(v.live for v in check.broken.variants)]
