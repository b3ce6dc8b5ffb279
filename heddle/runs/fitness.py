"""Whether a verdict may rest on a run: experiments, compare, assertions of pytest and the report ask here.

In:  the outcome of a run. Out: the reasons against it.
Wrong data and unproven paths exclude a run always. An unreliable run may count where a user says so, and the verdict
then names it. A run that could have no verdict on its paths (`proof` is None) is not unproven: nothing contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from heddle.base.tables import many
from heddle.runs.results import RunOutcome

UnfitKind = Literal["wrong data", "unproven", "unreliable"]


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no verdict rests on a run. why: in words, without the run's name."""

    kind: UnfitKind
    why: str

    @classmethod
    def read(cls, why: str) -> Self | None:
        """Of its text alone, which is what a pod sends and a file keeps; None for an empty one."""
        kind: UnfitKind = (
            "wrong data" if "wrong element" in why else "unproven" if "not proven" in why else "unreliable"
        )
        return cls(kind, why) if why else None


def reasons(run: RunOutcome, size: int | None = None) -> Iterator[Unfit]:
    """Every reason, the gravest first. size: causes of unreliability at other sizes do not count, bytes."""
    if run.wrong:
        yield Unfit("wrong data", many(run.wrong, "wrong element"))
    proof = run.proof
    if proof is not None and not proof.agree:
        why = f"{proof.unproven} of {many(proof.qps, 'path')} not proven" if proof.unproven else "paths are not proven"
        yield Unfit("unproven", why)
    causes = [each for each in run.doubts if size is None or each.size in (None, size)]
    if causes:
        yield Unfit("unreliable", f"UNRELIABLE: {causes[0].text}")


def unfit(run: RunOutcome, size: int | None = None) -> Unfit | None:
    """The gravest reason; None for a run that is fit. size: as above."""
    return next(reasons(run, size), None)
