"""The hashes by which switches choose among equal paths, for arrays of flows.

In:  arrays with one row a flow: IPv4 addresses as numbers (10.0.0.1 is 0x0a000001), ports, destination QPs; a seed.
Out: uint32 arrays; selection uses them shifted right by one (31 bits).
Sources: net/ipv4/route.c fib_multipath_hash, include/net/ip_fib.h, net/core/flow_dissector.c, lib/siphash.c,
include/linux/jhash.h, and topologies/switch/bpf/hash.c. Agreement with Linux 6.18 is tested against `ip route get`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from topologies.switch.hashing import POLICY_CUSTOM, POLICY_L4
from traffic.plan import Flow

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

IPPROTO_UDP: Final = 17
POLICY_L3: Final = 0
POLICY_INNER: Final = 2
POLICIES: Final = (POLICY_L3, POLICY_L4, POLICY_INNER, POLICY_CUSTOM)
_JHASH_INITVAL: Final = 0xDEADBEEF
_KEYS_WORDS: Final = 6  # struct flow_keys as it is hashed for IPv4: 48 bytes


@dataclass(frozen=True, slots=True)
class FlowArrays:
    """Flows as columns, each of shape (flows,) and dtype uint32."""

    src: U32
    dst: U32
    sport: U32
    dport: U32
    qpn: U32

    @classmethod
    def of(cls, flows: list[Flow] | tuple[Flow, ...]) -> Self:
        """The columns of some flows."""
        rows = [(_number(f.src_ip), _number(f.dst_ip), f.sport, f.dport, f.qpn) for f in flows]
        table = np.array(rows, dtype=np.uint32).reshape(len(rows), 5)
        return cls(*(np.ascontiguousarray(table[:, i]) for i in range(5)))

    def take(self, rows: npt.NDArray[np.intp]) -> FlowArrays:
        """Some of the rows."""
        return FlowArrays(self.src[rows], self.dst[rows], self.sport[rows], self.dport[rows], self.qpn[rows])


def _number(dotted: str) -> int:
    a, b, c, d = (int(part) for part in dotted.split("."))
    return a << 24 | b << 16 | c << 8 | d


def kernel_hash(flows: FlowArrays, seed: int, policy: int) -> U32:
    """fib_multipath_hash() for forwarded UDP packets, before its shift by one.

    policy: 0 (addresses; 2 is the same for packets that carry no other IP packet), 1 (5-tuple), or 3 with fields 0x37,
    which hashes as 1 and then once more. ValueError for others.
    """
    if policy not in POLICIES:
        raise ValueError(f"fib_multipath_hash_policy {policy} is not modelled; {POLICIES} are")
    key = (seed << 32) | seed  # fib_multipath_hash_construct_key: both halves alike
    words = _flow_keys(flows, addresses_only=policy in (POLICY_L3, POLICY_INNER))
    low = (siphash24(words, key, key) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    low[low == 0] = 1  # __flow_hash_from_keys
    if policy == POLICY_CUSTOM:
        # fib_multipath_custom_hash_skb: outer and inner hash are mixed even when there is no inner one.
        return jhash_2words(low, np.zeros_like(low), 0)
    return low


def e_ecmp_hash(flows: FlowArrays, seed: int) -> U32:
    """What hash.c computes: jhash2 of source, destination, ports (source << 16 | destination) and destination QP."""
    ports = flows.sport << np.uint32(16) | flows.dport
    return jhash2(np.stack([flows.src, flows.dst, ports, flows.qpn], axis=1), seed)


def _flow_keys(flows: FlowArrays, *, addresses_only: bool = False) -> U64:
    """struct flow_keys from its hashed part on, as (flows, 6) little-endian words, made direction-symmetric.

    __flow_hash_consistentify compares addresses and ports as they lie in memory, in network order, read by a
    little-endian machine; the two swaps are independent.
    """
    src, dst = flows.src.byteswap(), flows.dst.byteswap()
    sport, dport = flows.sport.astype(np.uint16).byteswap(), flows.dport.astype(np.uint16).byteswap()
    low_address, high_address = np.minimum(src, dst), np.maximum(src, dst)
    low_port, high_port = np.minimum(sport, dport), np.maximum(sport, dport)
    words = np.zeros((len(src), _KEYS_WORDS * 2), dtype="<u4")
    if not addresses_only:
        words[:, 0] = IPPROTO_UDP << 16  # byte 2: basic.ip_proto
        words[:, 7] = low_port.astype(np.uint32) | high_port.astype(np.uint32) << np.uint32(16)  # bytes 28 to 31
    words[:, 9] = low_address  # bytes 36 to 39
    words[:, 10] = high_address  # bytes 40 to 43
    return words.view("<u8").astype(np.uint64, copy=False)


def _rotl64(x: U64, n: int) -> U64:
    return x << np.uint64(n) | x >> np.uint64(64 - n)


def siphash24(words: U64, key0: int, key1: int) -> U64:
    """SipHash-2-4 of messages of whole 64-bit words; words has shape (messages, n), n below 32.

    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; lib/siphash.c.
    """
    count, length = words.shape
    state = [
        np.full(count, key ^ constant, dtype=np.uint64)
        for key, constant in (
            (key0, 0x736F6D6570736575),
            (key1, 0x646F72616E646F6D),
            (key0, 0x6C7967656E657261),
            (key1, 0x7465646279746573),
        )
    ]
    last = np.full(count, (length * 8) << 56, dtype=np.uint64)
    for word in (*(words[:, i] for i in range(length)), last):
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _sip_rounds(state, 4)
    result: U64 = state[0] ^ state[1] ^ state[2] ^ state[3]
    return result


def _sip_rounds(state: list[U64], rounds: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(rounds):
        v0 = v0 + v1
        v1 = _rotl64(v1, 13) ^ v0
        v0 = _rotl64(v0, 32)
        v2 = v2 + v3
        v3 = _rotl64(v3, 16) ^ v2
        v0 = v0 + v3
        v3 = _rotl64(v3, 21) ^ v0
        v2 = v2 + v1
        v1 = _rotl64(v1, 17) ^ v2
        v2 = _rotl64(v2, 32)
    state[:] = [v0, v1, v2, v3]


def _rotl32(x: U32, n: int) -> U32:
    return x << np.uint32(n) | x >> np.uint32(32 - n)


def jhash2(words: U32, initval: int) -> U32:
    """jhash2() of messages of 32-bit words; words has shape (messages, n)."""
    count, length = words.shape
    a, b, c = (np.full(count, (_JHASH_INITVAL + (length << 2) + initval) & 0xFFFFFFFF, dtype=np.uint32) for _ in "abc")
    at = 0
    while length - at > 3:
        a, b, c = _jhash_mix(a + words[:, at], b + words[:, at + 1], c + words[:, at + 2])
        at += 3
    left = length - at
    if left == 0:
        return c
    a = a + words[:, at]
    b = b + words[:, at + 1] if left > 1 else b
    c = c + words[:, at + 2] if left > 2 else c
    return _jhash_final(a, b, c)


def jhash_2words(a: U32, b: U32, initval: int) -> U32:
    """jhash_2words(): two words and an implied third of zero."""
    start = np.uint32((_JHASH_INITVAL + (2 << 2) + initval) & 0xFFFFFFFF)
    return _jhash_final(a + start, b + start, np.full_like(a, start))


def _jhash_mix(a: U32, b: U32, c: U32) -> tuple[U32, U32, U32]:
    a = a - c ^ _rotl32(c, 4)
    c = c + b
    b = b - a ^ _rotl32(a, 6)
    a = a + c
    c = c - b ^ _rotl32(b, 8)
    b = b + a
    a = a - c ^ _rotl32(c, 16)
    c = c + b
    b = b - a ^ _rotl32(a, 19)
    a = a + c
    c = c - b ^ _rotl32(b, 4)
    b = b + a
    return a, b, c


def _jhash_final(a: U32, b: U32, c: U32) -> U32:
    c = (c ^ b) - _rotl32(b, 14)
    a = (a ^ c) - _rotl32(c, 11)
    b = (b ^ a) - _rotl32(a, 25)
    c = (c ^ b) - _rotl32(b, 16)
    a = (a ^ c) - _rotl32(c, 4)
    b = (b ^ a) - _rotl32(a, 14)
    return (c ^ b) - _rotl32(b, 24)
