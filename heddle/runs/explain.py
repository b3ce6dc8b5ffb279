"""Explain one flow hop by hop: every step of each switch's choice, compared with a lookup in that switch's kernel.

In:  a running lab, and a flow: a QP number of a run, or `host1,host5,qpn=0x101,sport=50000`.
Out: Explanation: for each switch the hashed words, the steps of the hash, the next hops with their bounds, and steering
     by the BPF program; then the computed, the predicted and the kernel's choice, and whether the three agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.hashmodes import POLICY_CUSTOM, SPREADING
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Node, Port
from heddle.kernel.fib import Fib, NextHop
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.predict.forwarding import FlowArrays
from heddle.predict.hashes import Row, bounds, flow_keys, jhash_steps, siphash_steps, udf_values
from heddle.predict.predict import behind_bridges, forwarding_for, rule_of, rules_for
from heddle.predict.rules import HashingRule
from heddle.predict.walk import MAX_HOPS, element, walk
from heddle.proof import oracle
from heddle.runs.explaintrims import trims_of
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import PROTOCOL_SHIFT, Flow
from heddle.wire.layout import PROTO_TCP

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Ports = tuple[str, ...]
_WIDE: Final = 92  # columns of a step and its state, so that lines stay within 100
_NAMES: Final = ("src", "dst", "proto", "flowlabel", "sport", "dport")  # bits 0 to 5 of fib_multipath_hash_fields


StepValue = str | int | bool | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a computation: a text, rows of states, and the same as data."""

    text: str
    rows: tuple[Row, ...] = ()
    data: Mapping[str, StepValue] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Text lines; states in hexadecimal, beside the step's name, or below it if the line would be too long."""
        wide = max((len(what) for what, _ in self.rows), default=0)
        states = [(what, " ".join(self._hex(state))) for what, state in self.rows]
        if any(wide + len(state) > _WIDE for _, state in states):
            return [self.text, *(line for what, state in states for line in (f"  {what}", f"      {state}"))]
        return [self.text, *(f"  {what:<{wide}}  {state}" for what, state in states)]

    def _hex(self, state: tuple[int, ...]) -> list[str]:
        """Words of 32 bits, or of 64 where one of the step's needs them."""
        digits = 16 if any(value >> 32 for _, each in self.rows for value in each) else 8
        return [f"{value:0{digits}x}" for value in state]

    def to_json(self) -> dict[str, Any]:
        """`said`, `states` where there are any, and the step's own values."""
        states = [{"step": what, "state": self._hex(state)} for what, state in self.rows]
        return {"said": self.text, **({"states": states} if states else {}), **self.data}


