"""busbw over size as a curve, and the comparison of the shapes of two curves.

In:  stored runs, or files of nccl-tests (ncclfile.py). Out: Shapes: each curve divided by its own largest busbw.
Heights are not compared: a fabric of Heddle is slower than hardware by k, and latencies of hosts are not scaled. The
shape says from which size on the bandwidth is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heddle.base.problems import InputError, Problem
from heddle.runs.stored import StoredRun


@dataclass(frozen=True, slots=True)
class BusbwCurve:
    """busbw: size in bytes -> GB/s, at least one above 0. collective: empty, and ranks: 0, where it is not known.

    k: the scale of an emulated run; 0 for hardware.
    """

    name: str
    collective: str
    ranks: int
    busbw: Mapping[int, float]
    k: int = 0

    @classmethod
    def of_run(cls, run: StoredRun) -> BusbwCurve:
        """The measured sizes of a run. InputError when it has none."""
        head, rows = run.record.header, run.record.measured
        if not rows:
            raise run.unusable(f"it has no measured size: {run.record.why_not_done}")
        return cls(run.what, head.options.collective, len(head.ranks), {row.size: row.busbw for row in rows}, head.k)

    def half_size(self, largest: float) -> int:
        """The first size with at least half of a bandwidth."""
        return next(size for size, value in sorted(self.busbw.items()) if value >= largest / 2)


@dataclass(frozen=True, slots=True)
class ShapePoint:
    """A size of both curves: GB/s, and the share of the largest busbw of its own curve."""

    size: int
    a: float
    b: float
    a_share: float
    b_share: float

    @property
    def apart(self) -> float:
        """The difference of the shares, B - A."""
        return self.b_share - self.a_share


@dataclass(frozen=True, slots=True)
class Shapes:
    """Two curves at their common sizes. half_sizes: where each first has half of its largest busbw."""

    a: BusbwCurve
    b: BusbwCurve
    points: tuple[ShapePoint, ...]
    half_sizes: tuple[int, int]
    left_out: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def farthest(self) -> ShapePoint:
        """Where the shapes differ most."""
        return max(self.points, key=lambda each: abs(each.apart))

    def to_json(self) -> dict[str, Any]:
        """The document of `./inv compare` with a file."""
        return {
            **{
                name: {"name": each.name, "collective": each.collective, "ranks": each.ranks, "k": each.k or None}
                for name, each in (("a", self.a), ("b", self.b))
            },
            "compared": "shape",
            "sizes": [{**asdict(each), "apart": each.apart} for each in self.points],
            "half_of_largest_bytes": {"a": self.half_sizes[0], "b": self.half_sizes[1]},
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


def shapes_of(a: BusbwCurve, b: BusbwCurve) -> Shapes:
    """Lay two curves beside each other. InputError for different collectives, and without a common size."""
    what = f"{a.name} and {b.name}"
    if a.collective and b.collective and a.collective != b.collective:
        why = f"have different collectives ({a.collective}, {b.collective}): their shapes are not comparable"
        raise InputError(Problem("", what, why, "compare two runs of the same collective"))
    common = sorted(a.busbw.keys() & b.busbw.keys())
    if not common:
        low, high = min(a.busbw), max(a.busbw)
        hint = f"measure the sizes of the first: -b {low} -e {high} -f 2"
        raise InputError(Problem("", what, "have no size in common", hint))
    tops = [max(each.busbw[size] for size in common) for each in (a, b)]
    if min(tops) <= 0:
        raise InputError(Problem("", what, "have no common size with a busbw above 0", "measure larger sizes"))
    points = tuple(
        ShapePoint(size, a.busbw[size], b.busbw[size], a.busbw[size] / tops[0], b.busbw[size] / tops[1])
        for size in common
    )
    at_common = [BusbwCurve(each.name, "", 0, {size: each.busbw[size] for size in common}) for each in (a, b)]
    halves = [each.half_size(top) for each, top in zip(at_common, tops, strict=True)]
    left_out = tuple(sorted(a.busbw.keys() ^ b.busbw.keys()))
    return Shapes(a, b, points, (halves[0], halves[1]), left_out, tuple(_notes(a, b, common)))


def _notes(a: BusbwCurve, b: BusbwCurve, common: list[int]) -> list[str]:
    notes = []
    if a.ranks and b.ranks and a.ranks != b.ranks:
        notes.append(f"the numbers of ranks differ ({a.ranks}, {b.ranks}): more ranks need larger sizes")
    notes += [f"{each.name} does not say its collective" for each in (a, b) if not each.collective]
    if len(common) == 1:
        notes.append("one common size has no shape: measure several")
    return notes
