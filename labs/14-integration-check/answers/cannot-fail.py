"""A mistake: QPs have source ports of their own, so this passes on every fabric."""

import pytest

from heddle.testing import assert_mmr_below


@pytest.mark.fabric("my-fabric.yml")
def test_spread(heddle_run, heddle_paths):
    heddle_run(sizes="64K", qps=32, iters=1)
    assert_mmr_below(heddle_paths(), 2)
