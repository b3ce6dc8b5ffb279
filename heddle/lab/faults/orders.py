"""Set, list and clear faults of the kinds of registry.py; finish what a killed process has left.

In:  a Lab; kinds, places and values.
Out: SetFault, recorded before each change, with the evidence of its effect; or errors, and nothing changed.
Nothing here is for links that are down, drains and what links do to packets (outages.py, impairments.py), but `clear`
ends these, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeVar

from heddle.base import owners
from heddle.base.problems import InputError, MachineError, Problem
from heddle.fabric.model import Fabric, split_words
from heddle.lab.daemons import GRACEFUL_SHUTDOWN
from heddle.lab.faults.kind import KeptFault, NamedFault
from heddle.lab.faults.registry import KINDS
from heddle.lab.impairments import (
    Requested,
    SetFault,
    changing,
    clear_faults,
    packet_lines,
    ports_of,
    read_faults,
    wanted_faults,
)
from heddle.lab.outages import SECONDS, link_up, state_of, undrain, wait

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

K = TypeVar("K", bound=NamedFault)
ON_PURPOSE: Final = "on purpose"


def set_kind(
    lab: Lab, name: str, places: Sequence[str], values: Mapping[str, Any], timeout: float = SECONDS
) -> list[tuple[SetFault, str]]:
    """Set a fault of a kind on places; returns each with the evidence of its effect.

    InputError for a place that has such a fault, or that cannot have it. CheckError where no effect is seen within
    `timeout` seconds. The fault is undone then, and after an interruption.
    """
    kind = KINDS[name]
    with kind.locked(lab):
        faults = begin(lab, [(name, where, values) for where in places])
    try:
        done = [(replace(fault, maker=None), kind.proof(lab, fault, timeout)) for fault in faults]
        with changing(lab):
            _write(lab, faults, [fault for fault, _ in done])
    except BaseException:  # Ctrl-C above all
        end(lab, faults)
        raise
    return done


def begin(lab: Lab, orders: Sequence[tuple[str, str, Mapping[str, Any]]], *, run: bool = False) -> list[SetFault]:
    """Record faults and make their changes, without waiting for their effects. orders: kind, place and values of each.

    run: they are for one run, and need no proof. InputError where a place has a fault that excludes another.
    """
    faults = [SetFault(name, where, dict(values), run=run).being_set() for name, where, values in orders]
    with changing(lab):
        finish(lab)
        for fault in faults:
            kind = KINDS[fault.kind]
            check_free(lab, f"{fault.kind} {fault.where}", kind.part, kind.touched(lab.fabric, fault))
        faults = [replace(each, values=KINDS[each.kind].prepared(lab, each.where, each.values)) for each in faults]
        _write(lab, (), faults)
        try:
            for number, fault in enumerate(faults):
                changed = KINDS[fault.kind].apply(lab, fault)
                if changed is not None:
                    _write(lab, [fault], [changed])
                    faults[number] = changed
        except BaseException:
            _undo(lab, faults)
            raise
    return faults


def end(lab: Lab, faults: Sequence[SetFault]) -> None:
    """Undo faults and remove them from the record, without waiting for routes."""
    with changing(lab):
        _undo(lab, faults)


def forget(lab: Lab, fault: SetFault) -> None:
    """Remove a fault that has ended by itself from the record."""
    with changing(lab):
        _write(lab, [fault], ())


def end_all(lab: Lab, timeout: float = SECONDS) -> list[SetFault]:
    """End all faults of these kinds, and wait for the routes; returns them. A lab without any is not changed."""
    faults = list(Requested.read(lab.dir).more)
    if faults:
        end(lab, faults)
    if any(KINDS[each.kind].routes for each in faults if each.kind in KINDS):
        wait(lab, timeout)
    return faults


def finish(lab: Lab) -> list[SetFault]:
    """Undo the faults whose makers were killed; returns them. Those that have ended by themselves are forgotten.

    The caller holds CHANGES.
    """
    over = [each for each in Requested.read(lab.dir).more if each.unfinished or _ended(lab, each)]
    _undo(lab, over)
    return [each for each in over if each.unfinished]


def _ended(lab: Lab, fault: SetFault) -> bool:
    kind = KINDS.get(fault.kind)
    return kind is None or (
        isinstance(kind, KeptFault) and not kind.lasting and fault.worker is not None and not kind.kept(lab, fault)
    )


def _in_force(lab: Lab) -> list[SetFault]:
    """The faults that are recorded, but for those that have ended by themselves in a shard: it cannot say so."""
    recorded = Requested.read(lab.dir).more
    if lab.runtime.here:
        return [*recorded]
    found = []
    for each in recorded:
        with suppress(MachineError):  # a lost shard is reported elsewhere
            if each.kind in KINDS and _ended(lab, each):
                continue
        found.append(each)
    return found


def clear(lab: Lab, words: Sequence[str] = (), timeout: float = SECONDS) -> list[str]:
    """End the faults of ports and nodes, or all: also links that are down, drains, and faults of packets.

    Returns each in words. Faults of a run stay: its end undoes them. InputError for a word that is no port and no node,
    and where routes would change during a run; CheckError when routes do not return.
    """
    ports = {port.ref for port in ports_of(lab.fabric, words)} if words else None
    names = [each for each in split_words(words) if ":" not in each]
    nodes = {node.name for node in lab.fabric.nodes if any(fnmatchcase(node.name, each) for each in names)}

    def meant(ref: str, *, by_both_ends: bool = True) -> bool:
        both = {ref, peer_of(lab.fabric, ref)} if by_both_ends else {ref}
        return ports is None or bool(both & ports) or ref in nodes

    faults = [
        (kind, each)
        for kind, each in each_of(NamedFault, lab)  # type: ignore[type-abstract]
        if not each.run and meant(each.where, by_both_ends=kind.at in ("link", "session"))
    ]
    done = [f"{each.where}: {text_of(each)}" for _, each in faults]
    rerouted = any(kind.routes for kind, _ in faults)
    if faults:
        with owners.lock(lab.name, work="fault") if rerouted else nullcontext():  # not while a run measures
            end(lab, [each for _, each in faults])
    links = [ref for ref in wanted_faults(lab) if meant(ref, by_both_ends=False)]
    if links:
        clear_faults(lab, links)
        done += [f"{ref}: fault of packets" for ref in links]
    if lab.blueprint.rendered:
        state = state_of(lab)
        if down := [ref for ref in state.dead if meant(ref)]:
            link_up(lab, *down, timeout=timeout)
            done += [f"{ref}: down" for ref in down]
        if drained := [name for name in state.drained if ports is None or name in nodes]:
            undrain(lab, *drained, timeout=timeout)
            done += [f"{name}: drained" for name in drained]
        if rerouted:
            wait(lab, timeout)
    return done


def reapply(lab: Lab) -> list[SetFault]:
    """Set faults again that the lab has lost, as after FRR of a switch was restarted; returns them."""
    with changing(lab):
        lost = lost_faults(lab)
        for fault in lost:
            changed = KINDS[fault.kind].apply(lab, fault)
            _write(lab, [fault], [changed or fault])
    return lost


def lost_faults(lab: Lab) -> list[SetFault]:
    """Faults that are recorded, and of which no effect is seen."""
    rows = each_of(NamedFault, lab)  # type: ignore[type-abstract]
    return [each for kind, each in rows if each.maker is None and kind.lasting and not kind.effect(lab, each)]


def text_of(fault: SetFault) -> str:
    """`slow-link at 10% of its rate`."""
    kind = KINDS.get(fault.kind)
    return f"{fault.kind if kind is None else kind.text(fault)}{' (one run)' * fault.run}"


def fault_rows(lab: Lab) -> list[dict[str, Any]]:
    """The faults in force, with the evidence that is seen now: rows of `./inv fault list --format json`."""
    return [
        _row(lab, each.kind, each.where, text_of(each), "run" if each.run else "fault", kind.effect(lab, each))
        for kind, each in each_of(NamedFault, lab)  # type: ignore[type-abstract]
    ]


def all_rows(lab: Lab) -> list[dict[str, Any]]:
    """The same rows for every fault in force: also faults of packets, links that are down, and drains."""
    k, found = lab.fabric.policy.k, fault_rows(lab)
    for each in read_faults(lab):
        some = [f"{count:,} {name}" for name, count in (each.counts or {}).items() if count]
        effect = ", ".join(some) or ("no packet has passed" if each.counts is not None else "")
        found.append(_row(lab, "packets", each.port, each.fault.text(k), each.by, effect))
    state = state_of(lab) if lab.blueprint.rendered else None
    on_purpose = places_of(lab, "link")
    for kind, places in (("down", state.dead), ("drain", state.drained)) if state is not None else ():
        effect = "no carrier" if kind == "down" else f"its own prefix has the community {GRACEFUL_SHUTDOWN}"
        found += [_row(lab, kind, ref, kind, "fault", effect) for ref in places if ref not in on_purpose]
    return found


def _row(lab: Lab, kind: str, where: str, what: str, by: str, effect: str) -> dict[str, Any]:
    return {"kind": kind, "where": where, "what": what, "by": by, "effect": effect, "undo": undo_of(lab, where)}


def undo_of(lab: Lab, where: str) -> str:
    """The command that ends the faults of a place."""
    return f"./inv fault clear {where} --lab {lab.name}"


def explained(lab: Lab, problems: Sequence[Problem]) -> list[Problem]:
    """Problems of a lab; where a fault is set on purpose, it is named, with the command that ends it."""
    faults = [(each, KINDS[each.kind]) for each in _in_force(lab) if each.kind in KINDS]
    causes: dict[str, SetFault] = {}
    for each, kind in faults:
        causes |= dict.fromkeys(kind.touched(lab.fabric, each), each)
    return [
        replace(
            problem, why=f"{problem.why}, {ON_PURPOSE} ({cause.kind} {cause.where})", hint=undo_of(lab, cause.where)
        )
        if (cause := causes.get(problem.where)) is not None
        else problem
        for problem in problems
    ]


def each_of(kind: type[K], lab: Lab) -> list[tuple[K, SetFault]]:
    """The faults of a class of kinds that are set, each with its kind."""
    faults = [(KINDS.get(each.kind), each) for each in _in_force(lab)]
    return [(found, each) for found, each in faults if isinstance(found, kind)]


def places_of(lab: Lab, part: str) -> set[str]:
    """Nodes and ports of which faults change a part on purpose."""
    faults = each_of(NamedFault, lab)  # type: ignore[type-abstract]
    return {ref for kind, each in faults if part in kind.part.split() for ref in kind.touched(lab.fabric, each)}


def fault_lines(lab: Lab) -> tuple[str, ...]:
    """A line for each fault of this lab that is set, also for those of packets: `rtsw1:eth3: 1/256 lost`."""
    return (*packet_lines(lab), *(f"{each.where}: {text_of(each)}" for each in _in_force(lab)))


def check_free(lab: Lab, what: str, part: str, refs: Iterable[str]) -> None:
    """InputError where one of these places has a fault of the same part. what: the new fault."""
    taken = {
        ref: each
        for each in _in_force(lab)
        if each.kind in KINDS and {*KINDS[each.kind].part.split()} & {*part.split()}
        for ref in KINDS[each.kind].touched(lab.fabric, each)
    }
    if others := {taken[ref].key: taken[ref] for ref in refs if ref in taken}:
        why = "is not possible: {} has the fault {}"
        raise InputError(
            *(
                Problem("", what, why.format(each.where, text_of(each)), f"{undo_of(lab, each.where)} ends it")
                for each in others.values()
            )
        )


def _undo(lab: Lab, faults: Sequence[SetFault]) -> None:
    for fault in faults:
        if fault.kind in KINDS:
            KINDS[fault.kind].undo(lab, fault)
        _write(lab, [fault], ())


def _write(lab: Lab, old: Sequence[SetFault], new: Sequence[SetFault]) -> None:
    """Replace faults in the record. The caller holds CHANGES."""
    gone, record = {each.key for each in (*old, *new)}, Requested.read(lab.dir)
    kept = [each for each in record.more if each.key not in gone]
    replace(record, more=(*kept, *new)).write(lab.dir)


def peer_of(fabric: Fabric, ref: str) -> str:
    """The port at the other end of a port's link; empty for a node."""
    node, colon, name = ref.partition(":")
    return fabric.by_name[node].port(name).peer_ref if colon else ""
