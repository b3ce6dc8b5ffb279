"""The experiment `shapes`: what was published of Clos, fat tree and dragonfly. test_shipped.py breaks its claims."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle_plugins.experiments.finding import find_experiment
from heddle_plugins.experiments.loading import load_experiment
from heddle_plugins.experiments.running import Running


def test_the_comparison_of_shapes_is_as_published() -> None:
    rows = {row.name: row for row in Running(load_experiment(*find_experiment("shapes")), Silent()).run().rows}
    claims = ["tree_all_to_all", "dragonfly_all_to_all", "tree_ring", "dragonfly_ring"]
    assert {name: rows[name].state for name in claims} == dict.fromkeys(claims, "in band")
    measured = {name: row.sample.mean for name, row in rows.items() if row.sample is not None}
    # A minimal route between two groups passes one global link: a * p NICs share it in a ring across groups. In blocks
    # the last switch of a group has the flow that enters, and the one that leaves, on its link to the first one.
    assert measured["dragonfly_ring"] == pytest.approx(1 / 8, rel=0.01)
    assert measured["dragonfly_block"] == pytest.approx(1 / 2, rel=0.01)
    assert measured["tree_hashed"] < 0.6, "flows of one QP collide"
