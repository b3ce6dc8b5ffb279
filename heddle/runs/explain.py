"""One flow, hop by hop: every step by which each switch chooses its way, beside what that switch's kernel says.

In:  a running lab, and a flow: a QP number of a run, or `host1,host5,qpn=0x101,sport=50000`.
Out: Explanation: for each switch the words that are hashed, the hash's steps, the next hops with their bounds, what is
     steered where; the choice that follows, the prediction's and the kernel's, and whether the three agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.fabric.hashmodes import POLICY_CUSTOM, SPREADING
from heddle.fabric.model import Fabric, Node, Role
from heddle.kernel.fib import Fib, NextHop
from heddle.kernel.handle import NodeHandle
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.hashes import flow_keys, udf_values
from heddle.predict.predict import forwarding_for, rule_of, rules_for
from heddle.predict.rules import HashingRule
from heddle.predict.spread import element
from heddle.predict.steps import Row, bounds, jhash_steps, siphash_steps
from heddle.predict.walk import MAX_HOPS, walk
from heddle.proof import oracle
from heddle.runs.flowword import flow_of
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Ports = tuple[str, ...]
_WIDE: Final = 92  # columns of a step and its state, so that lines stay within 100
_NAMES: Final = ("src", "dst", "proto", "flowlabel", "sport", "dport")  # bits 0 to 5 of fib_multipath_hash_fields


StepValue = str | int | bool | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a computation: what is done, in words; rows of states; and the same as data."""

    said: str
    rows: tuple[Row, ...] = ()
    data: Mapping[str, StepValue] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Text; states in hexadecimal, side by side: beside what was done, or below it where that would be too wide."""
        wide = max((len(what) for what, _ in self.rows), default=0)
        states = [(what, " ".join(self._hex(state))) for what, state in self.rows]
        if any(wide + len(state) > _WIDE for _, state in states):
            return [self.said, *(line for what, state in states for line in (f"  {what}", f"      {state}"))]
        return [self.said, *(f"  {what:<{wide}}  {state}" for what, state in states)]

    def _hex(self, state: tuple[int, ...]) -> list[str]:
        """Words of 32 bits, or of 64 where one of the step's needs them."""
        digits = 16 if any(value >> 32 for _, each in self.rows for value in each) else 8
        return [f"{value:0{digits}x}" for value in state]

    def to_json(self) -> dict[str, Any]:
        """`said`, `states` where there are any, and the step's own values."""
        states = [{"step": what, "state": self._hex(state)} for what, state in self.rows]
        return {"said": self.said, **({"states": states} if states else {}), **self.data}


