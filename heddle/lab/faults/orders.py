"""Set, list and clear faults of the kinds of registry.py; finish what a killed process has left.

In:  a Lab; kinds, places and values.
Out: SetFault, recorded before each change, with the evidence of its effect; or errors, and nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.base.problems import CheckError, InputError, Problem
from heddle.fabric.model import split_words
from heddle.lab.control import control_of
from heddle.lab.faults import record
from heddle.lab.faults.kind import NamedFault, undo_of
from heddle.lab.faults.record import SetFault, changing
from heddle.lab.faults.registry import KINDS
from heddle.lab.linkstate import SECONDS, wait
from heddle.lab.ports import ends_of, ports_of
from heddle.spec.impairments import DOWN, PACKETS

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

K = TypeVar("K", bound=NamedFault)
Order = tuple[str, str, Mapping[str, Any]]  # kind, place, values
Found = list[tuple[NamedFault, SetFault]]


def set_kind(
    lab: Lab, name: str, places: Sequence[str], values: Mapping[str, Any], timeout: float = SECONDS
) -> list[tuple[SetFault, str]]:
    """Set a fault of a kind on places; returns each with the evidence of its effect.

    InputError for a place that cannot have it. CheckError where no effect is seen within `timeout` seconds. The fault
    is undone then, and after an interruption. A link that is down and a switch that is drained stay as they are.
    """
    kind = KINDS[name]
    with kind.locked(lab), changing(lab):
        faults = start(lab, [(name, where, values) for where in places])
    try:
        shown = kind.proof(lab, faults, timeout)
        with changing(lab):
            record.verified(lab, faults)
    except BaseException:  # Ctrl-C above all
        end(lab, faults)
        raise
    return [(replace(fault, maker=None), each) for fault, each in zip(faults, shown, strict=True)]


def start(lab: Lab, orders: Sequence[Order], *, run: bool = False) -> list[SetFault]:
    """Record faults and make their changes, without waiting for their effects. The caller holds CHANGES.

    run: they are for one run. InputError where a place has a fault that excludes another.
    """
    finish(lab)
    faults = list[SetFault]()
    for name in dict.fromkeys(name for name, _, _ in orders):
        kind, values = KINDS[name], {where: each for of, where, each in orders if of == name}
        faults += [
            SetFault(name, where, dict(values[where]), run=run).being_set() for where in kind.fresh(lab, [*values])
        ]
    _check_free(lab, faults)
    faults = [replace(each, values=KINDS[each.kind].prepared(lab, each.where, each.values)) for each in faults]
    record.replaced(lab, (), faults)
    try:
        made = [each for name, some in _by_kind(faults).items() for each in KINDS[name].start(lab, some)]
        _follow(lab, faults)
        return made
    except BaseException:
        mine = {each.identity for each in faults}
        undo(lab, [each for each in record.read(lab.dir) if each.identity in mine])
        raise


def prove(lab: Lab, faults: Sequence[SetFault], timeout: float = SECONDS) -> None:
    """Wait for the effects of faults. CheckError for one that shows none."""
    for name, some in _by_kind(faults).items():
        KINDS[name].proof(lab, some, timeout)


def end(lab: Lab, faults: Sequence[SetFault]) -> None:
    """Undo faults and remove them from the record, without waiting for routes."""
    with changing(lab):
        undo(lab, faults)


def undo(lab: Lab, faults: Sequence[SetFault]) -> None:
    """The same for a caller that holds CHANGES."""
    for name, some in _by_kind(faults).items():
        kind = KINDS.usable_one(name)  # one of a plugin that is gone stays recorded; `down` removes all
        if kind is not None:
            kind.end(lab, some)
    _follow(lab, faults)


def _follow(lab: Lab, faults: Iterable[SetFault]) -> None:
    """Routes of a lab without a routing program, after faults were set or ended."""
    if any(kind is not None and kind.routes for kind in map(KINDS.usable_one, {each.kind for each in faults})):
        control_of(lab.fabric).follow(lab)


def _by_kind(faults: Iterable[SetFault]) -> dict[str, list[SetFault]]:
    """Kind -> its faults; those that the lab shows come last, since others set them, too."""
    found: dict[str, list[SetFault]] = {}
    for each in sorted(faults, key=lambda each: not getattr(KINDS.usable_one(each.kind), "listed", True)):
        found.setdefault(each.kind, []).append(each)
    return found


def forget(lab: Lab, fault: SetFault) -> None:
    """Remove a fault that has ended by itself from the record."""
    with changing(lab):
        record.replaced(lab, [each for each in record.read(lab.dir) if each.key == fault.key], ())


def finish(lab: Lab, *, runs: bool = False) -> list[SetFault]:
    """Undo the faults whose makers were killed; returns them. Those that have ended by themselves are forgotten.

    runs: also all faults of runs: no run is in progress. The caller holds CHANGES.
    """
    known = record.read(lab.dir)
    left = [each for each in known if each.unfinished or (runs and each.run)]
    rest = ((KINDS.usable_one(each.kind), each) for each in known if each not in left)
    undo(lab, [*left, *(each for kind, each in rest if kind is not None and kind.over(lab, each))])
    return left


def in_force(lab: Lab) -> Found:
    """The faults that are recorded, but for those that have ended by themselves in a shard: it cannot say so."""
    rows = [(KINDS.usable_one(each.kind), each) for each in record.read(lab.dir)]
    known = [(kind, each) for kind, each in rows if kind is not None]
    return known if lab.runtime.here else [(kind, each) for kind, each in known if not kind.over(lab, each)]


def _listed(lab: Lab) -> Found:
    return [(kind, each) for kind, each in in_force(lab) if kind.listed]


def present(lab: Lab, kind: NamedFault) -> list[SetFault]:
    """The faults of a kind that the lab has, recorded or not."""
    return kind.present(lab, [each for each in record.read(lab.dir) if each.kind == kind.name])


def end_all(lab: Lab, timeout: float = SECONDS) -> list[SetFault]:
    """End all faults but those of the fabric file, also those made by hand, and wait for the routes; returns them."""

    def every(kind: NamedFault) -> list[SetFault]:
        known = [each for each in record.read(lab.dir) if each.kind == kind.name]
        if kind.name == PACKETS:
            return known
        return [*known, *(each for each in kind.present(lab, known) if each not in known)]

    return [each for _, each in _ended(lab, every, lambda kind, mine: kind.end(lab, mine), timeout)]


def clear(lab: Lab, words: Sequence[str] = (), timeout: float = SECONDS) -> list[str]:
    """End the faults of ports and nodes, or all, also those made by hand; returns each in words.

    Faults of a run in progress stay, as its end undoes them. Two kinds end if their place is named: packets and drain.
    InputError before any change: for a word that is no port and no node, and where routes would change during a run.
    CheckError when routes do not return.
    """
    fabric = lab.fabric
    ports = {port.ref for port in ports_of(fabric, words)} if words else set()
    names = [each for each in split_words(words) if ":" not in each]
    nodes = {node.name for node in fabric.nodes if any(fnmatchcase(node.name, each) for each in names)}

    def meant(kind: NamedFault, each: SetFault) -> bool:
        both = ends_of(fabric, each.where) if kind.at in ("link", "session") else {each.where}
        return bool(both & ports) or each.where in nodes

    done = clear_where(lab, meant if words else None, timeout)
    return [f"{each.where}: {kind.cleared or kind.text(each, fabric.policy.k)}" for kind, each in done]


def clear_where(
    lab: Lab, meant: Callable[[NamedFault, SetFault], bool] | None, timeout: float = SECONDS, only: str = ""
) -> Found:
    """End the faults that are meant, and wait for the routes; returns them. CheckError for one that does not end.

    meant: None for all, but those of a run in progress. Of such a run, faults of packets and drains end where their
    place is named: the user may replace them, too. only: the name of a kind.
    """

    def some(kind: NamedFault) -> list[SetFault]:
        if only not in ("", kind.name):
            return []
        own = meant is None or kind.listed
        mine = [each for each in present(lab, kind) if each.unfinished or not (each.run and own)]
        if meant is not None:
            return [each for each in mine if meant(kind, each)]
        theirs = set() if kind.listed else _of_runs(lab, kind)
        return [each for each in mine if each.where not in theirs]

    done = _ended(lab, some, lambda kind, mine: kind.clear(lab, mine), timeout)
    if meant is None and only in ("", PACKETS):
        done += [(KINDS[PACKETS], each) for each in _hidden(lab)]
    by_kind = _by_kind(each for _, each in done)
    if left := [each for name, faults in by_kind.items() for each in KINDS[name].left(lab, faults)]:
        raise CheckError(*left)
    return done


def _of_runs(lab: Lab, kind: NamedFault) -> set[str]:
    """Where faults of a run in progress show as faults of this kind: a flap takes its link down, too."""
    part = {DOWN: "link", PACKETS: "errors"}.get(kind.name, "")
    theirs = [(other, each) for other, each in in_force(lab) if other.listed and each.run and not each.unfinished]
    return {where for other, each in theirs if part in other.part.split() for where in other.touched(lab.fabric, each)}


def _hidden(lab: Lab) -> list[SetFault]:
    """Forget the faults of packets that faults of a run in progress replace meanwhile: its end would set them again."""
    with changing(lab):
        known = [each for each in record.read(lab.dir) if each.kind == PACKETS]
        theirs = {each.where for each in known if each.run}
        found = [each for each in known if not each.run and each.where in theirs]
        record.replaced(lab, found, ())
    return found


def _ended(
    lab: Lab,
    chosen: Callable[[NamedFault], list[SetFault]],
    ends: Callable[[NamedFault, list[SetFault]], None],
    timeout: float,
) -> Found:
    """End the chosen faults of each kind, and wait for the routes; returns them, in the order of KINDS.

    Kinds that change routes come first: a run in progress refuses them before any change. Down and packets come after
    the kinds that also set them.
    """
    done: Found = []
    locked = set[object]()
    with ExitStack() as held:
        for kind in sorted(KINDS.values(), key=lambda kind: (not kind.routes, not kind.listed)):
            if mine := chosen(kind):
                if type(kind).locked not in locked:
                    held.enter_context(kind.locked(lab))
                    locked.add(type(kind).locked)
                with changing(lab):
                    ends(kind, mine)
                    _follow(lab, mine)
                done += [(kind, each) for each in mine]
    if any(kind.routes for kind, _ in done):
        wait(lab, timeout)
    return [pair for kind in KINDS.values() for pair in done if pair[0] is kind]


def reapply(lab: Lab) -> list[SetFault]:
    """Set faults again that the lab has lost, as after FRR of a switch was restarted; returns them."""
    with changing(lab):
        lost = lost_faults(lab)
        for fault in lost:
            KINDS[fault.kind].start(lab, [fault])
    return lost


def lost_faults(lab: Lab) -> list[SetFault]:
    """Faults that are recorded, and of which no effect is seen."""
    rows = [(kind, each) for kind, each in _listed(lab) if each.maker is None and kind.lasting]
    return [each for kind, each in rows if not kind.effect(lab, each)]


def text_of(lab: Lab, fault: SetFault) -> str:
    """`slow-link at 10% of its rate`."""
    kind = KINDS.usable_one(fault.kind)
    return f"{fault.kind if kind is None else kind.text(fault, lab.fabric.policy.k)}{' (one run)' * fault.run}"


def fault_rows(lab: Lab) -> list[dict[str, Any]]:
    """The active faults, with the evidence that is seen now: rows of `./inv fault list --format json`.

    Without those that have tables of their own: faults of packets, links that are down, and drains.
    """
    found = [row for kind, each in _listed(lab) for row in _rows(lab, kind, [each])]
    for each in record.read(lab.dir):
        if KINDS.usable_one(each.kind) is None:
            effect = "not known: the plugin of this kind cannot be used (./inv plugin); the end of the lab ends it"
            row = {"kind": each.kind, "where": each.where, "what": each.kind, "by": "", "effect": effect}
            found.append({**row, "undo": f"./inv down {lab.name}"})
    return found


def all_rows(lab: Lab) -> list[dict[str, Any]]:
    """The same rows for every active fault."""
    found, by_others = fault_rows(lab), places_of(lab, "link", listed=True)
    for kind in (each for each in KINDS.values() if not each.listed):
        some = [each for each in present(lab, kind) if kind.at == "port" or each.where not in by_others]
        found += _rows(lab, kind, some)
    return found


def _rows(lab: Lab, kind: NamedFault, faults: Sequence[SetFault]) -> list[dict[str, Any]]:
    return [
        {"kind": each.kind, "where": each.where, "what": text_of(lab, each), "by": by, "effect": effect,
         "undo": undo_of(lab.name, each)}
        for each, (by, effect) in zip(faults, kind.seen(lab, faults), strict=True)
    ]  # fmt: skip


def explained(lab: Lab, problems: Sequence[Problem]) -> list[Problem]:
    """Problems of a lab; where a fault is set on purpose, it is named, with the command that ends it."""
    causes: dict[str, tuple[NamedFault, SetFault]] = {}
    for kind, each in sorted(in_force(lab), key=lambda pair: pair[0].listed):
        causes |= dict.fromkeys(kind.touched(lab.fabric, each), (kind, each))
    found = [(problem, causes.get(problem.where)) for problem in problems]
    return [each if cause is None else cause[0].explained(each, cause[1], lab.name) for each, cause in found]


def each_of(kind: type[K], lab: Lab) -> list[tuple[K, SetFault]]:
    """The faults of a class of kinds that are set, each with its kind."""
    return [(found, each) for found, each in in_force(lab) if isinstance(found, kind)]


def places_of(lab: Lab, part: str, *, listed: bool = False) -> set[str]:
    """Nodes and ports of which faults change a part on purpose. listed: only by kinds that are listed."""
    some = [(kind, each) for kind, each in in_force(lab) if part in kind.part.split() and kind.listed >= listed]
    return {ref for kind, each in some for ref in kind.touched(lab.fabric, each)}


def fault_lines(lab: Lab) -> tuple[str, ...]:
    """A line for each fault of this lab that no fact names: `rtsw1:eth3: 1/256 lost`."""
    packets = sorted(present(lab, KINDS["packets"]), key=lambda each: each.where)
    return tuple(f"{each.where}: {text_of(lab, each)}" for each in (*packets, *(each for _, each in _listed(lab))))


def _check_free(lab: Lab, faults: Sequence[SetFault]) -> None:
    """InputError where the place of a new fault has another one of the same part."""
    problems = {}
    for new in faults:
        kind = KINDS[new.kind]
        parts, refs = {*kind.part.split()}, kind.touched(lab.fabric, new)
        for other, each in _listed(lab) if kind.listed or not new.run else ():
            if parts & {*other.part.split()} and refs & other.touched(lab.fabric, each):
                what = f"{new.kind} {new.where}" if kind.listed else new.kind
                why, hint = f"{each.where} has the fault {text_of(lab, each)}", f"{undo_of(lab.name, each)} ends it"
                problems[what, each.key] = Problem("", what, f"is not possible: {why}", hint)
    if problems:
        raise InputError(*problems.values())
