"""Find a management network that does not overlap with other networks of this machine.

In:  the network derived from the lab's name, and the networks of the fabric.
Out: this network if it is free, else the next free one of its size; MachineError when there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.host.engine.docker import docker

_SPACES: Final = (IPv4Network("172.24.0.0/13"), IPv4Network("192.168.0.0/16"))


def free_subnet(wanted: IPv4Network, inside: Iterable[IPv4Network]) -> IPv4Network:
    """The first free network from `wanted` on, in its own space and then in the other.

    inside: networks of the lab itself.
    """
    taken = [*inside, *_networks_of_the_engine(), *_routes_of_the_machine()]
    for candidate in _candidates(wanted):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    spaces = " and ".join(map(str, _SPACES))
    why = f"for a /{wanted.prefixlen} in {spaces}: networks and routes of this machine use it all"
    hint = "remove unused networks (docker network ls), or use --mgmt none"
    raise MachineError(Problem("", "management network", f"has no room {why}", hint))


def _candidates(wanted: IPv4Network) -> Iterator[IPv4Network]:
    size = wanted.num_addresses
    for space in sorted(_SPACES, key=lambda each: not wanted.subnet_of(each)):
        slots = space.num_addresses // size
        first = (int(wanted.network_address) - int(space.network_address)) // size if wanted.subnet_of(space) else 0
        for number in range(slots):
            base = int(space.network_address) + (first + number) % slots * size
            yield IPv4Network((base, wanted.prefixlen))


def _networks_of_the_engine() -> list[IPv4Network]:
    """Subnets of all docker networks, with or without a running container."""
    names = docker(["network", "ls", "-q"]).out.split()
    if not names:
        return []
    # A network that is removed meanwhile is not an error: the output has the others.
    done = docker(["network", "inspect", *names], check=False)
    found = (json.loads(done.out or "[]")) or []
    texts = [row.get("Subnet", "") for net in found for row in (net.get("IPAM") or {}).get("Config") or []]
    return [IPv4Network(text, strict=False) for text in texts if text and ":" not in text]


def _routes_of_the_machine() -> list[IPv4Network]:
    """Destinations of this machine's routes, without the default route."""
    rows = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]).out or "[]")
    texts = [str(row.get("dst", "default")) for row in rows]
    return [IPv4Network(text, strict=False) for text in texts if text[:1].isdigit() and text != "0.0.0.0/0"]
