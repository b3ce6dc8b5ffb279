"""An error in a key of a fabric, without the key's file and line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error.

    path: the dotted path of the key. given: paths of other keys that the error depends on; counts: it also depends on
    the numbers of nodes and ports. valued: the sentence shows the key's value.
    """

    path: str
    why: str
    hint: str = ""
    given: tuple[str, ...] = ()
    counts: bool = False
    valued: bool = True
