"""The choice among equal next hops, as arrays: one HashingRule for all switches with equal rules, a seed per switch.

In:  a switch's hashing (mode, kernel policy, options), its steering tables.
Out: FabricRules.choose: the port of each flow at each switch, or FAN where packets of one flow take several ports.
The modes are in heddle/switch/bpf/hash.c and docs/hashing.md; the kernel's selection is in forwarding.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, I64, U32
from heddle.base.problems import CheckError, Problem
from heddle.fabric.hashmodes import BY_PROGRAM, MODES, POLICY_CUSTOM, POLICY_L4, SPREADING
from heddle.predict import hashes
from heddle.predict.forwarding import FlowArrays, Forwarding
from heddle.spec.routingpolicy import FIELDS_5_TUPLE, Udf
from heddle.traffic.flow import PROTOCOL_SHIFT

FAN: Final = -2  # instead of a port id: any of the group's members
NO_PORT: Final = -1
BLOCK: Final = 1 << 15  # flows hashed at once: their columns fit in the cache
_FACTORS: Final = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


@dataclass(frozen=True, slots=True)
class HashingRule:
    """The common rule of some switches. policy, fields: the kernel's; udf None: the destination QP.

    resilient: a bucket (value % buckets) keeps its port while the port is up.
    """

    mode: str = "flow"
    policy: int = POLICY_CUSTOM
    fields: int = FIELDS_5_TUPLE
    udf: Udf | None = None
    resilient: bool = False
    buckets: int = 256

    @property
    def by_program(self) -> bool:
        """Whether the kernel uses the program's value: it does so with policy 1 only."""
        return self.policy == POLICY_L4 and (self.mode in BY_PROGRAM or self.resilient)

    @property
    def labels(self) -> bool:
        """Whether the kernel hashes the flow label of IPv6 packets."""
        return self.policy in (hashes.POLICY_L3, hashes.POLICY_INNER) or (
            self.policy == POLICY_CUSTOM and bool(self.fields & hashes.FIELD_LABEL)
        )

    @property
    def hashed(self) -> str:
        """What is hashed, in words."""
        if self.by_program and self.mode != "flow":
            return f"5-tuples and {'QPs' if self.udf in (None, Udf()) else 'hash.udf'}"
        if self.policy == POLICY_CUSTOM and self.fields != FIELDS_5_TUPLE:
            return "hash.fields"
        return "5-tuples" if self.policy in (POLICY_L4, POLICY_CUSTOM) else "addresses"

    def words(self, flows: FlowArrays) -> U32 | None:
        """The words that the program hashes, (flows, 4) or (flows, 10); None if they differ within one flow."""
        if self.mode == "flow":  # resilient: the 5-tuple only
            return hashes.e_ecmp_words(flows, None, qpn=False)
        if self.udf is not None and hashes.udf_values(flows, self.udf) is None:
            return None
        return hashes.e_ecmp_words(flows, self.udf)

    def value(self, flows: FlowArrays, seed: U32) -> U32 | None:
        """The hash of each flow; None if packets of one flow differ in what is hashed."""
        if not self.by_program:
            return hashes.kernel_hash(flows, seed, self.policy, self.fields)
        words = self.words(flows)
        return None if words is None else hashes.jhash2(words, seed)

    def inputs(self, flows: FlowArrays) -> npt.NDArray[np.uint64] | None:
        """A number of 64 bits for each flow, equal where what is hashed is. None: as `value`."""
        found = np.zeros(len(flows), dtype=np.uint64)
        for at in range(0, len(flows), BLOCK):
            part, mixed = flows.take(slice(at, at + BLOCK)), found[at : at + BLOCK]
            words = self.words(part) if self.by_program else hashes.flow_keys(part, self.policy, self.fields)
            if words is None:
                return None
            for word in words.T:  # the last steps of MurmurHash3, for each word
                mixed ^= word
                for factor in _FACTORS:
                    mixed *= factor
                    mixed ^= mixed >> np.uint64(33)
        return found

    def spreads(self, flows: FlowArrays) -> bool:
        """Whether packets of one flow may take several ports: by the mode, or by bytes that differ between them."""
        return self.mode in SPREADING or (self.by_program and self.words(flows) is None)

    def problem(self, switch: str, seed: int) -> Problem | None:
        """The reason that a switch's choice cannot be computed; None when it can."""
        if self.mode not in MODES or self.policy not in hashes.POLICIES:
            why = f"hashes by {self.mode} with fib_multipath_hash_policy {self.policy}, which is not modelled"
            return Problem("", switch, why, "run ./inv validate: it shows the expected settings")
        if seed == 0 and not self.by_program and self.mode not in SPREADING:
            why = "hashes with a random seed that Linux does not show: fib_multipath_hash_seed is 0"
            return Problem("", switch, why, set_hint("seed", 1))
        return None


