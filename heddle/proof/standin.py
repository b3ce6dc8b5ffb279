"""5-tuples whose kernel hash is close to a given value, so that a kernel lookup shows the choice for that value.

In:  hashes that a switch's BPF program set (31 bits), a destination, and the switch's kernel seed.
Out: for each value UDP ports whose hash is just below it and just above it, or is in the same bucket.
Why: with policy 1 a kernel uses the hash that the program set on a packet, but a netlink request cannot carry one.
Measured on Linux 6.18: RTM_GETROUTE ignores RTA_MARK, and bpf_fib_lookup, also in BPF_PROG_TEST_RUN after
bpf_set_hash, chooses by the 5-tuple (fib_multipath_hash without an skb). So the request has another 5-tuple, whose
kernel hash is close. The selection depends only on the hash, with one interval per next hop (fib_select_multipath,
nexthop_select_path_hthr, fib6_select_path). If the neighbours on both sides get the same port, the value between them
gets it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.base.arrays import I64, U32
from heddle.fabric.hashmodes import POLICY_L4
from heddle.predict.forwarding import FlowArrays, address_words
from heddle.predict.hashes import kernel_hash

FEW: Final = 1 << 12  # candidates: a value is about 2^31 / FEW from its neighbours; computed in a millisecond
MANY: Final = 1 << 16  # for values near the end of an interval
_PORTS: Final = (1 << 16) - 1  # from 1

Ends = tuple[int, int]  # UDP source port, destination port


@dataclass(frozen=True)
class Standins:
    """5-tuples to one destination, sorted by hash. value, sport, dport: (candidates,)."""

    value: I64
    sport: U32
    dport: U32

    @classmethod
    def of(cls, src: str, dst: str, seed: int, count: int = FEW) -> Standins:
        """`count` of these 5-tuples. seed: of the kernel's hash, not 0."""
        number = np.arange(count, dtype=np.uint32)
        sport, dport = number % np.uint32(_PORTS) + np.uint32(1), number // np.uint32(_PORTS) + np.uint32(1)
        ends = (address_words([each]) for each in (src, dst))
        one, other = (np.repeat(words, count, axis=0) for words in ends)
        flows = FlowArrays(one, other, sport, dport, np.zeros(count, np.uint32))
        value = (kernel_hash(flows, seed, POLICY_L4) >> np.uint32(1)).astype(np.int64)
        order = np.argsort(value, kind="stable")
        return cls(value[order], sport[order], dport[order])

    def around(self, value: int) -> tuple[Ends, Ends]:
        """The nearest on each side of a value; twice the same if the value is beyond all."""
        at = int(np.searchsorted(self.value, value))
        return self._at(max(0, at - 1)), self._at(min(at, len(self.value) - 1))

    def in_bucket(self, value: int, buckets: int) -> Ends | None:
        """One with a hash in the same bucket of a resilient group (value % buckets); None if there is none."""
        found = np.flatnonzero(self.value % buckets == value % buckets)
        return self._at(int(found[0])) if len(found) else None

    def _at(self, at: int) -> Ends:
        return int(self.sport[at]), int(self.dport[at])
