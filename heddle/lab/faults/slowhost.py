"""A host or NIC that sends and receives at less than its rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.fabric.model import Fabric
from heddle.lab.faults.record import SetFault
from heddle.lab.faults.slowlink import SlowLink

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class SlowHost(SlowLink):
    """All links of the host are slow in both directions."""

    name = "slow-host"
    does = "All NICs of the host send and receive at a share of their rate, as a NIC with a slow bus does."
    at = "host"

    def ports(self, lab: Lab, fault: SetFault) -> Sequence[str]:
        """The host's ports, and those at the other ends of their links."""
        return sorted(self.touched(lab.fabric, fault))

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        return {ref for port in fabric.by_name[fault.where].ports for ref in (port.ref, port.peer_ref)}
