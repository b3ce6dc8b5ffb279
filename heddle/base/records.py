"""Dataclasses of which a large fabric has a hundred thousand objects.

Out: `record`, used as `dataclass(frozen=True, slots=True)` is.
They are frozen for type checkers only: at run time that would make each object take three times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(**_: Any) -> Any:
        """The decorator: equal objects have equal hashes, as with `frozen`."""
        return dataclass(slots=True, unsafe_hash=True)
