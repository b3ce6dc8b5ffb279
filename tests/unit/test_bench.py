"""What the figures of `./inv bench` rely on: it does not run in the gate."""

from __future__ import annotations

from tests.alteredworker import ALTERATIONS
from tests.bench import steps


def test_every_worker_of_steps_has_its_alteration() -> None:
    assert {*steps._WORKERS} <= {*ALTERATIONS}
