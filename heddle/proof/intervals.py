"""The paths of a run during which traffic engineering changed entries: proven over all rules that were in force.

In:  Evidence; `rules` has every change that was recorded, with the epoch of each switch's rule (lab/rehash.py).
Out: the hashing of all switches from each change on, if no change is missing; and with it the paths of each flow.
A packet may meet the old rule at one switch and the new one at the next. So a step of a path has all ports that the
switch chose for this flow under any of its rules, and the counts at these ports must add up as for a spread flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from heddle.base.tables import many, some_of
from heddle.fabric.model import Fabric
from heddle.predict.predict import predict, predict_under
from heddle.predict.selftest import SelfTest
from heddle.predict.walk import spreads
from heddle.proof.evidence import Evidence
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow

Path = tuple[str, ...]
State = Mapping[str, SwitchHashing]


def states_of(evidence: Evidence) -> tuple[State, ...] | None:
    """The hashing of all switches from the start of the run, and from each change on; None if a change is missing."""
    state, states = dict(evidence.before.hashing), [evidence.before.hashing]
    epochs = dict(evidence.before.epochs)
    for change in evidence.rules:
        since = {name: each for name, each in change.rules.items() if each[0] > epochs[name]}
        if any(epoch != epochs[name] + 1 for name, (epoch, _) in since.items()):
            return None
        if since:
            epochs |= {name: epoch for name, (epoch, _) in since.items()}
            state |= {name: row for name, (_, row) in since.items()}
            states.append(dict(state))
    return tuple(states) if epochs == evidence.after.epochs else None


def paths_by(
    fabric: Fabric, evidence: Evidence, flows: Sequence[Flow], trusted: SelfTest
) -> tuple[Sequence[Path | None], Sequence[Path]]:
    """For each flow its path by prediction (None on a kernel for which that is wrong), and by kernel lookup.

    The kernels were asked when the last rules were in force. If they agree with the prediction for these, the lookup
    has the ports of the earlier rules too.
    """
    if trusted.differs:
        return [None] * len(flows), evidence.oracle
    states = states_of(evidence) or (evidence.before.hashing,)
    fibs = evidence.before.fibs
    if len(states) == 1:
        return predict(fabric, fibs, states[0], flows), evidence.oracle
    last, every = predict(fabric, fibs, states[-1], flows), predict_under(fabric, fibs, states, flows)
    rows = zip(evidence.oracle, last, every, strict=True)
    return every, [path if asked == end else asked for asked, end, path in rows]


def change_notes(evidence: Evidence, paths: Sequence[Path | None]) -> tuple[str, ...]:
    """What is to be said of changes of rules and routes during the run. paths: by prediction."""
    rerouted = [name for name, fib in evidence.after.fibs.items() if fib != evidence.before.fibs[name]]
    notes = []
    if not evidence.switched:
        if evidence.changed:
            notes.append(f"routes or hashing changed during the run: {', '.join(evidence.changed)}")
        return tuple(notes)
    if not proven_over_changes(evidence, paths):
        notes.append(f"hashing was changed during the run, so no path follows one rule: {', '.join(evidence.switched)}")
    else:
        said = [f"{each.by} at {datetime.fromtimestamp(each.at, UTC):%H:%M:%S.%f}"[:-3] for each in evidence.rules]
        moved = sum(path is not None and spreads(path) for path in paths)
        notes.append(
            f"entries were changed {many(len(said), 'time')} during the run ({some_of(said)} UTC): "
            f"{many(moved, 'QP')} had several paths in turn, and these are proven together"
        )
    if rerouted:
        notes.append(f"routes changed during the run: {', '.join(rerouted)}")
    return tuple(notes)


def proven_over_changes(evidence: Evidence, paths: Sequence[Path | None]) -> bool:
    """Whether paths can be proven: no change of rules, or all of them are known and predicted."""
    return not evidence.switched or (states_of(evidence) is not None and None not in paths)
