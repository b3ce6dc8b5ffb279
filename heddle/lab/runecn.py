"""ECN curves of all switches that are multiplied for one run, where its profile of congestion control asks for that.

In:  a lab, a factor. Out: other curves during a with block. The lab's record has the curves from before, so the next
run, or `up --repair`, undoes them after a kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.problems import HeddleError
from heddle.base.tables import some_of
from heddle.fabric.policy import EcnPolicy
from heddle.fabric.policydata import dump_queues, load_queues
from heddle.lab.thresholds import own_queues, write_queues

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@contextmanager
def ecn_for_run(lab: Lab, factor: int, observer: Observer) -> Iterator[None]:
    """Multiply Kmin and Kmax of all switches for a with block. The caller holds the lab's lock.

    What `queues set` changes meanwhile stays, except ECN curves. Where the end cannot undo it, it warns.
    """
    if left := end_run_ecn(lab):
        observer.warn(f"a run that was killed had left its ECN thresholds on {some_of(left)}, which are restored now")
    try:
        if factor != 1:
            with owners.lock(lab.name, owners.CHANGES):
                own, usual = own_queues(lab), lab.fabric.policy.queues
                before = {node.name: own.get(node.name, usual) for node in lab.fabric.switches}
                scaled = {name: replace(each, ecn=_times(each.ecn, factor)) for name, each in before.items()}
                kept = {name: dump_queues(each) for name, each in before.items()}
                write_queues(lab, {**own, **scaled}, [*scaled], before_run=kept)
        yield
    finally:
        if factor != 1:
            try:
                end_run_ecn(lab)
            except HeddleError as error:
                why = str(error).partition("\n")[0]
                observer.warn(f"the ECN thresholds of this run are still set ({why}): run ./inv up --repair {lab.name}")


def end_run_ecn(lab: Lab) -> list[str]:
    """Restore the curves from before a run that has ended; returns the switches. The caller holds the lab's lock."""
    record = state.read_record(lab.name)
    if record is None or not record.before_run:
        return []
    with owners.lock(lab.name, owners.CHANGES):
        own, usual = own_queues(lab), lab.fabric.policy.queues
        before = {name: load_queues(data) for name, data in record.before_run.items()}
        restored = {name: replace(own.get(name, usual), ecn=each.ecn) for name, each in before.items()}
        write_queues(lab, {**own, **restored}, [*restored], before_run={})
    return [*before]


def _times(ecn: EcnPolicy, factor: int) -> EcnPolicy:
    classes = {
        number: replace(
            each,
            kmin=None if each.kmin is None else each.kmin * factor,
            kmax=None if each.kmax is None else each.kmax * factor,
        )
        for number, each in ecn.classes.items()
    }
    return replace(ecn, kmin=ecn.kmin * factor, kmax=ecn.kmax * factor, classes=classes)
