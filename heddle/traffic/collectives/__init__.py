"""Collectives as traffic patterns: the sends and receives of each rank, step by step. One pattern per file.

In:  number of ranks, a rank, an element count.
Out: Transfers, in the order of that rank, and the final content of its array (pattern.py).
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

# (collective, algorithm) -> pattern. A new pattern needs its own file and one line here. The first algorithm of a
# collective is its default.
_PATTERNS: Final[Mapping[tuple[str, str], Pattern]] = {
    ("all-reduce", "ring"): RingAllReduce(),
    ("all-to-all", "staggered"): StaggeredAllToAll(),
    ("incast", "direct"): DirectIncast(),
}


def patterns() -> Mapping[tuple[str, str], Pattern]:
    """All patterns by (collective, algorithm)."""
    return _PATTERNS


def usual_algorithm(collective: str) -> str:
    """The default algorithm of a collective; empty for an unknown collective."""
    return next((a for c, a in _PATTERNS if c == collective), "")


def find_pattern(collective: str, algorithm: str) -> Pattern:
    """The pattern of that name; InputError with the nearest word when there is none."""
    names = sorted({c for c, _ in _PATTERNS})
    if collective not in names:
        raise InputError(
            Problem("", f"--collective {collective}", "is not a supported collective", did_you_mean(collective, names))
        )
    found = _PATTERNS.get((collective, algorithm))
    if found is None:
        legal = sorted(a for c, a in _PATTERNS if c == collective)
        raise InputError(
            Problem(
                "", f"--algorithm {algorithm}", f"is not an algorithm of {collective}", did_you_mean(algorithm, legal)
            )
        )
    return found
