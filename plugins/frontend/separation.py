"""The check `separation` of `validate`: no RoCEv2, TCP or UDP packet of one network passes a port of another one.

In:  a running lab.
Out: the result of the counters of every port of every switch, by address pool; and of the routes of every host, since
a switch of the wrong network drops what such a route sends there, and never counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from itertools import pairwise

from heddle.base.families import Network
from heddle.checks.queuechecks import Found, NothingError, Subject
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import FRONTEND
from heddle.lab.snapshot import LabPart
from heddle.proof.separation import separation


def check(subject: Subject) -> Found:
    """Counters and routes of hosts keep each network's addresses at its own ports."""
    fabric = subject.lab.fabric
    if len(fabric.networks) == 1:
        shared = "trainers and storage share one network: share_nics"
        raise NothingError(shared if fabric.ends(FRONTEND) else "the fabric has one network")
    found = separation(fabric, subject.lab.snapshot(LabPart.COUNTERS).counters)
    routes = [line for host in fabric.hosts for line in _routes(fabric, host.name, subject.now.addresses[host.name])]
    return found.text(), [*routes, *found.wrong]


def _routes(fabric: Fabric, host: str, lines: frozenset[str]) -> Iterator[str]:
    """A sentence for each route to a network that leaves by a port of another one.

    Of a table's routes that cover a whole pool only the longest counts: the kernel takes no other.
    """
    network_of = {port.name: port.network for port in fabric.by_name[host].ports}
    routes: list[tuple[Network, set[str], str]] = []  # prefix, devices, table
    for line in sorted(lines):
        kind, *words = line.removeprefix("-6 ").split()
        if kind == "route" and "/" in words[0]:
            after = [*pairwise(words)]
            table = next((word for before, word in after if before == "table"), "")
            routes.append((ip_network(words[0]), {word for before, word in after if before == "dev"}, table))
    for network in fabric.networks:
        pool = fabric.policy.of(network).pool
        ours = [each for each in routes if each[0].overlaps(pool)]
        covers = {(table, prefix.prefixlen) for prefix, _, table in ours if prefix.prefixlen <= pool.prefixlen}
        for prefix, ports, table in ours:
            wrong = sorted(port for port in ports if network_of.get(port, network) != network)
            if wrong and not any(own == table and length > prefix.prefixlen for own, length in covers):
                yield f"{host} sends to {prefix} ({network}) by {wrong[0]}, a port of {network_of[wrong[0]]}"
