"""Labs of other state directories on this machine: they are named, and never changed without --force."""

from __future__ import annotations

from contextlib import suppress

from heddle.base import owners, state
from heddle.base.owners import LabOwner
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.runtimes.registry import on_machine


def other_owner(lab: str) -> LabOwner | None:
    """The owner of a lab of another state directory; None for one of ours, and for one that is gone."""
    found = owners.owner_of(lab)
    return found if found is not None and not found.ours and _is_there(found) else None


def _is_there(owner: LabOwner) -> bool:
    return owner.starting or on_machine(owner.lab)


def other_labs() -> list[LabOwner]:
    """The labs of other state directories. Records of labs that are gone are removed."""
    found = []
    for each in owners.owned_labs():
        if _is_there(each):
            found += [] if each.ours else [each]
            continue
        with suppress(HeddleError), owners.lock(each.lab):  # `up` may have begun meanwhile
            if (now := owners.owner_of(each.lab)) is not None and not _is_there(now):
                owners.disown_lab(each.lab)
    return found


def check_free(lab: str) -> None:
    """InputError when another state directory has the lab: `up` of that name would change it."""
    if (other := other_owner(lab)) is not None:
        hint = f"use another --name, or remove it: ./inv down {lab} --force"
        raise InputError(Problem("", f"lab {lab}", other.text(), hint))


def check_ours(lab: str) -> None:
    """InputError when this machine's lab of that name is not the one that this state directory has a record of."""
    if (other := other_owner(lab)) is not None:
        hint = f"its owner, and root, work with it with HEDDLE_STATE_DIR={other.state}"
        if state.lab_dir(lab).exists():
            hint += f"; ./inv down {lab} removes what is left of yours"
        raise InputError(Problem("", f"lab {lab}", other.text(), hint))
