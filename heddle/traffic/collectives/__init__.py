"""Collectives as traffic patterns: the operations of each rank, step by step. One file per collective.

In:  number of ranks, a rank, an element count; parameters, as root and type.
Out: Steps, in the order of that rank, and the result in its array (pattern.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from heddle.base.declared import OptionField, options_of
from heddle.base.plugins import Registry
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.traffic.collectives.all_gather import DirectAllGather, RingAllGather
from heddle.traffic.collectives.all_reduce import (
    DirectAllReduce,
    HalvingDoublingAllReduce,
    HierarchicalAllReduce,
    TreeAllReduce,
)
from heddle.traffic.collectives.all_to_all import RailAlignedAllToAll, StaggeredAllToAll
from heddle.traffic.collectives.barrier import DisseminationBarrier
from heddle.traffic.collectives.broadcast import ChainBroadcast, TreeBroadcast
from heddle.traffic.collectives.incast import DirectGather, DirectIncast, DirectScatter
from heddle.traffic.collectives.matrix import PairMatrix, StaggeredAllToAllV
from heddle.traffic.collectives.pattern import Pattern, Piece
from heddle.traffic.collectives.permutation import NextSendRecv, RandomPermutation
from heddle.traffic.collectives.reduce import ChainReduce
from heddle.traffic.collectives.reduce_scatter import DirectReduceScatter, RingReduceScatter
from heddle.traffic.collectives.ring import RingAllReduce

__all__ = ["Pattern", "Piece", "file_options", "find_pattern", "patterns", "usual_algorithm"]

Value = str | int
# A new collective needs its own file and one line here. The first algorithm of a collective is its default.
_KINDS: Final[tuple[type[Pattern], ...]] = (
    RingAllReduce,
    HalvingDoublingAllReduce,
    TreeAllReduce,
    DirectAllReduce,
    HierarchicalAllReduce,
    RingAllGather,
    DirectAllGather,
    RingReduceScatter,
    DirectReduceScatter,
    ChainBroadcast,
    TreeBroadcast,
    ChainReduce,
    StaggeredAllToAll,
    RailAlignedAllToAll,
    StaggeredAllToAllV,
    DirectGather,
    DirectScatter,
    DirectIncast,
    NextSendRecv,
    DisseminationBarrier,
    RandomPermutation,
    PairMatrix,
)


def _fits(name: str, found: Any) -> str:
    """What is wrong with a collective of a plugin, which registers it as `all-reduce/mine`; empty if nothing."""
    if not isinstance(found, type) or not issubclass(found, Pattern):
        return f"{found!r} is not a subclass of Pattern"
    own = f"{getattr(found, 'collective', '')}/{getattr(found, 'algorithm', '')}"
    return "" if own == name else f"its name is {own}"


COLLECTIVES: Final[Registry[type[Pattern]]] = Registry(
    "collective", {f"{kind.collective}/{kind.algorithm}": kind for kind in _KINDS}, _fits
)


@cache
def patterns(*, of_files: bool = False) -> Mapping[tuple[str, str], Pattern]:
    """All patterns by (collective, algorithm), with their default parameters. of_files: also those that need a file."""
    kinds = [kind for kind in COLLECTIVES.values() if of_files or not kind.of_file]
    return {(kind.collective, kind.algorithm): kind() for kind in kinds}


@dataclass(frozen=True, slots=True)
class FileOption:
    """The option by which a collective names the user's file that has its program."""

    collective: str
    option: OptionField

    def name(self, value: str) -> str:
        """The name of the file, as typed. value: as typed, or with the text of the file (Pattern.bound)."""
        return "".join(self.option.write(value))

    def is_file(self, value: str) -> bool:
        """Whether it is the name of a file, without its text."""
        return bool(value) and self.name(value) == value


@cache
def file_options() -> Mapping[str, FileOption]:
    """The options of all collectives that need a user's file, by their words, which are their names."""
    kinds = [kind for kind in COLLECTIVES.values() if kind.of_file]
    return {
        each.word: FileOption(kind.collective, each)
        for kind in kinds
        for each in options_of(kind)
        if each.name == kind.of_file
    }


def usual_algorithm(collective: str) -> str:
    """The default algorithm of a collective; empty for an unknown collective."""
    return next((a for c, a in patterns(of_files=True) if c == collective), "")


def find_pattern(collective: str, algorithm: str = "", **parameters: Value) -> Pattern:
    """The pattern of that name, with its parameters; InputError with the nearest word for a wrong name or value.

    algorithm: empty for the default of the collective.
    """
    every = patterns(of_files=True)
    names = sorted({c for c, _ in every})
    if collective not in names:
        for name in [*COLLECTIVES, *COLLECTIVES.absent()]:
            if name.partition("/")[0] == collective:
                COLLECTIVES[name]  # says why it cannot be used
        raise InputError(
            Problem("", f"--collective {collective}", "is not a supported collective", did_you_mean(collective, names))
        )
    found = every.get((collective, algorithm or usual_algorithm(collective)))
    if found is None:
        legal = sorted(a for c, a in every if c == collective)
        raise InputError(
            Problem(
                "", f"--algorithm {algorithm}", f"is not an algorithm of {collective}", did_you_mean(algorithm, legal)
            )
        )
    return type(found)(**_checked(type(found), collective, parameters)) if parameters else found  # type: ignore[arg-type]


def _checked(kind: type, what: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """The values; InputError for unknown names and values out of range. what: the pattern's name."""
    known, problems, found = {each.name: each for each in options_of(kind)}, Problems(), dict[str, Value]()

    def wrong(flag: str, why: str, hint: str) -> None:
        problems.add(where="", what=flag, why=why, hint=hint)

    for name, value in given.items():
        each = known.get(name)
        if each is None:
            wrong(f"--{name} {value}", f"is not a parameter of {what}", did_you_mean(name, list(known)))
        elif each.kind == "int" and not (isinstance(value, int) or value.isdecimal()):
            wrong(f"{each.flag} {value}", "is not a whole number", each.declared.hint)
        else:
            found[name] = each.read(int(value) if each.kind == "int" else str(value), wrong)
    problems.raise_if_any()
    return found
