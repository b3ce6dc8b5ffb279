"""Whether the evidence of a stored run fits to its fabric: the proof looks up each name and counts with each number.

In:  the Fabric and the Evidence that a run's directory carries. Out: the first thing that does not fit, in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from heddle.fabric.hashmodes import MODES
from heddle.fabric.model import Fabric
from heddle.kernel.fib import Fib
from heddle.lab.snapshot import NodeSnapshot, Snapshot
from heddle.proof.evidence import Evidence
from heddle.switch.counters import QPNS
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.hashing.steering import MAX_MEMBERS
from heddle.traffic.flow import PROTOCOL_SHIFT, Flow
from heddle.wire.layout import PROTO_TCP, PROTO_UDP

_PORTS, _U32 = 1 << 16, 1 << 32
_WEIGHTS = 1 << 16  # of a next hop (struct nexthop_grp)


def misfit(fabric: Fabric, evidence: Evidence) -> str:
    """What does not fit; empty if all does."""
    return next(_misfits(fabric, evidence), "")


def _misfits(fabric: Fabric, evidence: Evidence) -> Iterator[str]:
    switches = {node.name for node in fabric.switches}
    if evidence.before.nodes.keys() != evidence.after.nodes.keys():
        yield "the switches before and after the run differ"
    for name in evidence.before.nodes:
        if name not in switches:
            yield f"the fabric has no switch {name}"
    for snapshot in (evidence.before, evidence.after):
        for node in snapshot.nodes.values():
            yield from _node(fabric, snapshot, node)
    ports = {port.ref for node in fabric.switches for port in node.ports}
    hosts = {node.name for node in fabric.hosts}
    for sent in evidence.sent:
        yield from (f"{word} of a flow" for word in _flow(sent.flow, ports, hosts, fabric.policy.ip.version))
        if min(sent.packets, sent.bytes) < 0:
            yield "a flow with a count below 0"
    if evidence.received and len(evidence.received) != len(evidence.sent):
        yield f"{len(evidence.received)} counts of receivers for {len(evidence.sent)} flows"
    if evidence.seconds is not None and evidence.seconds < 0:
        yield "a time below 0"


def _flow(flow: Flow, ports: set[str], hosts: set[str], version: int) -> Iterator[str]:
    for host in (flow.src, flow.dst):
        if host not in hosts:
            yield f"host {host}"
    if flow.first_hop not in ports:
        yield f"port {flow.first_hop}"
    for address in (flow.src_ip, flow.dst_ip):
        if not _is_address(address, version):
            yield f"address {address}"
    numbered = flow.qpn < QPNS or flow.qpn in (each << PROTOCOL_SHIFT | flow.dport for each in (PROTO_TCP, PROTO_UDP))
    if not (0 <= flow.sport < _PORTS and 0 <= flow.dport < _PORTS and flow.qpn >= 0 and numbered):
        yield f"UDP port or QP number of QP {flow.qpn}"


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False


def _node(fabric: Fabric, snapshot: Snapshot, node: NodeSnapshot) -> Iterator[str]:
    name = node.node
    if node.fib is not None:
        yield from (f"{name}: {why}" for why in _fib(node.fib, fabric.policy.ip.version))
    if node.hashing is not None:
        yield from (f"{name}: {why}" for why in _hashing(node.hashing))
    if node.counters is not None:
        counts = [count for row in node.counters.flows for count in (row.packets, row.bytes)]
        counts += [count for port in node.counters.ports for count in (port.packets, port.bytes)]
        if min(counts, default=0) < 0:
            yield f"{name}: a count below 0"


def _fib(fib: Fib, version: int) -> Iterator[str]:
    for network, hops in fib.routes.items():
        if network.version != version:
            yield f"route {network} of another version of IP"
        if not all(1 <= hop.weight <= _WEIGHTS for hop in hops):
            yield f"route {network} with an impossible weight"
    for network, members in fib.buckets.items():
        if network not in fib.routes or not all(0 <= each < len(fib.routes[network]) for each in members):
            yield f"buckets of {network} that are no next hops"


def _hashing(rule: SwitchHashing) -> Iterator[str]:
    options, tables = rule.options, rule.steering
    if rule.mode not in MODES:
        yield f"hashing mode {rule.mode[:20]}"
    if not (0 <= rule.seed < _U32 and 0 <= rule.fields < _PORTS and 1 <= options.buckets < _PORTS):
        yield "an impossible seed, field or number of buckets"
    if not (0 <= options.udf.offset < _PORTS and 0 < options.udf.bytes <= 8):
        yield "an impossible udf"
    if len(tables.slots) != len(tables.groups) or not all(0 < len(each) <= MAX_MEMBERS for each in tables.groups):
        yield "groups of ports that have no members"
    for prefix, entry in tables.prefixes.items():
        inside = 0 <= entry.group < len(tables.groups) and 0 <= entry.slice < _U32 and 0 <= entry.shift <= 128
        if not inside:
            yield f"a steered prefix {prefix} without a group"
