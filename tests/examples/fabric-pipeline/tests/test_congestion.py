"""ECN marks an incast before PFC has to pause it, and does not mark balanced traffic."""

import pytest
from heddle.testing import assert_lossless, assert_marked_below, assert_no_pauses

pytestmark = pytest.mark.fabric("../fabrics/training.yml")


def test_balanced_traffic_is_neither_marked_nor_paused(all_to_all, reliable, heddle_queues):
    run = all_to_all()
    assert_lossless(heddle_queues())
    reliable(run)
    assert_marked_below(run, 0.02)
    assert_no_pauses(run)


def test_an_incast_is_marked(incast, heddle_queues, marked):
    run = incast()
    share = marked(run)
    assert share >= 0.05, f"ECN marked {share:.1%} of the packets of an incast; expected at least 5.0%"
    assert_lossless(heddle_queues())