def set_hint(key: str, value: int) -> str:
    """The hint to set a sysctl in the topology: processes in a container may not write sysctls."""
    return f"down, then up again with net.ipv4.fib_multipath_hash_{key}: {value} in the topology's sysctls, and a run"


@dataclass(frozen=True)
class SteeringTables:
    """The ports that programs steer packets to, for all switches and destinations of a Forwarding.

    group (switches, destinations): id of a set of equal ports; -1: none, such packets are not steered.
    start, member: its ports in order (CSR); slot_start, slot: the same, with each port repeated by its weight.
    slice (switches, destinations): of the destination in its prefix; or a number to add to `walk`'s `slices`.
    exact_key: `exact_keys` of (switch, destination, UDP source port), ascending. exact_port (keys, 2): for each the
    port, and the port to take if that is no live next hop; twice the same if there is no backup.
    """

    group: I32
    start: I64
    member: I32
    slot_start: I64
    slot: I32
    slice: I32 | None = None
    exact_key: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    exact_port: I32 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))

    def pinned(self, here: I32, destination: I32, slices: I32 | None) -> I32:
        """member[slice % n], or -1. Slices of flows and of the table are added."""
        if self.slice is not None:
            table = self.slice[here, destination]
            slices = table if slices is None else table + slices
        if slices is None:
            raise ValueError("pinned paths need the slice of each destination")
        return self._at(self.start, self.member, here, destination, slices)

    def bucket(self, here: I32, destination: I32, bucket: I64) -> I32:
        """slot[bucket % n], or -1."""
        return self._at(self.slot_start, self.slot, here, destination, bucket)

    def heaviest(self, forwarding: Forwarding, here: I32, destination: I32, live: I32, value: U32, seed: U32) -> I32:
        """The member with the highest weight, jhash2 of hash and index, among the next hops of `live`; or -1."""
        group = self.group[here, destination]
        size = np.where(group >= 0, self.start[group + 1] - self.start[group], 0)
        best = np.full(len(group), NO_PORT, dtype=np.int32)
        most = np.full(len(group), -1, dtype=np.int64)
        for at in range(int(size.max(initial=0))):
            port = np.where(at < size, self.member[np.where(at < size, self.start[group] + at, 0)], NO_PORT)
            weight = hashes.jhash2(np.column_stack([value, np.full_like(value, at)]), seed).astype(np.int64)
            better = forwarding.holds(live, port) & (weight > most)
            best[better], most[better] = port[better], weight[better]
        return best

    def exact(self, here: I32, destination: I32, sport: U32) -> I32:
        """(flows, 2): the table's port and backup for each (switch, destination, source port), or -1."""
        found = np.full((len(here), 2), NO_PORT, dtype=np.int32)
        if not len(self.exact_key):
            return found
        keys = exact_keys(here, destination, sport, self.group.shape[1])
        at = np.minimum(np.searchsorted(self.exact_key, keys), len(self.exact_key) - 1)
        hit = self.exact_key[at] == keys
        found[hit] = self.exact_port[at[hit]]
        return found

    def _at(self, start: I64, member: I32, here: I32, destination: I32, index: npt.NDArray[np.integer]) -> I32:
        group = self.group[here, destination]
        found = np.full(len(group), NO_PORT, dtype=np.int32)
        has = np.flatnonzero(group >= 0)
        has = has[start[group[has] + 1] > start[group[has]]]
        first = start[group[has]]
        found[has] = member[first + index[has] % (start[group[has] + 1] - first)]
        return found


