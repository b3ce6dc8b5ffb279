"""Histogram of the times from crossing Xoff to the pause frame, in `spare` of the agent's rows (u32 each)."""

from __future__ import annotations

from typing import Final

REACTION_BINS: Final = 10
REACTION_STEP_NS: Final = 62_500
