"""Routes of flows that are not part of the fabric: static routes, or routes of an unconfigured daemon.

In:  a fabric, the FIBs of its switches, and the paths of flows.
Out: a sentence for each switch and prefix. A path over such a route can be proven, since all three sources follow the
FIB. So it is only a note and does not change the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from heddle.fabric.model import Fabric
from heddle.kernel.fib import Fib
from heddle.predict.spread import ports_of
from heddle.traffic.flow import Flow


def other_routes(
    fabric: Fabric, fibs: Mapping[str, Fib], flows: Sequence[Flow], paths: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Switches on these paths that match a destination with a prefix different from the fabric's."""
    asked = {
        (port.partition(":")[0], flow.dst_ip)
        for flow, path in zip(flows, paths, strict=True)
        for word in path
        for port in ports_of(word)
    }
    said: dict[str, None] = {}
    tables = {name: Fib(name, dict.fromkeys(fabric.expected_next_hops.get(name, ()), ())) for name in fibs}
    for switch, destination in sorted(asked):
        address = ip_address(destination)
        expected, found = (table[switch].match(address) for table in (tables, fibs))
        if expected is not None and found is not None and found != expected:
            said[f"{switch} routes {destination} with prefix {found}; the fabric has {expected}"] = None
    return tuple(said)
