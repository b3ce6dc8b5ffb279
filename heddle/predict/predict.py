"""Path prediction for a running fabric: the egress ports of a flow, without a kernel lookup.

In:  Fib and SwitchHashing of every switch (read once), and flows.
Out: for each flow the ordered egress ports, from its source's leaf to the port of its destination host;
     where packets of one flow are spread, all ports of that step in one word (walk.py).
The hashes are in hashes.py, the choice of each mode in rules.py, the selection in forwarding.py, the walk in walk.py.
This module converts FIBs and tables to their arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32
from heddle.base.families import Network
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.forwarding import FlowTable, Forwarding, forwarding_of
from heddle.predict.rules import NO_PORT, FabricRules, HashingRule, SteeringTables, exact_keys
from heddle.predict.walk import MAX_HOPS, Hops, element, walk
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow

Path = tuple[str, ...]
_LOW: Final = 0xFFFFFFFF
Group = tuple[tuple[int, ...], tuple[int, ...], bool]  # port ids, weights, whether a bucket chooses


def predict(
    fabric: Fabric, fibs: Mapping[str, Fib], hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]
) -> list[Path]:
    """The path of every flow, in their order.

    A path ends early at a switch without a route or live next hop, or after MAX_HOPS: compare its last port's peer with
    the destination. KeyError when a switch is missing in fibs or hashing. CheckError when a switch that must choose has
    a hash that is not modelled.
    """
    if not flows:
        return []
    forwarding, hops = walk_of(fabric, fibs, hashing, flows)
    return paths_of(forwarding, hops)


def predict_under(
    fabric: Fabric, fibs: Mapping[str, Fib], states: Sequence[Mapping[str, SwitchHashing]], flows: Sequence[Flow]
) -> list[Path]:
    """The same while rules change: each step has all ports that its switches choose in any of the states.

    states: the hashing of all switches, at least one.
    """
    table = FlowTable.of(fabric, flows)
    forwarding = forwarding_for(fabric, fibs, table.addresses)
    rules = [rules_for(forwarding, state, table.addresses) for state in states]
    paths: list[list[str]] = [[] for _ in flows]
    row = np.flatnonzero(table.first >= 0).astype(np.int64)
    here = table.first[row]
    for _ in range(MAX_HOPS):
        steps = [
            walk(forwarding, each, table.arrays.take(row), table.destination[row], here, max_hops=1).steps
            for each in rules
        ]
        chosen = [row[step.flow] << 32 | step.port for found in steps for step in found]
        if not chosen:
            break
        keys = np.unique(np.concatenate(chosen))
        words: dict[int, list[str]] = {}
        for flow, port in zip((keys >> 32).tolist(), (keys & _LOW).tolist(), strict=True):
            words.setdefault(flow, []).append(forwarding.ports[port])
        for flow, ports in words.items():
            paths[flow].append(element(ports))
        there = forwarding.peer[keys & _LOW]
        keys = np.unique((keys >> 32 << 32 | there)[there >= 0])
        row, here = keys >> 32, (keys & _LOW).astype(np.int32)
    return [tuple(path) for path in paths]


def walk_of(
    fabric: Fabric, fibs: Mapping[str, Fib], hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]
) -> tuple[Forwarding, Hops]:
    """The same as arrays: the fabric's next hops for these flows' destinations, and the flows' hops."""
    table = FlowTable.of(fabric, flows)
    forwarding = forwarding_for(fabric, fibs, table.addresses)
    rules = rules_for(forwarding, hashing, table.addresses)
    return forwarding, walk(forwarding, rules, table.arrays, table.destination, table.first)


def forwarding_for(fabric: Fabric, fibs: Mapping[str, Fib], addresses: Sequence[str]) -> Forwarding:
    """The next hops of some addresses, from FIBs; each address is its own destination. Dead next hops are omitted."""
    names = [switch.name for switch in fabric.switches]
    ids = {name: number for number, name in enumerate(names)}
    ports = {port.ref: ids.get(port.peer_node, NO_PORT) for switch in fabric.switches for port in switch.ports}
    number = {ref: at for at, ref in enumerate(ports)}
    groups: dict[Group, int] = {}
    table = np.full((len(names), len(addresses)), NO_PORT, dtype=np.int32)
    wanted = [ip_address(address) for address in addresses]
    for row, switch in enumerate(fabric.switches):
        name, fib, behind = switch.name, fibs[switch.name], behind_bridges(fabric, switch)
        known: dict[tuple[Network, Path], int] = {}
        for column, address in enumerate(wanted):
            prefix = fib.match(address)
            if prefix is None:
                continue
            hops = fib.routes[prefix]
            if behind:
                hops = tuple(replace(hop, port=behind.get((hop.port, addresses[column]), hop.port)) for hop in hops)
            key = prefix, tuple(hop.port for hop in hops) if behind else ()
            if key not in known:
                for hop in hops:  # a port without a link of the fabric leads nowhere
                    if number.setdefault(f"{name}:{hop.port}", len(number)) == len(ports):
                        ports[f"{name}:{hop.port}"] = NO_PORT
                known[key] = groups.setdefault(_group(name, hops, fib.buckets.get(prefix), number), len(groups))
            table[row, column] = known[key]
    return forwarding_of(names, tuple(ports), tuple(ports.values()), table, tuple(groups))


