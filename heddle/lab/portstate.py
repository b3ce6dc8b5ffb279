"""Shapers, queues and programs of ports against those of the fabric file.

In:  a fabric and a snapshot with PORTS. Out: PortFaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from heddle.fabric.model import Fabric
from heddle.lab.snapshot import Snapshot
from heddle.switch.queues import portqueues as queues
from heddle.switch.queues.attached import expected


class PortFaults(NamedTuple):
    """Ports with Heddle's root qdisc that differ otherwise: `rtsw1:eth1` -> `is shaped to 1mbit, not 25mbit`."""

    queues: Mapping[str, str]
    programs: Mapping[str, str]


def port_faults(fabric: Fabric, now: Snapshot, shares: Mapping[str, float] | None = None) -> PortFaults:
    """Differences of shapers and queues, and of programs; also of the programs below a foreign root. Part: PORTS.

    shares: port -> the share of its rate that it has on purpose.
    """
    setup, foreign, shares = queues.Setup.of(fabric), now.foreign_roots, shares or {}
    wrong: dict[str, str] = {}
    odd: dict[str, str] = {}
    for node in fabric.nodes:
        for port in node.ports:
            slowed = replace(port, rate_bps=round(port.rate_bps * shares.get(port.ref, 1)))
            has, wanted = now.programs[port.ref], expected(node, setup.ids[port.node, port.name])
            if port.ref not in foreign and (lines := setup.faults(slowed, now.shapers.get(port.ref))):
                wrong[port.ref] = "; ".join(lines)
            if has != wanted and foreign.get(port.ref) != "":
                current, should = (", ".join(each.text() for each in some) for some in (has, wanted))
                odd[port.ref] = f"has {current or 'no program'}, not {should}"
    return PortFaults(wrong, odd)


def root_words(kind: str) -> tuple[str, str]:
    """(what, why) of a Problem for a port without Heddle's root qdisc."""
    if not kind:
        return "the port", "is missing: it was removed"
    return "the root qdisc", "is missing" if kind == "nothing" else f"is not Heddle's, but {kind}"
