"""Times from crossing Xoff to the pause frame: a histogram, which the agent keeps in `spare` of its rows (u32 each)."""

from __future__ import annotations

from typing import Final

REACTION_BINS: Final = 10
REACTION_STEP_NS: Final = 62_500