def exact_keys(
    here: npt.NDArray[np.integer],
    destination: npt.NDArray[np.integer],
    sport: npt.NDArray[np.integer],
    destinations: int,
) -> I64:
    """(switch, destination, UDP source port) as one number."""
    keys: I64 = (here.astype(np.int64) * destinations + destination) << 16 | sport.astype(np.int64)
    return keys


def steering_like(forwarding: Forwarding, slices: I32 | None = None) -> SteeringTables:
    """Tables that steer over exactly the groups of a Forwarding, members in the order of their ports.

    For a fabric without expected next hops; other fabrics use steering_of (switch/hashing/maps.py).
    """
    several = forwarding.width > 1
    group = np.where(several[forwarding.group], forwarding.group, np.int32(NO_PORT))
    owner = np.repeat(np.arange(len(forwarding.size)), forwarding.size)
    member = forwarding.member[np.lexsort((forwarding.member, owner))]
    return SteeringTables(group, forwarding.start, member, forwarding.start, member, slices)


@dataclass(frozen=True)
class FabricRules:
    """The rule of each switch of a Forwarding. kind (switches,): index into rules; seed (switches,): uint32.

    kernel_seed (switches,): of packets that are not RoCEv2; only for fabrics that run.
    """

    switches: tuple[str, ...]
    rules: tuple[HashingRule, ...]
    kind: I32
    seed: U32
    steering: SteeringTables | None = None
    kernel_seed: U32 = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @classmethod
    def of(
        cls, switches: Sequence[str], rule: Mapping[str, HashingRule] | HashingRule, seed: Mapping[str, int],
        steering: SteeringTables | None = None,
    ) -> FabricRules:  # fmt: skip
        """From one rule for all switches, or one per switch; seed: one per switch."""
        each = [rule if isinstance(rule, HashingRule) else rule[name] for name in switches]
        distinct = tuple(dict.fromkeys(each))
        kind = np.array([distinct.index(one) for one in each], dtype=np.int32)
        return cls(tuple(switches), distinct, kind, np.array([seed[name] for name in switches], np.uint32), steering)

    @cached_property
    def problems(self) -> tuple[Problem | None, ...]:
        """For each switch, the reason that its choice cannot be computed; None when it can."""
        return tuple(
            self.rules[kind].problem(name, int(seed))
            for name, kind, seed in zip(self.switches, self.kind, self.seed, strict=True)
        )

    def choose(
        self, forwarding: Forwarding, flows: FlowArrays, here: I32, group: I32, destination: I32, slices: I32 | None
    ) -> I32:
        """The port of each flow at its current switch; FAN where its packets take several ports."""
        if len(self.rules) == 1:
            return self._by(self.rules[0], forwarding, flows, here, group, destination, slices)
        found = np.empty(len(here), dtype=np.int32)
        kinds = self.kind[here]
        for kind in np.flatnonzero(np.bincount(kinds)):
            rows = np.flatnonzero(kinds == kind)
            found[rows] = self._by(
                self.rules[kind], forwarding, flows.take(rows), here[rows], group[rows], destination[rows],
                None if slices is None else slices[rows],
            )  # fmt: skip
        return found

    def _by(
        self, rule: HashingRule, forwarding: Forwarding, flows: FlowArrays,
        here: I32, group: I32, destination: I32, slices: I32 | None,
    ) -> I32:  # fmt: skip
        if len(others := np.flatnonzero(flows.qpn >> np.uint32(PROTOCOL_SHIFT))):
            found = np.empty(len(here), dtype=np.int32)
            found[others] = self._by_kernel(rule, forwarding, flows.take(others), here[others], group[others])
            if len(rest := np.setdiff1d(np.arange(len(here)), others)):
                found[rest] = self._by(
                    rule, forwarding, flows.take(rest), here[rest], group[rest], destination[rest],
                    None if slices is None else slices[rest],
                )  # fmt: skip
            return found
        if rule.mode in SPREADING:
            return np.full(len(here), FAN, dtype=np.int32)
        if self.steering is not None and rule.mode == "pinned":
            steered = self.steering.pinned(here, destination, slices)
            same = self.steering.start is forwarding.start  # tables of these groups: their ports are live next hops
            live = steered >= 0 if same else forwarding.holds(group, steered)
        elif self.steering is not None and rule.mode == "exact-match":
            port, backup = self.steering.exact(here, destination, flows.sport).T
            steered = np.where(forwarding.holds(group, port), port, backup)
            live = forwarding.holds(group, steered)
        else:
            return self._hashed(rule, forwarding, flows, here, group, destination)
        if live.all():
            return steered
        rest = np.flatnonzero(~live)
        steered[rest] = self._hashed(rule, forwarding, flows.take(rest), here[rest], group[rest], destination[rest])
        return steered

    def _by_kernel(self, rule: HashingRule, forwarding: Forwarding, flows: FlowArrays, here: I32, group: I32) -> I32:
        """The choice for TCP, and for UDP other than RoCEv2: always by the kernel's own hash.

        CheckError where it cannot be computed.
        """
        seed, switch = self.kernel_seed[here], self.switches[int(here[0])]
        if not seed.all():
            switch = self.switches[int(here[np.flatnonzero(seed == 0)[0]])]
            why = "hashes TCP with a random seed that Linux does not show: fib_multipath_hash_seed is 0"
            raise CheckError(Problem("", switch, why, set_hint("seed", 1)))
        if flows.ipv6 and rule.labels:
            why = "hashes the IPv6 flow label of TCP, which the sender may change at any time"
            raise CheckError(
                Problem("", switch, why, "use ./inv hashing flow --set policy=l4, and start the program again")
            )
        return forwarding.choose(group, hashes.kernel_hash(flows, seed, rule.policy, rule.fields) >> np.uint32(1))

    def _hashed(
        self, rule: HashingRule, forwarding: Forwarding, flows: FlowArrays, here: I32, group: I32, destination: I32
    ) -> I32:
        """The choice by hash, for flows that are not steered, or steered to a port that is not a live next hop."""
        seed = self.seed[here]
        value = rule.value(flows, seed)
        if value is None:
            return np.full(len(here), FAN, dtype=np.int32)
        if not rule.by_program or not rule.resilient or self.steering is None:
            return forwarding.choose(group, value >> np.uint32(1))
        kept = self.steering.bucket(here, destination, value.astype(np.int64) % rule.buckets)
        rest = np.flatnonzero(~forwarding.holds(group, kept))
        if not len(rest):
            return kept
        # If a bucket's port is dead, each of its flows goes to the live member with the highest weight. Without a live
        # member the kernel chooses by another hash; without a steering group by the first one.
        group, value, seed, had = group[rest], value[rest], seed[rest], kept[rest] >= 0
        by_weight = self.steering.heaviest(forwarding, here[rest], destination[rest], group, value, seed)
        by_kernel = forwarding.choose(group, np.where(had, hashes.jhash2(value[:, None], seed), value) >> np.uint32(1))
        kept[rest] = np.where(by_weight >= 0, by_weight, by_kernel)
        return kept

    def inputs(self, flows: FlowArrays, here: I32, destination: I32) -> I64:
        """What decides each flow's choice at its switch, below 2^32: flows with one number choose alike.

        The hash; in mode `pinned` the destination. Zeros where packets are spread.
        """
        found = np.zeros(len(here), dtype=np.int64)
        kinds = self.kind[here]
        for kind in np.flatnonzero(np.bincount(kinds)):
            rows, rule = np.flatnonzero(kinds == kind), self.rules[kind]
            if rule.mode == "pinned" and self.steering is not None:
                found[rows] = destination[rows]
            elif (value := rule.value(flows.take(rows), self.seed[here[rows]])) is not None:
                found[rows] = value
        return found
