"""The all-to-all of our training jobs uses all uplinks, and every path is proven."""

import pytest
from heddle.lab.rehash import set_hashing
from heddle.testing import assert_lossless, assert_mmr_below, assert_no_wrong, assert_paths_agree

pytestmark = pytest.mark.fabric("../fabrics/training.yml")


def test_all_uplinks_are_used(all_to_all, heddle_paths):
    assert_no_wrong(all_to_all())
    assert_paths_agree(heddle_paths())
    assert_lossless(heddle_paths())
    assert_mmr_below(heddle_paths(), 1.3)


def test_our_hashing_is_faster_than_a_5_tuple_hash(heddle_lab, all_to_all, reliable, record_property):
    """Two settings, one lab, one after the other: a ratio does not depend on the machine as a bandwidth does."""
    ours = all_to_all()
    set_hashing(heddle_lab, "flow")
    other = all_to_all()
    ratio = ours.busbw / other.busbw
    record_property("busbw.ratio_to_5_tuple_hash", f"{ratio:.2f}")
    reliable(ours, other)
    assert ratio >= 1.1, f"busbw with {ours.ecmp} is {ratio:.2f} times that with {other.ecmp}; expected at least 1.1"
