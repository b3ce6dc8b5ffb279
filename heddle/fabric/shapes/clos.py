"""A Clos of two or three tiers: zones of RTSWs and CTSWs, joined by ATSWs. Routed links connect hosts to RTSWs.

Names: rtsw1.., ctsw1.., atsw1.., host1.., each counted through all zones and racks.
Ports: an RTSW's eth1..ethC are its uplinks to its zone's CTSWs, the next ones its downlinks, host by host and NIC by
NIC; a CTSW's eth1..ethR lead to its zone's RTSWs, the next ones to atsw1, atsw2, ...; an ATSW's ethN leads to ctswN.
AS numbers follow RFC 7938, section 5.2, in the four-octet private range (RFC 6996): one for all ATSWs, one for each
zone's CTSWs, one for each RTSW. So a route never climbs twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Final

from heddle.base.families import Network
from heddle.fabric.builder import FabricBuilder, Groups
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Level
from heddle.spec.shapes.clos import ClosSpec

_ASN_CTSW: Final = 4_200_000_000  # + zone
_ASN_ATSW: Final = 4_200_000_900
_ASN_RTSW: Final = 4_200_001_000  # + rack
_RTSW, _CTSW, _ATSW = 1, 2, 3
# Delays of links (docs/congestion-control.md): 500 ns for the pipeline of the switch or NIC at the end, and 5 ns a
# metre of cable: in a rack (3 m, which is lost in the rounding), across a zone (100 m), between zones (500 m).
LEVELS: Final = (
    Level("host", "hosts", "server", uplink_ns=500),
    Level("rtsw", "RTSW", "leaf", uplink_ns=1_000, is_edge=True, counts_uplinks=True, boxed=True),
    Level("ctsw", "CTSW", "spine", uplink_ns=3_000, above_edge=True),
    Level("atsw", "ATSW", "superspine"),
)


def build(spec: ClosSpec) -> Fabric:
    """Add the nodes, then the links in a fixed order; each link takes the next port number at both ends."""
    rates = (spec.link.host, spec.link.fabric, spec.top_rate, 0)
    builder = FabricBuilder(spec, [replace(level, uplink_bps=rate) for level, rate in zip(LEVELS, rates, strict=True)])
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    prefixes = list(islice(subnets, spec.all_racks))
    rtsws = [
        builder.switch(_RTSW, r, _ASN_RTSW + r, _groups(spec, (r - 1) // spec.racks + 1, r), prefix)
        for r, prefix in enumerate(prefixes, 1)
    ]
    ctsws = []
    for c in range(1, spec.zones * spec.ctsw + 1):
        zone = (c - 1) // spec.ctsw + 1
        ctsws.append(builder.switch(_CTSW, c, _ASN_CTSW + zone, _groups(spec, zone)))
    atsws = [builder.switch(_ATSW, a, _ASN_ATSW, ()) for a in range(1, (spec.atsw or 0) + 1)]
    hosts = []
    for h in range(1, spec.all_racks * spec.hosts_per_rack + 1):
        rack = (h - 1) // spec.hosts_per_rack + 1
        hosts.append(builder.host(h, _groups(spec, (rack - 1) // spec.racks + 1, rack)))

    for r, rtsw in enumerate(rtsws):
        first = r // spec.racks * spec.ctsw
        for ctsw in ctsws[first : first + spec.ctsw]:
            builder.join(rtsw, ctsw)
    for ctsw, atsw in product(ctsws, atsws):
        builder.join(ctsw, atsw)
    for r, prefix in enumerate(prefixes):
        base = int(prefix.network_address)
        for host in hosts[r * spec.hosts_per_rack : (r + 1) * spec.hosts_per_rack]:
            for _ in range(spec.nics_per_host):
                builder.join(host, rtsws[r], spec.ip.ends(base))
                base += 2
    return builder.fabric(box="rack", area="zone", sizes=("racks", "hosts_per_rack", "nics_per_host"))


def _groups(spec: ClosSpec, zone: int, rack: int | None = None) -> Groups:
    return (*([("rack", rack)] if rack else []), *([("zone", zone)] if spec.zones > 1 else []))