def behind_bridges(fabric: Fabric, switch: Node) -> Mapping[tuple[str, str], str]:
    """(bridge, host's address) -> the port of a switch with that host: a route that leads to the bridge ends there."""
    found: dict[tuple[str, str], str] = {}
    for port in switch.ports:
        host = fabric.by_name[port.peer_node].port(port.peer_port)
        if port.bridge is not None and host.address is not None:
            found[port.bridge.name, str(host.address.ip)] = port.name
    return found


def _group(switch: str, hops: Sequence[NextHop], buckets: Sequence[int] | None, number: Mapping[str, int]) -> Group:
    members: Iterable[NextHop] = [hops[at] for at in buckets] if buckets else [hop for hop in hops if not hop.dead]
    ids = tuple(number[f"{switch}:{hop.port}"] for hop in members)
    return ids, tuple(1 if buckets else hop.weight for hop in members), bool(buckets)


def rule_of(hashing: SwitchHashing) -> HashingRule:
    """The rule of a switch, from its hashing as read."""
    options = hashing.options
    return HashingRule(hashing.mode, hashing.policy, hashing.fields, options.udf, options.resilient, options.buckets)


def rules_for(forwarding: Forwarding, hashing: Mapping[str, SwitchHashing], addresses: Sequence[str]) -> FabricRules:
    """The rules of all switches, and the tables that steer packets to these addresses."""
    rules = {name: rule_of(hashing[name]) for name in forwarding.switches}
    seeds = {name: hashing[name].seed for name in forwarding.switches}
    steering = _steering(forwarding, hashing, addresses)
    kernel = np.array([hashing[name].kernel_seed for name in forwarding.switches], dtype=np.uint32)
    return replace(FabricRules.of(forwarding.switches, rules, seeds, steering), kernel_seed=kernel)


def _steering(
    forwarding: Forwarding, hashing: Mapping[str, SwitchHashing], addresses: Sequence[str]
) -> SteeringTables | None:
    if not any(row.steering.prefixes or row.steering.exact for row in hashing.values()):
        return None
    number = {ref: at for at, ref in enumerate(forwarding.ports)}
    shape = (len(forwarding.switches), len(addresses))
    group, slices = np.full(shape, NO_PORT, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    members: list[list[int]] = []
    slots: list[list[int]] = []
    exact: dict[tuple[int, int, int], tuple[int, int]] = {}
    wanted = [ip_address(address) for address in addresses]
    for row, name in enumerate(forwarding.switches):
        table = hashing[name].steering
        before = len(members)
        members += [[number.get(f"{name}:{port}", NO_PORT) for port in ports] for ports in table.groups]
        slots += [[number.get(f"{name}:{port}", NO_PORT) for port in ports] for ports in table.slots]
        prefixes = Fib(name, dict.fromkeys(table.prefixes, ()))
        entries: dict[Network, dict[int, tuple[str, ...]]] = {}
        for (sport, prefix), ports in table.exact.items():
            entries.setdefault(prefix, {})[sport] = ports
        for column, address in enumerate(wanted):
            if (held := prefixes.match(address)) is not None:
                rule = table.prefixes[held]
                group[row, column] = before + rule.group
                slices[row, column] = rule.slice + ((int(address) - int(held.network_address)) >> rule.shift)
                for sport, ports in entries.get(held, {}).items():
                    here = [number.get(f"{name}:{port}", NO_PORT) for port in ports]
                    exact[row, column, sport] = (here[0], here[-1])
    keys = np.array(sorted(exact), dtype=np.int64).reshape(-1, 3)
    return SteeringTables(
        group, _starts(members), _flat(members), _starts(slots), _flat(slots), slices,
        exact_keys(keys[:, 0], keys[:, 1], keys[:, 2], shape[1]),
        np.array([exact[key] for key in sorted(exact)], dtype=np.int32).reshape(-1, 2),
    )  # fmt: skip


def _starts(lists: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *map(len, lists)], dtype=np.int64)


def _flat(lists: Sequence[Sequence[int]]) -> I32:
    return np.array([each for one in lists for each in one], dtype=np.int32)


def paths_of(forwarding: Forwarding, hops: Hops) -> list[Path]:
    """A walk as text: a tuple of steps for each flow."""
    names = forwarding.ports
    if not hops.fan.any():
        return [tuple(names[port] for port in row if port >= 0) for row in hops.ports.tolist()]
    paths: list[list[str]] = [[] for _ in range(hops.count)]
    for step in hops.steps:
        at: dict[int, list[str]] = {}
        for flow, port in zip(step.flow.tolist(), step.port.tolist(), strict=True):
            at.setdefault(flow, []).append(names[port])
        for flow, ports in at.items():
            paths[flow].append(element(ports))
    return [tuple(path) for path in paths]
