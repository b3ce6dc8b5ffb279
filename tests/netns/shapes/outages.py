"""Routes of a lab's kernels while something is down or drained, against the computed ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from heddle.kernel.fib import read_fib
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down


def check_routes(lab: Lab, word: str, outage: Callable[[Lab, str], AbstractContextManager[object]]) -> None:
    """word: a switch or a port. Every kernel has the next hops of the prediction, and no others."""
    fabric = lab.fabric
    dead = {port.ref for node in fabric.switches for port in node.ports if word in (node.name, port.ref)}
    groups = fabric.groups_without(*((dead, ()) if outage is link_down else ((), {word})))
    assert groups != fabric.next_hop_groups
    with outage(lab, word):
        for name, table in fabric.next_hops(groups).items():
            routes = read_fib(lab.handle(name), fabric.policy.ip_version).routes
            found = {prefix: {hop.port for hop in hops if not hop.dead} for prefix, hops in routes.items()}
            for prefix in fabric.edge_prefixes.keys() - {fabric.by_name[name].prefix}:
                assert found.get(prefix, set()) == table.get(prefix, set()), (word, name, prefix)
