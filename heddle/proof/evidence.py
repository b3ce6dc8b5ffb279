"""The evidence of a run: its paths can be proven after its end, even if the fabric has changed since.

Evidence is two snapshots of the lab, before and after the run, the counts of every sender and every receiving NIC, and
the oracle's answers. Everything else is derived from them: counts and drops of the run, and switches that changed
during the run. `misfit` compares the evidence of a stored run with its fabric: each name exists there, and each number
is possible.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Final

from heddle.base.tables import many, some_of
from heddle.fabric.hashmodes import MODES
from heddle.fabric.model import Fabric, Role
from heddle.kernel.fib import Fib
from heddle.lab.rehash import RuleChange
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.switch.counters import QPNS, SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.hashing.maps import MAX_MEMBERS
from heddle.switch.queues.cells import Tallies, Tally, tallies_since
from heddle.traffic.flow import PROTOCOL_SHIFT, Flow, Sent, usual_dscp
from heddle.wire.layout import PROTO_TCP, PROTO_UDP

# Of both snapshots. What BGP drains is kept too, if the caller has read it.
PARTS: Final = LabPart.FIBS | LabPart.HASHING | LabPart.COUNTERS | LabPart.DROPS | LabPart.CARRIER
Path = tuple[str, ...]
FORMAT: Final = 2  # of plain data


@dataclass(frozen=True)
class Evidence:
    """The evidence of one run. before, after: with PARTS; both without counters of flows that the run did not touch.

    oracle: the kernels' answers after the run, a path for each flow, in the order of `sent`.
    received: packets of each flow that reached the receiving NIC, copies and those with a wrong ICRC too, in the same
    order; empty if no NIC reported.
    answered: packets of the reverse flow that reached the sender's kernel, in the same order; 0 or empty: not known.
    seconds: from the first packet until the last rank finished; None if not known.
    choices: the source of the oracle's choices (oracle.py) -> their number; empty if not known.
    tallies: what the queues and links of all ports did over the run.
    requested: what the user changed during the run, a sentence each.
    rules: changes of rules by traffic engineering during the run, in their order.
    """

    before: Snapshot
    after: Snapshot
    sent: tuple[Sent, ...]
    oracle: tuple[Path, ...]
    received: tuple[int, ...] = ()
    seconds: float | None = None
    choices: Mapping[str, int] = field(default_factory=dict)
    tallies: Tallies = field(default_factory=dict)
    requested: tuple[str, ...] = ()
    rules: tuple[RuleChange, ...] = ()
    answered: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, before: Snapshot, after: Snapshot, sent: Sequence[Sent], oracle: Sequence[Path],
        received: Sequence[int] = (), seconds: float | None = None, choices: Mapping[str, int] | None = None,
    ) -> Evidence:  # fmt: skip
        """From two snapshots. Only flows whose counters moved are kept: a long-running lab has counted many others."""
        then, now = before.counters, after.counters
        return cls(
            before.with_counters({name: table.moved(now[name]) for name, table in then.items()}),
            after.with_counters({name: table.moved(then[name]) for name, table in now.items()}),
            tuple(sent),
            tuple(oracle),
            tuple(received),
            seconds,
            choices or {},
            tallies_since(after.tallies, before.tallies),
        )

    @cached_property
    def counters(self) -> Mapping[str, SwitchCounters]:
        """The counts of each switch over the run."""
        return {name: table.since(self.before.counters[name]) for name, table in self.after.counters.items()}

    @cached_property
    def drops(self) -> Mapping[str, int]:
        """`rtsw1:eth2` -> packets dropped by its queues over the run."""
        return {port: count - self.before.drops.get(port, 0) for port, count in self.after.drops.items()}

    def class_drops(self, port: str, *numbers: int) -> int | None:
        """Packets of some classes lost by a port's queue or link over the run; None if only the sum of all is known."""
        node = port.partition(":")[0]
        if node not in self.before.nodes:
            return self.tally(port, *numbers).lost  # of a host
        if not self.drops.get(port, 0):
            return 0
        if any(state.nodes[node].class_drops is None for state in (self.before, self.after)):
            return None
        before, after = (state.class_drops.get(port, {}) for state in (self.before, self.after))
        return sum(after.get(number, 0) - before.get(number, 0) for number in numbers)

    def tally(self, port: str, *numbers: int) -> Tally:
        """What a port's queue and link did to packets of some classes over the run."""
        rows = self.tallies.get(port, {})
        return sum((rows.get(number, Tally()) for number in numbers), Tally())

    def with_trims(self, numbers: Sequence[int], queue: Sequence[int]) -> tuple[int, ...]:
        """The classes in which packets of some classes were over the run. queue: the class of trimmed packets."""
        trimmed = any(rows[each].trimmed for rows in self.tallies.values() for each in numbers if each in rows)
        return (*numbers, *queue) if trimmed else (*numbers,)

    def heads(self, port: str, numbers: Sequence[int], queue: Sequence[int]) -> int:
        """Trimmed packets that a port sent. numbers, queue: as of with_trims."""
        if not set(queue) & set(numbers):
            return 0
        heads = self.tally(port, *queue)
        return heads.offered - heads.lost + self.tally(port, *(each for each in numbers if each not in queue)).trimmed

    def all_drops(self, port: str) -> int:
        """The packets lost there of all classes."""
        return self.drops.get(port, sum(each.lost for each in self.tallies.get(port, {}).values()))

    def all_copies(self, port: str) -> int:
        """The packets copied there of all classes."""
        return sum(each.copies for each in self.tallies.get(port, {}).values())

    @property
    def backlog_drops(self) -> int:
        """Packets that this machine's receive backlog dropped over the run, in any namespace."""
        return self.after.backlog_drops - self.before.backlog_drops

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Switches whose routes or hashing differ between the two snapshots."""
        then, now = self.before, self.after
        return tuple(
            name for name in now.fibs if now.fibs[name] != then.fibs[name] or now.hashing[name] != then.hashing[name]
        )

    @cached_property
    def carrier_changes(self) -> Mapping[str, int]:
        """`rtsw1:eth2` -> how often its carrier was lost or found over the run; only ports where it was."""
        then = {name: each.carrier_changes or {} for name, each in self.before.nodes.items()}
        return {
            f"{name}:{port}": count - then[name][port]
            for name, each in self.after.nodes.items()
            for port, count in (each.carrier_changes or {}).items()
            if count != then.get(name, {}).get(port, count)
        }

    @cached_property
    def switched(self) -> tuple[str, ...]:
        """Switches whose hashing was changed between the two, also if the old mode was restored."""
        return tuple(name for name, epoch in self.after.epochs.items() if epoch != self.before.epochs[name])

    @property
    def unplanned(self) -> tuple[str, ...]:
        """What hosts sent from, or received at, source ports that the plan does not have: a sentence for each host."""
        found: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for sent, received in zip(self.sent, self.received or (0,) * len(self.sent), strict=True):
            if not sent.planned:
                host, verb = (sent.flow.src, "sent") if sent.packets else (sent.flow.dst, "received")
                found[host, verb][sent.flow.sport] += sent.packets or received
        return tuple(
            f"{host} {verb} {many(ports.total(), 'packet')} with source port{'s' * (len(ports) > 1)} "
            f"{some_of([str(port) for port in sorted(ports)])}, which the plan does not have"
            for (host, verb), ports in found.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data. Parts of a node that are equal in both snapshots are written once, with the first one."""
        return {
            "format": FORMAT,
            "before": _snapshot(self.before, {}),
            "after": _snapshot(self.after, self.before.nodes),
            "sent": [each.to_json() for each in self.sent],
            "oracle": [list(path) for path in self.oracle],
            "received": list(self.received),
            **({"answered": list(self.answered)} if any(self.answered) else {}),
            "seconds": self.seconds,
            "choices": dict(self.choices),
            "tallies": {
                port: {str(number): list(astuple(each)) for number, each in classes.items()}
                for port, classes in self.tallies.items()
            },
            "requested": list(self.requested),
            "rules": [each.to_json() for each in self.rules],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """From data of `to_json`.

        Data of another FORMAT, or damaged data, raise ValueError, LookupError, TypeError or AttributeError; the caller
        adds the name of the file.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"it has format {data['format']}, and this Heddle reads {FORMAT}")
        before = _read(data["before"], {})
        return cls(
            before,
            _read(data["after"], before.nodes),
            tuple(_sent(row) for row in data["sent"]),
            tuple(tuple(str(port) for port in path) for path in data["oracle"]),
            tuple(int(count) for count in data["received"]),
            None if data["seconds"] is None else float(data["seconds"]),
            {str(who): int(count) for who, count in data["choices"].items()},
            {
                str(port): {int(number): Tally(*(int(each) for each in row)) for number, row in classes.items()}
                for port, classes in data["tallies"].items()
            },
            tuple(str(each) for each in data["requested"]),
            tuple(RuleChange.from_json(each) for each in data["rules"]),
            tuple(int(count) for count in data.get("answered", ())),
        )


def _snapshot(found: Snapshot, known: Mapping[str, NodeSnapshot]) -> dict[str, Any]:
    rows = [_node(each, known.get(name)) for name, each in found.nodes.items() if each.role is Role.SWITCH]
    return {"lab": found.lab, "backlog": found.backlog_drops, "nodes": rows}


def _node(node: NodeSnapshot, known: NodeSnapshot | None) -> dict[str, Any]:
    """known: the same node in the first snapshot."""
    row: dict[str, Any] = {"node": node.node, "epoch": node.epoch}
    if node.fib is not None and (known is None or node.fib != known.fib):
        row["fib"] = node.fib.to_json()
    if node.hashing is not None and (known is None or node.hashing != known.hashing):
        row["hashing"] = node.hashing.to_json()
    if node.counters is not None:
        row["counters"] = node.counters.to_json()
    if node.class_drops is not None:
        row["class_drops"] = {
            port: {str(number): count for number, count in classes.items()}
            for port, classes in node.class_drops.items()
        }
    outages: dict[str, Any] = {} if node.down is None else {"down": dict(node.down)}
    outages |= {} if node.drained is None else {"drained": node.drained}
    outages |= {} if node.carrier_changes is None else {"carrier_changes": dict(node.carrier_changes)}
    return {**row, **outages, "statistics": dict(node.statistics or {}), "drops": dict(node.drops or {})}


def _read(data: Mapping[str, Any], known: Mapping[str, NodeSnapshot]) -> Snapshot:
    nodes = {str(row["node"]): _read_node(row, known.get(str(row["node"]))) for row in data["nodes"]}
    return Snapshot(str(data["lab"]), PARTS, nodes, int(data["backlog"]))


def _read_node(row: Mapping[str, Any], known: NodeSnapshot | None) -> NodeSnapshot:
    return NodeSnapshot(
        str(row["node"]),
        fib=known.fib if known is not None and "fib" not in row else Fib.from_json(row["fib"]),
        hashing=known.hashing if known and "hashing" not in row else SwitchHashing.from_json(row["hashing"]),
        epoch=int(row["epoch"]),
        statistics={str(word): int(count) for word, count in row["statistics"].items()},
        counters=SwitchCounters.from_json(row["counters"]),
        drops={str(port): int(count) for port, count in row["drops"].items()},
        class_drops=None
        if "class_drops" not in row
        else {
            str(port): {int(number): int(count) for number, count in classes.items()}
            for port, classes in row["class_drops"].items()
        },
        down=None if "down" not in row else {str(port): bool(here) for port, here in row["down"].items()},
        drained=None if "drained" not in row else bool(row["drained"]),
        carrier_changes=None
        if "carrier_changes" not in row
        else {str(port): int(count) for port, count in row["carrier_changes"].items()},
    )


def _sent(row: Mapping[str, Any]) -> Sent:
    src, dst, src_ip, dst_ip, first_hop = (str(row[key]) for key in ("src", "dst", "src_ip", "dst_ip", "first_hop"))
    sport, qpn, dport, *ranks = (int(row[key]) for key in ("sport", "qpn", "dport", "src_rank", "dst_rank"))
    job = str(row.get("job", ""))
    dscp = int(row.get("dscp", usual_dscp(qpn)))
    flow = Flow(src, dst, src_ip, dst_ip, sport, qpn, first_hop, dport, ranks[0], ranks[1], job, dscp)
    return Sent(flow, int(row["packets"]), int(row["bytes"]), bool(row.get("planned", True)), int(row.get("again", -1)))


_PORTS, _U32 = 1 << 16, 1 << 32
_DSCPS = 1 << 6
_WEIGHTS = 1 << 16  # of a next hop (struct nexthop_grp)


def misfit(fabric: Fabric, evidence: Evidence) -> str:
    """The first thing in the evidence that does not fit to the fabric, in words; empty if there is none."""
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
            yield from _of_node(fabric, node)
    ports = {port.ref for node in fabric.switches for port in node.ports}
    hosts = {node.name for node in fabric.hosts}
    for sent in evidence.sent:
        yield from (f"{word} of a flow" for word in _flow(sent.flow, ports, hosts, fabric.policy.ip.version))
        if min(sent.packets, sent.bytes) < 0:
            yield "a flow with a count below 0"
        if not (0 <= sent.flow.dscp < _DSCPS and -1 <= sent.again < _DSCPS):
            yield f"DSCP {sent.flow.dscp} or {sent.again} of a flow"
    for counts in (evidence.received, evidence.answered):
        if counts and len(counts) != len(evidence.sent):
            yield f"{len(counts)} counts of receivers for {len(evidence.sent)} flows"
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


def _of_node(fabric: Fabric, node: NodeSnapshot) -> Iterator[str]:
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
