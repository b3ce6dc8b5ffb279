"""Rates with paused links: head-of-line blocking."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_plugins.time.pauses import paused_rates
from tests.unit.time.test_maxmin import paths

# Two hosts (links 0, 1) send over one uplink (2) to a slow host (3) and a fast one (4).
TREE = paths([0, 2, 3], [1, 2, 4], links=5)
RATES = np.array([25.0, 25.0, 100.0, 2.0, 25.0])
NONE = np.full(2, np.inf)


def test_a_victim_is_as_slow_as_what_it_waits_behind() -> None:
    rates, settled, _ = paused_rates(TREE, RATES, NONE, 10.0, np.array([100.0, 100.0]))
    assert settled and rates == pytest.approx([2, 2])
    # With little in flight nothing is paused, and without a lossless class neither.
    for flight in ([9.0, 100.0], [0.0, 0.0]):
        rates, *_ = paused_rates(TREE, RATES, NONE, 10.0, np.array(flight))
        assert rates == pytest.approx([2, 25])
    # Without a link in common there is no victim.
    apart = paths([0, 3], [1, 4], links=5)
    assert paused_rates(apart, RATES, NONE, 10.0, np.array([100.0, 100.0]))[0] == pytest.approx([2, 25])


def test_pauses_travel_to_the_senders() -> None:
    # The second host also sends within its rack (link 5): it is paused with 12 bits beyond Xoff of its own flow.
    found = paths([0, 2, 3], [1, 2, 4], [1, 5], links=6)
    rates = np.array([25.0, 25.0, 100.0, 2.0, 25.0, 25.0])
    far, settled, _ = paused_rates(found, rates, np.full(3, np.inf), 10.0, np.array([100.0, 100.0, 0.0]))
    assert settled and far == pytest.approx([2, 2, 2])
    near, *_ = paused_rates(found, rates, np.full(3, np.inf), 10.0, np.array([100.0, 9.0, 0.0]))
    assert near == pytest.approx([2, 2, 23]), "its flow waits, but does not fill a buffer"


def test_a_slow_sender_and_its_link_pause_nobody() -> None:
    found = paths([0, 2, 3], [1, 2, 4], links=5)
    rates = np.array([2.0, 25.0, 100.0, 25.0, 25.0])
    assert paused_rates(found, rates, NONE, 10.0, np.array([100.0, 100.0]))[0] == pytest.approx([2, 25])
