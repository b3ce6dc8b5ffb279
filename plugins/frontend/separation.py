"""The check `separation` of `validate`: no RoCEv2, TCP or UDP packet of one network passes a port of another one.

In:  a running lab.
Out: the result of the counters of every port of every switch, by address pool; and of the routes of every host, since
a switch of the wrong network drops what such a route sends there, and never counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from itertools import pairwise

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
    """A sentence for each route to a network that leaves by a port of another one."""
    network_of = {port.name: port.network for port in fabric.by_name[host].ports}
    for line in sorted(lines):
        kind, *words = line.removeprefix("-6 ").split()
        if kind != "route" or "/" not in words[0]:
            continue
        prefix = ip_network(words[0])
        ports = {word for before, word in pairwise(words) if before == "dev"}
        for network in fabric.networks:
            wrong = sorted(port for port in ports if network_of.get(port, network) != network)
            if wrong and prefix.network_address in fabric.policy.of(network).pool:
                port = wrong[0]
                yield f"{host} sends to {prefix} ({network}) by {port}, a port of {network_of[port]}"
