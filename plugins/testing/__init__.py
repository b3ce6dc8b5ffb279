"""The pytest plugin: running fabrics as fixtures, and assertions with readable failures.

A test imports its assertions from here; fixtures, marker and options come from plugin.py. docs/testing.md explains
them. pytest loads this package wherever Heddle is installed, so nothing here imports other rooms until it is used.
"""

from heddle_plugins.testing.assertions import (
    assert_busbw_above,
    assert_converged,
    assert_depth_below,
    assert_lossless,
    assert_marked_below,
    assert_mmr_below,
    assert_no_pauses,
    assert_no_wrong,
    assert_paths_agree,
    assert_reliable,
)
from heddle_plugins.testing.calls import craft
from heddle_plugins.testing.pool import LeftoverWarning

__all__ = [
    "LeftoverWarning",
    "assert_busbw_above",
    "assert_converged",
    "assert_depth_below",
    "assert_lossless",
    "assert_marked_below",
    "assert_mmr_below",
    "assert_no_pauses",
    "assert_no_wrong",
    "assert_paths_agree",
    "assert_reliable",
    "craft",
]
