"""Whether a verdict may rest on a run: experiments, compare, assertions of pytest and the report ask here.

In:  the outcome of a run. Out: the first reason against it, or None.
Wrong data and unproven paths exclude a run always. An unreliable run may count where a user says so, and the verdict
then names it. A run that could have no verdict on its paths (`proof` is None) is not unproven: nothing contradicts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from heddle.base.tables import many
from heddle.runs.results import RunOutcome

UnfitKind = Literal["wrong data", "unproven", "unreliable"]
UNFIT: Final[tuple[UnfitKind, ...]] = get_args(UnfitKind)  # the gravest first


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


def unfit(run: RunOutcome, size: int | None = None) -> Unfit | None:
    """The reason; None for a run that is fit. size: causes of unreliability at other sizes do not count, bytes."""
    if run.wrong:
        return Unfit("wrong data", many(run.wrong, "wrong element"))
    proof = run.proof
    if proof is not None and not proof.agree:
        why = f"{proof.unproven} of {many(proof.qps, 'path')} not proven" if proof.unproven else "paths are not proven"
        return Unfit("unproven", why)
    causes = [each for each in run.doubts if size is None or each.size in (None, size)]
    if causes:
        return Unfit("unreliable", f"UNRELIABLE: {causes[0].text}")
    return None
