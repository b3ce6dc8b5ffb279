"""A CTSW can be drained while jobs run: no packet is lost, and most of the bandwidth stays."""

import pytest
from heddle.lab.outages import drain
from heddle.testing import assert_converged, assert_lossless, assert_no_wrong, assert_paths_agree

pytestmark = pytest.mark.fabric("../fabrics/training.yml")


def test_a_drain_costs_no_packet_and_little_bandwidth(heddle_lab, all_to_all, heddle_paths, reliable, record_property):
    before = all_to_all()
    drain(heddle_lab, "ctsw2")
    assert_converged(heddle_lab, degraded=True)
    after = all_to_all()
    assert_no_wrong(after)
    assert_paths_agree(heddle_paths())
    ratio = after.busbw / before.busbw
    record_property("busbw.ratio_to_all_switches", f"{ratio:.2f}")
    reliable(before, after)
    assert_lossless(after)
    assert ratio >= 0.6, f"without ctsw2 the busbw is {ratio:.2f} of that before; expected at least 0.6"