@dataclass(frozen=True, slots=True)
class Hop:
    """One switch. computed: what the steps lead to; predicted, kernel: the other two; several ports in a fan."""

    switch: str
    arrives: str
    hashing: SwitchHashing
    steps: tuple[Step, ...]
    computed: Ports
    predicted: Ports
    kernel: Ports

    @property
    def agree(self) -> bool:
        """True when all three name the same ports."""
        return set(self.computed) == set(self.predicted) == set(self.kernel)

    def to_json(self) -> dict[str, Any]:
        """One row of `hops`."""
        h = self.hashing
        return {
            "switch": self.switch, "in": self.arrives, "mode": h.mode, "policy": h.policy, "fields": h.fields,
            "seed": h.seed, "steps": [step.to_json() for step in self.steps], "computed": list(self.computed),
            "predicted": list(self.predicted), "kernel": list(self.kernel), "agree": self.agree,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """A paragraph."""
        head = f"{self.switch}, in by {self.arrives}: mode {self.hashing.mode}"
        said = "they agree" if self.agree else "THEY DIFFER"
        kernel = f"the kernel says {_said(self.kernel)}"
        other = "" if set(self.computed) == set(self.predicted) else f"; the prediction is {_said(self.predicted)}"
        body = [f"  {line}" for step in self.steps for line in step.lines()]
        more = f"; {self.computed[0]} is followed" if len(self.computed) > 1 else ""
        return [head, *body, f"  computed {_said(self.computed)}{other}; {kernel}: {said}{more}"]


def _said(ports: Ports) -> str:
    return " or ".join(ports) or "nothing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A flow's way through the fabric."""

    flow: Flow
    hops: tuple[Hop, ...]

    @property
    def agree(self) -> bool:
        """True when computation, prediction and kernels agree at every hop, and the flow arrives somewhere."""
        return bool(self.hops) and all(hop.agree for hop in self.hops)

    @property
    def path(self) -> Ports:
        """The ports that were followed; where packets are spread, all of them."""
        return tuple(element([f"{hop.switch}:{port}" for port in hop.computed]) for hop in self.hops if hop.computed)

    def to_json(self) -> dict[str, Any]:
        """`flow`, `hops`, `path` and `agree`."""
        f = self.flow
        flow = {
            "src": f.src, "dst": f.dst, "src_ip": f.src_ip, "dst_ip": f.dst_ip,
            "sport": f.sport, "dport": f.dport, "qpn": f.qpn,
        }  # fmt: skip
        hops = [hop.to_json() for hop in self.hops]
        return {"flow": flow, "hops": hops, "path": list(self.path), "agree": self.agree}

    def text(self) -> str:
        """The whole, to be read with a calculator at hand."""
        f = self.flow
        lines = [
            f"{f.src} to {f.dst}, QP {f.qpn} (0x{f.qpn:x}): {f.src_ip} -> {f.dst_ip}, UDP {f.sport} -> {f.dport}",
            "Words are hexadecimal; what does not fit into them is cut off. rol(x, n) turns x left by n bits.",
        ]
        for hop in self.hops:
            lines += ["", *hop.lines()]
        verdict = "computation and kernels agree at every hop" if self.agree else "computation and kernels DIFFER"
        return "\n".join([*lines, "", f"path: {' '.join(self.path) or 'none'}; {verdict}"])


def explain(lab: Lab, asked: str, run: str | None = None) -> Explanation:
    """Follow a flow over the lab as it is now. InputError for a flow that cannot be. run: that of a QP number."""
    flow = flow_of(lab, asked, run)
    return explain_flow(lab.fabric, lab.handles(), lab.snapshot(LabPart.FIBS | LabPart.HASHING), flow)


def explain_flow(fabric: Fabric, handles: Mapping[str, NodeHandle], now: Snapshot, flow: Flow) -> Explanation:
    """The same for a flow and tables that are known. Where packets are spread, the first port is followed."""
    fibs, hashing = now.fibs, now.hashing
    forwarding = forwarding_for(fabric, fibs, [flow.dst_ip])
    rules = rules_for(forwarding, hashing, [flow.dst_ip])
    columns = FlowArrays.of([flow])
    ids = {name: at for at, name in enumerate(forwarding.switches)}
    zero = np.zeros(1, dtype=np.int32)
    switch, _, arrives = flow.first_hop.partition(":")
    hops: list[Hop] = []
    while len(hops) < MAX_HOPS:
        steps, computed = _Choice(fibs[switch], hashing[switch], flow).steps()
        here = np.array([ids[switch]], dtype=np.int32)
        walked = walk(forwarding, rules, columns, zero, here, max_hops=1).steps
        predicted = tuple(forwarding.ports[port].partition(":")[2] for step in walked for port in step.port.tolist())
        kernel = oracle.ask_one(fabric, handles[switch], hashing[switch], flow, arrives, len(hops))
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

    def __init__(self, fib: Fib, hashing: SwitchHashing, flow: Flow) -> None:
        self._fib, self._hashing, self._flow = fib, hashing, flow
        self._rule: HashingRule = rule_of(hashing)
        self._columns = FlowArrays.of([flow])
        self._address = ip_address(flow.dst_ip)
        self._prefix = fib.match(self._address)
        self._hops: tuple[NextHop, ...] = fib.lookup(self._address)
        self._live = [hop for hop in self._hops if not hop.dead]
        self._done: list[Step] = []

    def steps(self) -> tuple[list[Step], Ports]:
        """The steps, and the ports that they lead to."""
        return self._done, self._chosen()

    def _say(self, said: str, rows: Sequence[Row] = (), **data: StepValue) -> None:
        self._done.append(Step(said, tuple(rows), data))

    def _chosen(self) -> Ports:
        if not self._live:
            why = "no route" if self._prefix is None else f"route {self._prefix} has no live next hop"
            self._say(f"{why} to {self._flow.dst_ip}: packets end here", next_hops=[])
            return ()
        if len(self._live) == 1:
            self._say(f"route {self._prefix} has one live next hop, {self._live[0].port}: nothing to choose")
            return (self._live[0].port,)
        ports = tuple(dict.fromkeys(hop.port for hop in self._live))
        if self._rule.mode in SPREADING:
            each = "packet" if self._rule.mode == "spray" else "burst"
            self._say(f"each {each} chooses anew among the live next hops of {self._prefix}", next_hops=list(ports))
            if self._rule.mode == "adaptive":
                self._say("the first packet of a burst takes the one whose queue for its class is least deep then")
            if self._rule.mode == "flowlet" and self._hashing.options.first == "hash":
                self._say("the first burst, number 0, goes by the hash itself; number n by jhash2 of the hash and n:")
                self._by_program(ports)
            return ports
        steered = self._steered()
        return self._hashed(ports) if steered is None else (steered,)

    def _hashed(self, ports: Ports) -> Ports:
        """The choice by hash. ports: all that there are."""
        return self._by_program(ports) if self._rule.by_program else self._threshold(self._kernel_hash())

    def _by_program(self, ports: Ports) -> Ports:
        value = self._program_hash()
        if value is None:
            return ports
        kept = self._bucket(value) if self._rule.resilient else value
        return (kept,) if isinstance(kept, str) else self._threshold(kept)

    def _steered(self) -> str | None:
        """The port of a slice or an entry, where it is a live next hop."""
        table = self._hashing.steering
        prefix = Fib("", dict.fromkeys(table.prefixes, ())).match(self._address)
        if self._rule.mode not in ("pinned", "exact-match") or prefix is None:
            return None
        if self._rule.mode == "pinned":
            rule = table.prefixes[prefix]
            members = table.groups[rule.group]
            offset = int(self._address) - int(prefix.network_address)
            slice_ = rule.slice + (offset >> rule.shift)
            port = members[slice_ % len(members)]
            said = (
                f"{self._address} is address {offset} of {prefix}, slice {rule.slice} + ({offset} >> {rule.shift})"
                f" = {slice_}; number {slice_} mod {len(members)} = {slice_ % len(members)} of"
                f" {' '.join(members)}: {port}"
            )
        else:
            found = table.exact.get((self._flow.sport, prefix))
            if found is None:
                self._say(f"no entry for source port {self._flow.sport} and {prefix}: by hash")
                return None
            port = found
            said = f"entry: source port {self._flow.sport}, {prefix} -> {port}"
        live = port in [hop.port for hop in self._live]
        self._say(f"{said}, {'a live next hop' if live else 'no live next hop: by hash'}", port=port, live=live)
        return port if live else None

    def _kernel_hash(self) -> int:
        """The kernel's own hash, before the shift."""
        rule, seed = self._rule, self._hashing.seed
        if rule.policy == POLICY_CUSTOM and not rule.fields & 0x3F:
            self._say("policy 3 with no field of the outer packet: nothing is hashed, h = 0", hash=0)
            value = 0
        else:
            keys = [int(word) for word in flow_keys(self._columns, rule.policy, rule.fields)[0]]
            octets = b"".join(word.to_bytes(8, "little") for word in keys)
            named = [name for bit, name in enumerate(_NAMES) if rule.fields >> bit & 1]
            what = f"policy {rule.policy}" + (f", fields {' '.join(named)}" if rule.policy == POLICY_CUSTOM else "")
            self._say(
                f"{what}: struct flow_keys, {len(octets)} bytes, the lower of each pair first",
                [
                    (f"bytes {at} to {min(at + 16, len(octets)) - 1}", _quads(octets[at : at + 16]))
                    for at in range(0, len(octets), 16)
                ],
                flow_keys=octets.hex(),
            )
            key = seed << 32 | seed
            rows, full = siphash_steps(keys, key)
            said = f"SipHash-2-4 of these, little-endian, key {key:016x} twice (seed {seed}): v0 v1 v2 v3"
            self._say(said, rows, key=f"{key:016x}")
            value = full & 0xFFFFFFFF or 1
            said = f"v0 ^ v1 ^ v2 ^ v3 = {full:016x}, lower 32 bits: h = {value:08x}"
            self._say(said, siphash=f"{full:016x}", hash=value)
        if rule.policy == POLICY_CUSTOM:
            rows, value = jhash_steps([value, 0], 0)
            self._say("policy 3: jhash of h and the inner packet's hash, 0: a b c", rows, hash=value)
        return value

    def _program_hash(self) -> int | None:
        """What the BPF program gives the kernel, before the shift; None where it differs from packet to packet."""
        rule, seed, flow = self._rule, self._hashing.seed, self._flow
        words = rule.words(self._columns)
        if words is None:
            self._say("the user-defined field differs between packets of one flow: each goes its own way")
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
        self._say(
            f"words: {' '.join(f'{word:08x}' for word in row)} ({names}, {last})", words=[f"{w:08x}" for w in row]
        )
        rows, value = jhash_steps(row, seed)
        self._say(f"jhash2, seed {seed:08x} ({seed}): a b c", rows, hash=value)
        return value

    def _bucket(self, value: int) -> str | int:
        """The port of the value's bucket where it lives; else the value of the second hash."""
        table = self._hashing.steering
        prefix = Fib("", dict.fromkeys(table.prefixes, ())).match(self._address)
        if prefix is None or not table.slots[table.prefixes[prefix].group]:
            self._say(f"{self._address} has no buckets: by threshold")
            return value
        slots = table.slots[table.prefixes[prefix].group]
        bucket = value % len(slots)
        port = slots[bucket]
        live = port in [hop.port for hop in self._live]
        said = f"bucket {value} mod {len(slots)} = {bucket}, at home with {port}"
        self._say(f"{said}, {'a live next hop' if live else 'no live next hop'}", bucket=bucket, port=port, live=live)
        if live:
            return port
        rows, again = jhash_steps([value], self._hashing.seed)
        self._say("once more: jhash2 of the hash: a b c", rows, hash=again)
        return again

    def _threshold(self, value: int) -> Ports:
        """The kernel's choice by a hash."""
        short = value >> 1
        dealt = self._fib.buckets.get(self._prefix) if self._prefix is not None else None
        if dealt:
            bucket = short % len(dealt)
            port = self._hops[dealt[bucket]].port
            said = f"{value:08x} >> 1 = {short}; resilient group of the kernel: bucket {short} mod {len(dealt)}"
            self._say(f"{said} = {bucket}: {port}", value=short, bucket=bucket)
            return (port,)
        last = dict(zip((id(hop) for hop in self._live), bounds([hop.weight for hop in self._live]), strict=True))
        taken = next(hop for hop in self._live if short <= last[id(hop)])
        self._say(f"{value:08x} >> 1 = {short}; next hops of {self._prefix} in the kernel's order:", value=short)
        wide = max(len(hop.port) for hop in self._hops)
        for hop in self._hops:
            until = "dead" if hop.dead else f"up to {last[id(hop)]:>10}"
            mark = "  <- the first that reaches it" if hop is taken else ""
            bound = None if hop.dead else last[id(hop)]
            self._say(
                f"  {hop.port:<{wide}}  weight {hop.weight:>3}  {until}{mark}",
                port=hop.port, weight=hop.weight, bound=bound, dead=hop.dead,
            )  # fmt: skip
        return (taken.port,)


def _quads(octets: bytes) -> tuple[int, ...]:
    """Four bytes a number, as they stand."""
    return tuple(int.from_bytes(octets[at : at + 4], "big") for at in range(0, len(octets), 4))
