"""Histogram of the times from crossing Xoff to the pause frame, in `spare` of the agent's rows (u32 each)."""

from __future__ import annotations

from typing import Final

REACTION_BINS: Final = 10
REACTION_STEP_NS: Final = 62_500


def reaction_bin(reaction_ns: int) -> int:
    """The histogram bin of a reaction time: bin 0 ends at 62.5 us, and each next bin ends at twice the time."""
    return min(REACTION_BINS - 1, (reaction_ns // REACTION_STEP_NS).bit_length())
