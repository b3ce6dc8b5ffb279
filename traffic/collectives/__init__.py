"""Collectives as traffic patterns: what each rank sends and receives, step by step. One pattern a file.

In:  number of ranks, a rank, an element count.
Out: Transfers, in the order in which that rank makes them. A rank sends a range of its buffer once everything that
earlier steps put into that range has arrived; that is the only dependency there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topologies.problems import InputError, Problem, did_you_mean
from traffic.collectives.pattern import Pattern, Transfer
from traffic.collectives.ring import RingAllReduce

__all__ = ["Pattern", "Transfer", "find_pattern", "patterns"]

# (collective, algorithm) -> pattern. A new pattern is its own file and one line here.
_PATTERNS: Final[Mapping[tuple[str, str], Pattern]] = {
    ("all-reduce", "ring"): RingAllReduce(),
}


def patterns() -> Mapping[tuple[str, str], Pattern]:
    """All patterns by (collective, algorithm)."""
    return _PATTERNS


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
