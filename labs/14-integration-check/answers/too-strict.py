"""A mistake: no hash spreads 32 QPs perfectly."""

import pytest

from heddle.testing import assert_mmr_below


@pytest.mark.fabric("my-fabric.yml")
def test_spread(heddle_run, heddle_paths):
    heddle_run(sizes="64K", qps=32, sport="fixed", iters=1)
    assert_mmr_below(heddle_paths(), 1)
