"""Outages and faults of packets from Python: take links and switches down, drain switches by BGP, and undo it.

In:  a running Lab of a fabric file, a port (`rtsw1:eth3`) or a switch.
Out: a Fault that can be undone, once every kernel has the routes of the fabric with that fault. CheckError with the
missing routes if that takes too long. If a step fails or is interrupted, its change is undone.

    with link_down(lab, "rtsw1:eth3"):
        ...                          # undone at the end; waits for the routes
    fault = drain(lab, "ctsw2")
    fault.undo()

All kinds of faults are those of faults/registry.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem
from heddle.lab.faults.kind import check_rendered
from heddle.lab.faults.orders import clear_where, end, set_kind
from heddle.lab.faults.record import SetFault
from heddle.lab.faults.registry import KINDS
from heddle.lab.linkstate import SECONDS, wait
from heddle.lab.ports import ports_of
from heddle.spec.impairments import DOWN, DRAIN, PACKETS, LinkFault

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Fault(ExitStack):
    """Links that are down, or switches that are drained. `undo`, or the end of a `with` block, restores all of it once.

    CheckError when the routes do not return in time.
    """

    undo = ExitStack.close


def link_down(lab: Lab, *refs: str, timeout: float = SECONDS) -> Fault:
    """Take links down in one step, and wait until no kernel forwards over them. timeout: seconds.

    refs: ports (`rtsw1:eth3`), nodes (all of their links) or patterns. The named end goes down; a host's link goes down
    at its switch. InputError for a word that matches no port. What was down before stays down after `undo`.
    """
    return _set(lab, DOWN, refs, timeout)


def link_up(lab: Lab, *refs: str, timeout: float = SECONDS) -> None:
    """Set links up, at whichever end they were taken down, and wait until they are used again. refs: as link_down.

    CheckError for a link that stays down, because it is down inside its host.
    """
    _clear(lab, DOWN, {ref for port in ports_of(lab.fabric, refs) for ref in (port.ref, port.peer_ref)}, timeout)


def drain(lab: Lab, *switches: str, timeout: float = SECONDS) -> Fault:
    """Drain switches by BGP (RFC 8326), and wait until no kernel uses them as transit. They still forward packets.

    InputError for a name that is not a switch of the fabric. Hosts stay reachable through their own leaf in any case.
    """
    return _set(lab, DRAIN, switches, timeout)


def undrain(lab: Lab, *switches: str, timeout: float = SECONDS) -> None:
    """End drains, and wait until the switches are used again."""
    _clear(lab, DRAIN, {*KINDS[DRAIN].places(lab.fabric, switches)}, timeout)


def set_fault(lab: Lab, refs: Sequence[str], fault: LinkFault, timeout: float = SECONDS) -> list[str]:
    """Set what links do to packets that leave by ports (`rtsw1:eth3`, `rtsw1`, patterns); returns the ports.

    Their counters start again. InputError for a port that the lab does not have, and for values that do not fit
    together. MachineError when this kernel has no netem and the fault needs it. In both cases nothing is changed.
    CheckError when the program and the kernel do not have the fault afterwards; it is undone then.
    """
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem("", f"--{key}", why, hint))
    done = set_kind(lab, PACKETS, KINDS[PACKETS].places(lab.fabric, refs), fault.to_json(), timeout)
    return [each.where for each, _ in done]


def clear_faults(lab: Lab, refs: Sequence[str] = ()) -> list[str]:
    """Clear what links do to packets, of ports or of all; returns the ports that had a fault, also one of the file.

    Without ports, faults of a run in progress stay: its end undoes them.
    """
    named = {port.ref for port in ports_of(lab.fabric, refs)}
    done = clear_where(lab, (lambda _, each: each.where in named) if refs else None, only=PACKETS)
    return [each.where for _, each in done]


def _set(lab: Lab, name: str, words: Sequence[str], timeout: float) -> Fault:
    done = [each for each, _ in set_kind(lab, name, KINDS[name].places(lab.fabric, words), {}, timeout)]
    fault = Fault()
    fault.callback(_undo, lab, name, done, timeout)
    return fault


def _undo(lab: Lab, name: str, faults: Sequence[SetFault], timeout: float) -> None:
    with KINDS[name].locked(lab):
        end(lab, faults)
    wait(lab, timeout)


def _clear(lab: Lab, name: str, meant: set[str], timeout: float) -> None:
    check_rendered(lab)
    if not clear_where(lab, lambda _, each: each.where in meant, timeout, name):
        wait(lab, timeout)
