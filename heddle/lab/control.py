"""What installs the routes of switches: `routing.control` of a fabric file.

`bgp` is FRR on every switch. It finds out by itself what is down, and what a user drains is entered there. Other values
are plugins of the kind `control`, each a subclass of ControlPlane.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar, Final

from heddle.base.plugins import Registry
from heddle.base.problems import InputError, Problem
from heddle.kernel.fib import LINK_LOCAL
from heddle.lab.daemons import GRACEFUL_SHUTDOWN, Daemons
from heddle.lab.linkstate import configure_bgp

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.fabric.wiring import Port
    from heddle.lab.lab import Lab

OF_ZEBRA: Final = "169.254.0.1"


class ControlPlane:
    """FRR. daemons: what is asked for its state. drained: the evidence that a switch is drained."""

    daemons: ClassVar[type[Daemons]] = Daemons
    drained: ClassVar[str] = f"its own prefix has the community {GRACEFUL_SHUTDOWN}"

    def follow(self, lab: Lab) -> list[str]:
        """Install the routes that links and drains give now; returns the switches that had others."""
        return []

    def drain(self, lab: Lab, switch: str, *, on: bool) -> None:
        """Drain a switch, or end that."""
        configure_bgp(lab, lab.fabric.by_name[switch], f"{'' if on else 'no '}bgp graceful-shutdown")


def gateway_of(fabric: Fabric, port: Port) -> str:
    """The address by which a switch reaches the neighbour at an unnumbered port, as FRR sets it.

    In IPv4 it is zebra's 169.254.0.1, for which it adds a neighbour entry with the neighbour's MAC (RFC 5549). In IPv6
    it is the neighbour's link-local address, which the kernel derives from its MAC (RFC 4291, appendix A).
    """
    if fabric.policy.ip_version == 4:
        return OF_ZEBRA
    mac = bytes.fromhex(fabric.by_name[port.peer_node].port(port.peer_port).mac.replace(":", ""))
    interface = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    return str(ip_address(LINK_LOCAL.network_address.packed[:8] + interface))


CONTROLS: Final[Registry[ControlPlane]] = Registry("control", {"bgp": ControlPlane()}, ControlPlane)


def control_of(fabric: Fabric) -> ControlPlane:
    """What a fabric has. InputError when its plugin is not here."""
    return CONTROLS[fabric.policy.routing.control]


def require_frr(lab: Lab, what: str) -> None:
    """InputError for a lab without FRR. what: the fault or the command that needs it."""
    if not lab.fabric.policy.routing.by_bgp:
        why = (
            f"needs FRR, and lab {lab.name} has routing.control: {lab.fabric.policy.routing.control}: no switch runs it"
        )
        raise InputError(Problem("", what, why, "use a lab with routing.control: bgp"))
