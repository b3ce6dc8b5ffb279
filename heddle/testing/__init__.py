"""`from heddle.testing import assert_mmr_below`: plugin testing under the name that users import."""

from typing import Any

from heddle.base.plugins import alias


def __getattr__(name: str) -> Any:
    return getattr(alias(__name__), name)