@dataclass(frozen=True, slots=True)
class Hop:
    """One switch. computed: the ports that the steps select; predicted, kernel: the other two sources.

    trims: a sentence for each computed port that trimmed packets of the run.
    """

    switch: str
    arrives: str
    hashing: SwitchHashing
    steps: tuple[Step, ...]
    computed: Ports
    predicted: Ports
    kernel: Ports
    trims: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """True when all three sources select the same ports."""
        return set(self.computed) == set(self.predicted) == set(self.kernel)

    def to_json(self) -> dict[str, Any]:
        h = self.hashing
        return {
            "switch": self.switch, "in": self.arrives, "mode": h.mode, "policy": h.policy, "fields": h.fields,
            "seed": h.seed, "steps": [step.to_json() for step in self.steps], "computed": list(self.computed),
            "predicted": list(self.predicted), "kernel": list(self.kernel), "agree": self.agree,
            **({"trims": list(self.trims)} if self.trims else {}),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """A paragraph for the switch."""
        head = f"{self.switch}, in by {self.arrives}: mode {self.hashing.mode}"
        verdict = "they agree" if self.agree else "THEY DIFFER"
        kernel = f"kernel {_named(self.kernel)}"
        other = "" if set(self.computed) == set(self.predicted) else f"; predicted {_named(self.predicted)}"
        body = [f"  {line}" for step in self.steps for line in step.lines()]
        more = f"; continued with {self.computed[0]}" if len(self.computed) > 1 else ""
        choice = f"  computed {_named(self.computed)}{other}; {kernel}: {verdict}{more}"
        return [head, *body, choice, *(f"  {each}" for each in self.trims)]


def _named(ports: Ports) -> str:
    return " or ".join(ports) or "nothing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A flow's path through the fabric."""

    flow: Flow
    hops: tuple[Hop, ...]

    @property
    def agree(self) -> bool:
        """True when computation, prediction and kernels agree at every hop, and there is at least one hop."""
        return bool(self.hops) and all(hop.agree for hop in self.hops)

    @property
    def path(self) -> Ports:
        """The ports of the path; where packets are spread, all of them."""
        return tuple(element([f"{hop.switch}:{port}" for port in hop.computed]) for hop in self.hops if hop.computed)

    def to_json(self) -> dict[str, Any]:
        f = self.flow
        flow = {
            "src": f.src, "dst": f.dst, "src_ip": f.src_ip, "dst_ip": f.dst_ip,
            "sport": f.sport, "dport": f.dport, "qpn": f.qpn,
        }  # fmt: skip
        hops = [hop.to_json() for hop in self.hops]
        return {"flow": flow, "hops": hops, "path": list(self.path), "agree": self.agree}

    def text(self) -> str:
        """The whole explanation; each step can be checked with a calculator."""
        f, protocol = self.flow, "TCP" if self.flow.protocol == PROTO_TCP else "UDP"
        name = f"QP {f.qpn} (0x{f.qpn:x})" if f.has_qp else f.label
        lines = [
            f"{f.src} to {f.dst}, {name}: {f.src_ip} -> {f.dst_ip}, {protocol} {f.sport} -> {f.dport}",
            "Words are hexadecimal, and arithmetic is modulo their size. rol(x, n) rotates x left by n bits.",
        ]
        for hop in self.hops:
            lines += ["", *hop.lines()]
        verdict = "computation and kernels agree at every hop" if self.agree else "computation and kernels DIFFER"
        return "\n".join([*lines, "", f"path: {' '.join(self.path) or 'none'}; {verdict}"])


def explain(lab: Lab, asked: str, run: str | None = None) -> Explanation:
    """Follow a flow through the current state of the lab. InputError for an invalid flow. run: the QP number's run."""
    from heddle.runs.store import load

    flow = flow_of(lab, asked, run)
    found = explain_flow(lab, lab.snapshot(LabPart.FIBS | LabPart.HASHING), flow)
    stored = None if "," in asked else load(lab, run)
    if stored is None or stored.proof.value is None:
        return found
    trims = trims_of(lab.fabric, stored.id, stored.proof.value, flow)
    hops = (
        replace(hop, trims=tuple(trims[ref] for port in hop.computed if (ref := f"{hop.switch}:{port}") in trims))
        for hop in found.hops
    )
    return replace(found, hops=tuple(hops))


def explain_flow(lab: Lab, now: Snapshot, flow: Flow) -> Explanation:
    """The same for a given flow and snapshot. Where packets are spread, the first port is followed."""
    fabric, fibs, hashing = lab.fabric, now.fibs, now.hashing
    forwarding = forwarding_for(fabric, fibs, [flow.dst_ip])
    rules = rules_for(forwarding, hashing, [flow.dst_ip])
    columns = FlowArrays.of([flow])
    ids = {name: at for at, name in enumerate(forwarding.switches)}
    zero = np.zeros(1, dtype=np.int32)
    switch, _, arrives = flow.first_hop.partition(":")
    hops: list[Hop] = []
    while len(hops) < MAX_HOPS:
        behind = behind_bridges(fabric, fabric.by_name[switch])
        steps, computed = _Choice(fibs[switch], hashing[switch], flow, behind).steps()
        here = np.array([ids[switch]], dtype=np.int32)
        walked = walk(forwarding, rules, columns, zero, here, max_hops=1).steps
        predicted = tuple(forwarding.ports[port].partition(":")[2] for step in walked for port in step.port.tolist())
        kernel = oracle.ask_one(lab, switch, hashing[switch], flow, arrives, len(hops))
        hops.append(Hop(switch, arrives, hashing[switch], tuple(steps), computed, predicted, kernel))
        link = _link(fabric.by_name[switch], computed[0]) if computed else None
        if link is None or fabric.by_name[link[0]].role is Role.HOST:
            break
        switch, arrives = link
    return Explanation(flow, tuple(hops))


def _link(node: Node, port: str) -> tuple[str, str] | None:
    return next(((each.peer_node, each.peer_port) for each in node.ports if each.name == port), None)


class _Choice:
    """One switch's choice for one flow, in plain integers."""

    def __init__(self, fib: Fib, hashing: SwitchHashing, flow: Flow, behind: Mapping[tuple[str, str], str]) -> None:
        self._fib, self._hashing, self._flow = fib, hashing, flow
        self._rule: HashingRule = rule_of(hashing)
        self._columns = FlowArrays.of([flow])
        self._address = ip_address(flow.dst_ip)
        self._prefix = fib.match(self._address)
        self._hops: tuple[NextHop, ...] = tuple(
            replace(hop, port=behind.get((hop.port, flow.dst_ip), hop.port)) for hop in fib.lookup(self._address)
        )
        self._live = [hop for hop in self._hops if not hop.dead]
        self._done: list[Step] = []

    def steps(self) -> tuple[list[Step], Ports]:
        """The steps, and the ports that they lead to."""
        return self._done, self._chosen()

    def _add(self, text: str, rows: Sequence[Row] = (), **data: StepValue) -> None:
        self._done.append(Step(text, tuple(rows), data))

    def _chosen(self) -> Ports:
        if not self._live:
            why = "no route" if self._prefix is None else f"route {self._prefix} has no live next hop"
            self._add(f"{why} to {self._flow.dst_ip}: packets end here", next_hops=[])
            return ()
        if len(self._live) == 1:
            self._add(f"route {self._prefix} has one live next hop, {self._live[0].port}: nothing to choose")
            return (self._live[0].port,)
        ports = tuple(dict.fromkeys(hop.port for hop in self._live))
        if self._rule.mode in SPREADING:
            each = "packet" if self._rule.mode == "spray" else "burst"
            self._add(f"each {each} chooses again among the live next hops of {self._prefix}", next_hops=list(ports))
            if self._rule.mode == "adaptive":
                self._add("the first packet of a burst selects the one with the shortest queue of its class")
            if self._rule.mode == "flowlet" and self._hashing.options.first == "hash":
                self._add("burst 0, the first one, uses the hash itself; burst n uses jhash2 of the hash and n:")
                self._by_program(ports)
            return ports
        steered = self._steered()
        return self._hashed(ports) if steered is None else (steered,)

    def _hashed(self, ports: Ports) -> Ports:
        """The choice by hash. ports: all live ports."""
        return self._by_program(ports) if self._rule.by_program else self._threshold(self._kernel_hash())

    def _by_program(self, ports: Ports) -> Ports:
        value = self._program_hash()
        if value is None:
            return ports
        kept = self._bucket(value) if self._rule.resilient else value
        return (kept,) if isinstance(kept, str) else self._threshold(kept)

    def _steered(self) -> str | None:
        """The port of a slice or an exact-match entry, if it is a live next hop."""
        table = self._hashing.steering
        prefix = Fib("", dict.fromkeys(table.prefixes, ())).match(self._address)
        if self._rule.mode not in ("pinned", "exact-match") or prefix is None:
            return None
        if self._rule.mode == "pinned":
            rule = table.prefixes[prefix]
            members = table.groups[rule.group]
            offset = int(self._address) - int(prefix.network_address)
            slice_ = rule.slice + (offset >> rule.shift)
            ports: tuple[str, ...] = (members[slice_ % len(members)],)
            text = (
                f"{self._address} is address {offset} of {prefix}, slice {rule.slice} + ({offset} >> {rule.shift})"
                f" = {slice_}; number {slice_} mod {len(members)} = {slice_ % len(members)} of"
                f" {' '.join(members)}: {ports[0]}"
            )
        else:
            found = table.exact.get((self._flow.sport, prefix))
            if found is None:
                self._add(f"no entry for source port {self._flow.sport} and {prefix}: by hash")
                return None
            ports = found
            text = f"entry: source port {self._flow.sport}, {prefix} -> {ports[0]}"
        chosen = next((port for port in ports if port in {hop.port for hop in self._live}), None)
        if chosen == ports[0]:
            said = "a live next hop"
        else:
            said = "no live next hop: " + ("by hash" if chosen is None else f"its backup {chosen}")
        self._add(f"{text}, {said}", port=ports[0], live=chosen == ports[0], chosen=chosen)
        return chosen

    def _kernel_hash(self) -> int:
        rule, seed = self._rule, self._hashing.seed
        if rule.policy == POLICY_CUSTOM and not rule.fields & 0x3F:
            self._add("policy 3 with no field of the outer packet: nothing is hashed, h = 0", hash=0)
            value = 0
        else:
            keys = [int(word) for word in flow_keys(self._columns, rule.policy, rule.fields)[0]]
            octets = b"".join(word.to_bytes(8, "little") for word in keys)
            named = [name for bit, name in enumerate(_NAMES) if rule.fields >> bit & 1]
            what = f"policy {rule.policy}" + (f", fields {' '.join(named)}" if rule.policy == POLICY_CUSTOM else "")
            self._add(
                f"{what}: struct flow_keys, {len(octets)} bytes, the lower of each pair first",
                [
                    (f"bytes {at} to {min(at + 16, len(octets)) - 1}", _quads(octets[at : at + 16]))
                    for at in range(0, len(octets), 16)
                ],
                flow_keys=octets.hex(),
            )
            key = seed << 32 | seed
            rows, full = siphash_steps(keys, key)
            text = f"SipHash-2-4 of these, little-endian, key {key:016x} twice (seed {seed}): v0 v1 v2 v3"
            self._add(text, rows, key=f"{key:016x}")
            value = full & 0xFFFFFFFF or 1
            text = f"v0 ^ v1 ^ v2 ^ v3 = {full:016x}, lower 32 bits: h = {value:08x}"
            self._add(text, siphash=f"{full:016x}", hash=value)
        if rule.policy == POLICY_CUSTOM:
            rows, value = jhash_steps([value, 0], 0)
            self._add("policy 3: jhash of h and the inner packet's hash, 0: a b c", rows, hash=value)
        return value

    def _program_hash(self) -> int | None:
        """The hash that the BPF program sets, before the kernel's shift; None where it differs between packets."""
        rule, seed, flow = self._rule, self._hashing.seed, self._flow
        words = rule.words(self._columns)
        if words is None:
            self._add("the user-defined field differs between packets of one flow: each packet may take another path")
            return None
        row = [int(word) for word in words[0]]
        names = f"{flow.src_ip} {flow.dst_ip} {flow.sport} {flow.dport}"
        udf = rule.udf
        if rule.mode == "flow":
            last = "0"
        elif udf is None or udf_values(self._columns, udf) is None:
            last = f"QP {flow.qpn}"
        else:
            last = f"{udf.bytes} bytes from {udf.base} + {udf.offset}"
        self._add(
            f"words: {' '.join(f'{word:08x}' for word in row)} ({names}, {last})", words=[f"{w:08x}" for w in row]
        )
        rows, value = jhash_steps(row, seed)
        self._add(f"jhash2, seed {seed:08x} ({seed}): a b c", rows, hash=value)
        return value

    def _bucket(self, value: int) -> str | int:
        """The port of the value's bucket, or of the heaviest live member; without one the value of the second hash."""
        table, seed = self._hashing.steering, self._hashing.seed
        prefix = Fib("", dict.fromkeys(table.prefixes, ())).match(self._address)
        if prefix is None or not table.slots[table.prefixes[prefix].group]:
            self._add(f"{self._address} has no buckets: by threshold")
            return value
        number = table.prefixes[prefix].group
        slots, live = table.slots[number], [hop.port for hop in self._live]
        bucket = value % len(slots)
        port = slots[bucket]
        text = f"bucket {value} mod {len(slots)} = {bucket}, which belongs to {port}"
        words = "a live next hop" if port in live else "no live next hop"
        self._add(f"{text}, {words}", bucket=bucket, port=port, live=port in live)
        if port in live:
            return port
        weights = {each: jhash_steps([value, at], seed)[1] for at, each in enumerate(table.groups[number])}
        if best := max((each for each in weights if each in live), key=weights.__getitem__, default=""):
            text = ", ".join(f"{each} {weight:08x}" for each, weight in weights.items() if each in live)
            self._add(f"weights, jhash2 of the hash and the member's number: {text}: {best}", port=best)
            return best
        rows, again = jhash_steps([value], seed)
        self._add("once more: jhash2 of the hash: a b c", rows, hash=again)
        return again

    def _threshold(self, value: int) -> Ports:
        short = value >> 1
        dealt = self._fib.buckets.get(self._prefix) if self._prefix is not None else None
        if dealt:
            bucket = short % len(dealt)
            port = self._hops[dealt[bucket]].port
            text = f"{value:08x} >> 1 = {short}; resilient group of the kernel: bucket {short} mod {len(dealt)}"
            self._add(f"{text} = {bucket}: {port}", value=short, bucket=bucket)
            return (port,)
        last = dict(zip((id(hop) for hop in self._live), bounds([hop.weight for hop in self._live]), strict=True))
        taken = next(hop for hop in self._live if short <= last[id(hop)])
        self._add(f"{value:08x} >> 1 = {short}; next hops of {self._prefix} in the kernel's order:", value=short)
        wide = max(len(hop.port) for hop in self._hops)
        for hop in self._hops:
            until = "dead" if hop.dead else f"up to {last[id(hop)]:>10}"
            mark = "  <- the first that reaches it" if hop is taken else ""
            bound = None if hop.dead else last[id(hop)]
            self._add(
                f"  {hop.port:<{wide}}  weight {hop.weight:>3}  {until}{mark}",
                port=hop.port, weight=hop.weight, bound=bound, dead=hop.dead,
            )  # fmt: skip
        return (taken.port,)


def _quads(octets: bytes) -> tuple[int, ...]:
    """Each four bytes as one big-endian number."""
    return tuple(int.from_bytes(octets[at : at + 4], "big") for at in range(0, len(octets), 4))


_LIMITS: Final = {"qpn": (1 << 24) - 1, "sport": (1 << 16) - 1, "tcp": (1 << 16) - 1}
_DEFAULTS: Final = {"qpn": 0x100, "sport": 0xC000}
_HINT: Final = "a QP number of the run, or host1,host5,qpn=0x101,sport=50000"


def flow_of(lab: Lab, word: str, run: str | None = None) -> Flow:
    """The flow that a word names. run: where a QP number is looked up; None is the last run."""
    if "," not in word:
        return _of_run(lab, word, _number(word, word, "qpn"), run)
    if run is not None:
        why = f"cannot be combined with {word}, which is not a QP number of a run"
        raise InputError(Problem("", f"--run {run}", why, "name a QP number of that run, or leave --run out"))
    return made_up(lab.fabric, word)


def made_up(fabric: Fabric, word: str) -> Flow:
    """Parse `SRC,DST[,qpn=N][,sport=N]`: hosts, or their ports (host1:eth2). Defaults: QP 0x100, port 49152.

    tcp=N instead of qpn: a TCP stream to this port.
    """
    names = [part.strip() for part in word.split(",") if "=" not in part and part.strip()]
    values = dict(_DEFAULTS)
    for key, _, text in (part.partition("=") for part in word.split(",") if "=" in part):
        if key not in _LIMITS:
            raise InputError(Problem("", f"--explain {word}", f"has {key!r}, which is no key", "use qpn, tcp or sport"))
        values[key] = _number(word, text, key)
    if len(names) != 2:
        raise InputError(Problem("", f"--explain {word}", f"names {len(names)} ends of a flow, not two", _HINT))
    typed = f"--explain {word}"
    ends = [_ports_named(fabric, typed, name, every="tcp" in values) for name in names]
    pairs = [pair for pair in product(*ends) if len({port.network for port, _ in pair}) == 1]
    if not pairs:
        raise InputError(Problem("", typed, "names ends that are in no network together", _HINT))
    (src, src_ip), (dst, dst_ip) = pairs[0]
    if src.ref == dst.ref:
        raise InputError(Problem("", f"--explain {word}", "has the same NIC at both ends", _HINT))
    qpn = PROTO_TCP << PROTOCOL_SHIFT | values["tcp"] if "tcp" in values else values["qpn"]
    return Flow.counted((src_ip, dst_ip, values["sport"], qpn), src.node, dst.node, src.peer_ref)


def nic_named(fabric: Fabric, typed: str, name: str) -> tuple[Port, str]:
    """A host's NIC, the first when none is named, and its address. typed: for the InputError when there is none."""
    return _ports_named(fabric, typed, name, every=False)[0]


def _ports_named(fabric: Fabric, typed: str, name: str, *, every: bool) -> list[tuple[Port, str]]:
    """The NICs that a name can mean, and their addresses; at least one. every: also ports without ranks."""
    host, _, port = name.partition(":")
    node = fabric.by_name.get(host)
    if node is None or node.role is Role.SWITCH:
        hint = did_you_mean(host, [each.name for each in fabric.hosts])
        raise InputError(Problem("", typed, f"names {host}, which is not a host of this lab", hint))
    nics = node.ports if every else fabric.nics_of[host]
    ports = [(each, str(each.address.ip)) for each in nics if each.address and port in ("", each.name)]
    if not ports:
        why = f"names {name}, which is not a port with an address"
        has = ", ".join(p.name for p in nics) or "no NIC in the network of the ranks"
        raise InputError(Problem("", typed, why, f"{host} has {has}"))
    return ports


def _number(word: str, text: str, key: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        raise InputError(Problem("", f"--explain {word}", f"has {text!r}, which is no number", _HINT)) from None
    if not 0 <= number <= _LIMITS[key]:
        why = f"has {text}, and a {'QP number' if key == 'qpn' else 'UDP port'} is 0 to {_LIMITS[key]}"
        raise InputError(Problem("", f"--explain {word}", why))
    return number


def _of_run(lab: Lab, word: str, qpn: int, run: str | None) -> Flow:
    from heddle.runs.store import load

    stored = load(lab, run)
    flows = [sent.flow for sent in stored.evidence.sent if sent.flow.has_qp or sent.flow.protocol == PROTO_TCP]
    found = [flow for flow in flows if flow.number == qpn]
    if len(found) == 1:
        return found[0]
    if not found:
        some = ", ".join(str(flow.number) for flow in flows[:4]) or "none"
        hint = f"it had {some}{', ...' if len(flows) > 4 else ''}; or {_HINT.partition(', or ')[2]}"
        raise InputError(Problem("", f"--explain {word}", f"is no QP number of run {stored.id}", hint))
    names = [(f, "qpn" if f.has_qp else "tcp") for f in found[:4]]
    hint = "; or ".join(f"{f.src},{f.dst},{key}={f.number},sport={f.sport}" for f, key in names)
    raise InputError(Problem("", f"--explain {word}", f"is a QP number of {len(found)} hosts", hint))
