"""The groups of figures of `./inv bench`: help lists each; and what `order` runs."""

from __future__ import annotations

from heddle.cli.checkout_verbs import bench
from heddle.fabric import hashmodes
from tests.bench import _groups, order


def test_help_lists_every_group() -> None:
    listed = bench.help["what"].replace(",", " ").split()
    assert [word for word in listed if word not in ("or", "all")] == list(_groups(None))


def test_order_takes_every_mode_that_keeps_one_path_with_resilient_tables_too() -> None:
    taken = {(turn.mode, turn.options.resilient) for turn in order.turns()}
    assert {mode for mode, _ in taken} == hashmodes.MODES.keys() - hashmodes.SPREADING
    assert {mode for mode, resilient in taken if resilient} == {"flow", "e-ecmp"}
    assert 4 * len(order.turns()) == order.RUNS, "every turn on each lab"
