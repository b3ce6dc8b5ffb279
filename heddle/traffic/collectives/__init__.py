"""Collectives as traffic patterns: what each rank sends and receives, step by step. One pattern a file.

In:  number of ranks, a rank, an element count.
Out: Transfers, in the order in which that rank makes them, and what they leave in its array (pattern.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.traffic.collectives.all_to_all import StaggeredAllToAll
from heddle.traffic.collectives.incast import DirectIncast
from heddle.traffic.collectives.pattern import Pattern, Piece, Transfer
from heddle.traffic.collectives.ring import RingAllReduce

__all__ = ["Pattern", "Piece", "Transfer", "find_pattern", "patterns", "usual_algorithm"]

# (collective, algorithm) -> pattern. A new pattern is its own file and one line here; the first of a collective is the
# one that runs where no algorithm is named.
_PATTERNS: Final[Mapping[tuple[str, str], Pattern]] = {
    ("all-reduce", "ring"): RingAllReduce(),
    ("all-to-all", "staggered"): StaggeredAllToAll(),
    ("incast", "direct"): DirectIncast(),
}


def patterns() -> Mapping[tuple[str, str], Pattern]:
    """All patterns by (collective, algorithm)."""
    return _PATTERNS


def usual_algorithm(collective: str) -> str:
    """The algorithm of a collective where none is named; empty for a collective that there is not."""
    return next((a for c, a in _PATTERNS if c == collective), "")


def find_pattern(collective: str, algorithm: str) -> Pattern:
    """The pattern of that name; InputError with the nearest word when there is none."""
    names = sorted({c for c, _ in _PATTERNS})
    if collective not in names:
        raise InputError(
            Problem(
                "", f"--collective {collective}", "is not a collective that runs here", did_you_mean(collective, names)
            )
        )
    found = _PATTERNS.get((collective, algorithm))
    if found is None:
        legal = sorted(a for c, a in _PATTERNS if c == collective)
        raise InputError(
            Problem("", f"--algorithm {algorithm}", f"is none of {collective}'s", did_you_mean(algorithm, legal))
        )
    return found
