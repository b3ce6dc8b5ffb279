"""Published results on a live fabric: what must break a claim breaks it."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle_plugins.experiments.folders import load_folder
from heddle_plugins.experiments.outcome import breaks, unbroken
from heddle_plugins.experiments.running import Running


@pytest.mark.long
@pytest.mark.parametrize("name", ["02-same-five-tuple", "18-icrc"])
def test_a_published_claim_fails_with_a_broken_hash_a_missing_mark_and_a_damaged_icrc(name: str) -> None:
    (experiment,) = load_folder("sigcomm24").only([name]).experiments
    done = [Running(each, Silent(), accept_unreliable=True).run() for each in breaks(experiment)]
    assert {row.name for each in done for row in each.rows} == {check.name for check in experiment.checks}
    assert unbroken(experiment, done) == {}
