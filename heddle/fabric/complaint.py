"""What is wrong with a key of a fabric, before anybody has said where the key stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong.

    path: the dotted path of the key. given: paths of other keys that it follows from; counts: it follows from how many
    nodes and ports there are, too. valued: the value belongs into the sentence.
    """

    path: str
    why: str
    hint: str = ""
    given: tuple[str, ...] = ()
    counts: bool = False
    valued: bool = True
