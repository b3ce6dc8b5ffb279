"""A link that carries less than its rate: the shaper of a port is set to a share of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from heddle.base.problems import MachineError, Problem
from heddle.base.units import format_rate, format_share
from heddle.fabric.model import Fabric
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.ports import in_network
from heddle.lab.snapshot import LabPart
from heddle.switch.queues.classes import held_bps
from heddle.switch.queues.portqueues import rate_line

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class SlowLink(NamedFault):
    """The class of HTB at the port's root gets a lower rate and ceiling."""

    name = "slow-link"
    does = "Packets that leave by the port get a share of its rate. The queue before it grows, marks and pauses."
    at = "port"
    part = "rate"
    settings: ClassVar[Mapping[str, str | None]] = {"rate": None}

    def apply(self, lab: Lab, fault: SetFault) -> None:
        set_shares(lab, self.ports(lab, fault), fault.values["rate"])

    def effect(self, lab: Lab, fault: SetFault) -> str:
        parts = []
        for ref in self.ports(lab, fault):
            node, _, name = ref.partition(":")
            found = lab.snapshot(LabPart.PORTS, [node]).shapers.get(ref)
            usual = lab.fabric.by_name[node].port(name).rate_bps
            if found is None or found.rate_bps != held_bps(round(usual * fault.values["rate"])):
                return ""
            parts.append(f"the kernel's shaper of {ref} has {format_rate(found.rate_bps)} of {format_rate(usual)}")
        return "; ".join(parts)

    def undo(self, lab: Lab, fault: SetFault) -> None:
        set_shares(lab, self.ports(lab, fault), 1)

    def text(self, fault: SetFault, k: int) -> str:
        return f"{self.name} at {format_share(fault.values['rate'])} of its rate"

    def ports(self, lab: Lab, fault: SetFault) -> Sequence[str]:
        """The ports whose shapers change."""
        return [fault.where]


def shares_of(faults: Sequence[tuple[SlowLink, SetFault]], lab: Lab) -> dict[str, float]:
    """Port -> the share of its rate that faults leave."""
    return {ref: fault.values["rate"] for kind, fault in faults for ref in kind.ports(lab, fault)}


def set_shares(lab: Lab, refs: Sequence[str], share: float) -> None:
    """Set the shapers of ports to a share of their rates. MachineError with tc's message."""
    for ref in refs:
        node, _, name = ref.partition(":")
        port = lab.fabric.by_name[node].port(name)
        line = rate_line(port, lab.fabric.policy.queues, round(port.rate_bps * share))
        done = in_network(lab, node, ["tc", "-batch", "-"], f"{line}\n")
        if done.code:
            raise MachineError(Problem(ref, "the rate of the port", f"cannot be set: {done.reason}"))


class SlowHost(SlowLink):
    """All links of the host are slow in both directions."""

    name = "slow-host"
    does = "All NICs of the host send and receive at a share of their rate, as a NIC with a slow bus does."
    at = "host"

    def ports(self, lab: Lab, fault: SetFault) -> Sequence[str]:
        return sorted(self.touched(lab.fabric, fault))

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        return {ref for port in fabric.by_name[fault.where].ports for ref in (port.ref, port.peer_ref)}
