"""A host that does not stop to send pause frames (IEEE 802.1Qbb), as a NIC with a defect does."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from heddle.base.ethernet import MAX_QUANTA, pfc_frame, quanta_ns
from heddle.base.problems import InputError, Problem
from heddle.base.tables import many
from heddle.base.units import format_duration
from heddle.kernel.namespace import inside
from heddle.kernel.uapi import PACKET_QDISC_BYPASS, SOL_PACKET
from heddle.lab.faults.kind import Going, KeptFault
from heddle.lab.faults.record import SetFault
from heddle.lab.spread import nothing, only, spread
from heddle.switch.queues.classes import port_ids, row
from heddle.switch.queues.portqueues import Setup

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_MOST_S: Final = 0.05  # between two frames


class PfcStorm(KeptFault):
    """A process in the host sends the longest pause by each of its ports, before the last one ends."""

    name = "pfc-storm"
    does = "The host sends pause frames of a lossless class for some time. Its switch stops that class, then others do."
    at = "host"
    part = "pauses"
    settings: ClassVar[Mapping[str, str | None]] = {"time": "5s", "class": ""}
    lasting = False

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """With the class and what its switches have counted. InputError for a lab or a class without pauses."""
        setup = Setup.of(lab.fabric)
        lossless = setup.queues.lossless
        if not setup.gated:
            why = f"has no lossless class in {lab.name}, so no pause is obeyed"
            raise InputError(Problem("", "pfc-storm", why, "use a fabric file with queues.pfc.enabled: true"))
        number = values.get("class", min(lossless))
        if number not in lossless:
            which = ", ".join(map(str, sorted(lossless)))
            raise InputError(Problem("", f"--class {number}", "is not lossless here", f"lossless: {which}"))
        return {**values, "class": number, "received": _received(lab, where, number)[0]}

    def effect(self, lab: Lab, fault: SetFault) -> str:
        count, closed = _received(lab, fault.where, fault.values["class"])
        if count <= fault.values["received"] or not closed:
            return ""
        new = many(count - fault.values["received"], "pause frame")
        return f"{new} of class {fault.values['class']} received; the class is stopped at {', '.join(closed)}"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        super().undo(lab, fault)
        _send(lab, fault.where, fault.values["class"], 0)

    def work(self, lab: Lab, fault: SetFault, going: Going) -> bool:
        rate = min(port.rate_bps for port in lab.fabric.by_name[fault.where].ports)
        pause_s = min(_MOST_S, quanta_ns(MAX_QUANTA, rate) / 2e9)
        end = time.monotonic() + fault.values["time"] / 1e9
        while time.monotonic() < end:
            _send(lab, fault.where, fault.values["class"], MAX_QUANTA)
            if not going(pause_s):
                return False
        return True

    def text(self, fault: SetFault, k: int) -> str:
        of = f" of class {fault.values['class']}" if "class" in fault.values else ""
        return f"pfc-storm{of} for {format_duration(fault.values['time'])}"


@spread(nothing, nodes=lambda host, *_: [host])
def _send(lab: Lab, host: str, number: int, quanta: int) -> None:
    """A frame of a class by each port of a host, ahead of its queues."""
    if not lab.handle(host).netns.exists():
        return
    with inside(lab.handle(host).netns):
        for port in lab.fabric.by_name[host].ports:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                sender.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
                sender.bind((port.name, 0))
                source = sender.getsockname()[4]
                sender.send(pfc_frame(source, {number: quanta}))


@spread(only, nodes=lambda host, _: [host])  # a host and its switches are in one shard
def _received(lab: Lab, host: str, number: int) -> tuple[int, list[str]]:
    """Pause frames of a class that the host's switches have received, and their ports where it is stopped now."""
    from heddle.switch.queues.cells import LabQueues

    ids, peers = port_ids(lab.fabric), [port.peer_ref for port in lab.fabric.by_name[host].ports]
    rows = {ref: row(ids[node, name], number) for ref in peers for node, _, name in [ref.partition(":")]}
    with LabQueues.pinned(lab.fabric) as live:
        count = sum(int(live.gates["pfc_received"][at]) for at in rows.values())
        return count, [ref for ref, at in rows.items() if int(live.agent["closed_since_ns"][at])]
