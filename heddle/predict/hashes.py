"""The hashes by which switches choose among equal-cost paths, for arrays of flows.

In:  arrays with one row per flow: addresses as numbers (10.0.0.1 is 0x0a000001; IPv6 as four words, most significant
     first), ports, destination QPs; seeds, one for all rows or one per row.
Out: uint32 arrays; the kernel's selection uses them shifted right by one (31 bits).
Sources: net/ipv4/route.c fib_multipath_hash, net/ipv6/route.c rt6_multipath_hash, include/net/ip_fib.h,
net/core/flow_dissector.c, lib/siphash.c, include/linux/jhash.h, and heddle/switch/bpf/hash.c. selftest.py compares
them with the running kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import U32, U64
from heddle.fabric.hashmodes import POLICY_CUSTOM, POLICY_L4
from heddle.predict.forwarding import FlowArrays
from heddle.spec.routingpolicy import FIELDS_5_TUPLE, Udf

Seed = int | U32  # one for all rows, or one per row

IPPROTO_UDP: Final = 17
POLICY_L3: Final = 0
POLICY_INNER: Final = 2
POLICIES: Final = (POLICY_L3, POLICY_L4, POLICY_INNER, POLICY_CUSTOM)
FIELD_SRC: Final = 0x1  # FIB_MULTIPATH_HASH_FIELD_SRC_IP and the other bits of the outer packet
FIELD_DST: Final = 0x2
FIELD_PROTO: Final = 0x4
FIELD_LABEL: Final = 0x8
FIELD_SPORT: Final = 0x10
FIELD_DPORT: Final = 0x20
OUTER_FIELDS: Final = 0x3F
_L3_IPV6: Final = FIELD_SRC | FIELD_DST | FIELD_PROTO | FIELD_LABEL
_JHASH_INITVAL: Final = 0xDEADBEEF
_KEYS_WORDS: Final = {4: 12, 6: 18}  # struct flow_keys from its hashed part on: 48 bytes, and 72 with IPv6 addresses
_IPV6_WORDS: Final = 4


def kernel_hash(flows: FlowArrays, seed: Seed, policy: int, chosen: int = FIELDS_5_TUPLE) -> U32:
    """fib_multipath_hash() or rt6_multipath_hash() for forwarded UDP and TCP packets, before the shift by one.

    policy: 0 (addresses; for IPv6 also flow label and protocol), 1 (5-tuple), 2 (as 0, for packets without an inner IP
    packet), or 3 with `chosen` fields, a mask of FIELD_*: they are hashed, and the result is hashed again. ValueError
    for other policies.
    """
    if policy not in POLICIES:
        raise ValueError(f"fib_multipath_hash_policy {policy} is not modelled; {POLICIES} are")
    if policy == POLICY_CUSTOM and not chosen & OUTER_FIELDS:
        # fib_multipath_custom_hash_outer has nothing to hash; without an inner packet there are no inner fields.
        return jhash_2words(np.zeros(len(flows), np.uint32), np.zeros(len(flows), np.uint32), 0)
    seeds = np.asarray(seed, dtype=np.uint64)
    key = seeds << np.uint64(32) | seeds  # fib_multipath_hash_construct_key: both halves are equal
    low = (siphash24(flow_keys(flows, policy, chosen), key, key) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    low[low == 0] = 1  # __flow_hash_from_keys
    if policy == POLICY_CUSTOM:
        # fib_multipath_custom_hash_skb: outer and inner hash are mixed even without an inner one.
        return jhash_2words(low, np.zeros_like(low), 0)
    return low


def e_ecmp_hash(flows: FlowArrays, seed: Seed, udf: Udf | None = None) -> U32:
    """The hash of hash.c: jhash2 of e_ecmp_words. ValueError when the field differs between packets of one flow."""
    return jhash2(e_ecmp_words(flows, udf), seed)


def e_ecmp_words(flows: FlowArrays, udf: Udf | None = None, *, qpn: bool = True) -> U32:
    """Source, destination (one word each, four for IPv6), ports (source << 16 | destination), user-defined field.

    udf: None for the destination QP, or for zeros without `qpn`.
    """
    last = udf_values(flows, udf) if udf is not None else flows.qpn if qpn else np.zeros_like(flows.qpn)
    if last is None:
        raise ValueError("this field differs between packets of one flow")
    ports = flows.sport << np.uint32(16) | flows.dport
    rows = [*flows.src.T, *flows.dst.T] if flows.ipv6 else [flows.src, flows.dst]
    return np.stack([*rows, ports, last]).T  # each column in one piece


def udf_values(flows: FlowArrays, udf: Udf) -> U32 | None:
    """The field of each flow's packets as a big-endian number; None when it differs between packets of one flow."""
    value = np.zeros(len(flows), dtype=np.uint32)
    for at in range(udf.offset, udf.offset + udf.bytes):
        byte = _header_byte(flows, udf.base, at)
        if byte is None:
            return None
        value = value << np.uint32(8) | byte
    return value


def _header_byte(flows: FlowArrays, base: str, at: int) -> U32 | None:
    """A byte of every packet's headers, counted from a base; None where packets of one flow differ."""
    before = {"l3": 0, "l4": 40 if flows.ipv6 else 20, "bth": 48 if flows.ipv6 else 28}
    at += before[base]
    if at >= before["bth"]:
        at -= before["bth"]
        if at in (2, 3):
            return np.full(len(flows), 0xFF, dtype=np.uint32)  # the default partition key
        return _byte(flows.qpn, at - 4) if at in (5, 6, 7) else None  # 4 has FECN and BECN, 8 on differs
    if at >= before["l4"]:
        at -= before["l4"]
        return _byte(flows.sport << np.uint32(16) | flows.dport, at) if at < 4 else None
    first, fixed = (8, {2: 0, 3: 0, 6: IPPROTO_UDP}) if flows.ipv6 else (12, {0: 0x45, 6: 0x40, 7: 0, 9: IPPROTO_UDP})
    if at >= first:
        return _byte(np.column_stack([flows.src, flows.dst])[:, (at - first) // 4], (at - first) % 4)
    # Length, identification, TTL and checksum differ between packets, and a switch may set bits of the traffic class.
    return np.full(len(flows), fixed[at], dtype=np.uint32) if at in fixed else None


def _byte(words: U32, at: int) -> U32:
    """Byte `at`, from 0, of big-endian words."""
    return words >> np.uint32(24 - 8 * at) & np.uint32(0xFF)


def flow_keys(flows: FlowArrays, policy: int, chosen: int = FIELDS_5_TUPLE) -> U64:
    """struct flow_keys from its hashed part on, as (flows, 6) little-endian words, (flows, 9) with IPv6.

    They are direction-symmetric, as __flow_hash_consistentify makes them: addresses and ports are in network order and
    compared as a little-endian machine reads them (IPv6 addresses byte by byte). The two swaps are independent.
    """
    if policy in (POLICY_L3, POLICY_INNER):
        chosen = _L3_IPV6 if flows.ipv6 else FIELD_SRC | FIELD_DST
    elif policy == POLICY_L4:
        chosen = FIELDS_5_TUPLE
    pairs = np.zeros((_KEYS_WORDS[6 if flows.ipv6 else 4] // 2, len(flows), 2), dtype="<u4")  # each column in one piece
    words = [pairs[at // 2, :, at % 2] for at in range(2 * len(pairs))]
    if chosen & FIELD_PROTO:
        words[0][:] = flows.protocol << np.uint32(16)  # byte 2: basic.ip_proto
    if chosen & FIELD_LABEL and flows.ipv6 and len(flows.label):
        # ip6_flowlabel() is in network order, the dissector's label in host order.
        words[1][:] = flows.label.byteswap() if policy == POLICY_L3 else flows.label
    if chosen & (FIELD_SPORT | FIELD_DPORT):
        none = np.zeros(len(flows), dtype=np.uint16)
        sport = flows.sport.astype(np.uint16).byteswap() if chosen & FIELD_SPORT else none
        dport = flows.dport.astype(np.uint16).byteswap() if chosen & FIELD_DPORT else none
        low, high = np.minimum(sport, dport).astype(np.uint32), np.maximum(sport, dport).astype(np.uint32)
        words[7][:] = low | high << np.uint32(16)  # bytes 28 to 31
    src = flows.src if chosen & FIELD_SRC else np.zeros_like(flows.src)
    dst = flows.dst if chosen & FIELD_DST else np.zeros_like(flows.dst)
    if flows.ipv6:
        swap = _less(dst, src)[:, None]
        low, high = np.where(swap, dst, src).byteswap(), np.where(swap, src, dst).byteswap()
        for at in range(_IPV6_WORDS):
            words[9 + at][:], words[13 + at][:] = low[:, at], high[:, at]
    else:
        low, high = src.byteswap(), dst.byteswap()
        words[9][:] = np.minimum(low, high)  # bytes 36 to 39
        words[10][:] = np.maximum(low, high)  # bytes 40 to 43
    return pairs.view("<u8")[:, :, 0].astype(np.uint64, copy=False).T


def _less(a: U32, b: U32) -> npt.NDArray[np.bool_]:
    """Rows of four words where a < b, as memcmp() in network order compares."""
    less: npt.NDArray[np.bool_] = np.zeros(len(a), dtype=bool)
    for word in reversed(range(_IPV6_WORDS)):
        less = (a[:, word] < b[:, word]) | ((a[:, word] == b[:, word]) & less)
    return less


def siphash24(words: U64, key0: int | U64, key1: int | U64) -> U64:
    """SipHash-2-4 of messages of whole 64-bit words; words has shape (messages, n), n below 32.

    key0, key1: the two halves of the key, one for all messages or one per message. First words that are equal in all
    messages are hashed once for each run of messages with one key.
    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; lib/siphash.c.
    """
    count, length = words.shape
    keys = np.stack(np.broadcast_arrays(*(np.atleast_1d(np.asarray(key, dtype=np.uint64)) for key in (key0, key1))))
    begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))[:count]
    one, two = keys[:, begins]
    state = [one ^ _SIP[0], two ^ _SIP[1], one ^ _SIP[2], two ^ _SIP[3]]
    same = next((at for at in range(length) if (words[1:, at] != words[:1, at]).any()), length)
    for at in range(same):
        _sip_word(state, words[:1, at])
    state = [np.repeat(part, np.diff(np.append(begins, count))) for part in state]
    for at in range(same, length):
        _sip_word(state, words[:, at])
    _sip_word(state, np.uint64((length * 8) << 56))
    state[2] ^= np.uint64(0xFF)
    _sip_rounds(state, 4)
    result: U64 = state[0] ^ state[1] ^ state[2] ^ state[3]
    return result


_SIP: Final = tuple(map(np.uint64, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)))


def _sip_word(state: list[U64], word: U64 | np.uint64) -> None:
    state[3] ^= word
    _sip_rounds(state, 2)
    state[0] ^= word


def _sip_rounds(state: list[U64], rounds: int) -> None:
    """Rounds, in place: memory for each operation would take longer than the operations."""
    v0, v1, v2, v3 = state
    spare = np.empty_like(v0)
    for _ in range(rounds):
        v0 += v1
        _rotate(v1, 13, spare)
        v1 ^= v0
        _rotate(v0, 32, spare)
        v2 += v3
        _rotate(v3, 16, spare)
        v3 ^= v2
        v0 += v3
        _rotate(v3, 21, spare)
        v3 ^= v0
        v2 += v1
        _rotate(v1, 17, spare)
        v1 ^= v2
        _rotate(v2, 32, spare)


def _rotate(x: U64, n: int, spare: U64) -> None:
    np.right_shift(x, np.uint64(64 - n), out=spare)
    x <<= np.uint64(n)
    x |= spare


def _rotl32(x: U32, n: int) -> U32:
    return x << np.uint32(n) | x >> np.uint32(32 - n)


def jhash2(words: U32, initval: Seed) -> U32:
    """jhash2() of messages of 32-bit words; words has shape (messages, n). initval: one for all, or one per message."""
    count, length = words.shape
    start = np.zeros(count, np.uint32) + np.asarray(initval, dtype=np.uint32)
    start += np.uint32(_JHASH_INITVAL + (length << 2))
    a, b, c = start, start, start
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


Row = tuple[str, tuple[int, ...]]

_M32: Final = 0xFFFFFFFF
_M64: Final = (1 << 64) - 1
_GOLDEN: Final = 0xDEADBEEF
_MIX: Final = (("a", "c", 4, "b"), ("b", "a", 6, "c"), ("c", "b", 8, "a"),
               ("a", "c", 16, "b"), ("b", "a", 19, "c"), ("c", "b", 4, "a"))  # fmt: skip
_FINAL: Final = (("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16),
                 ("a", "c", 4), ("b", "a", 14), ("c", "b", 24))  # fmt: skip


def _rol32(x: int, n: int) -> int:
    return (x << n | x >> (32 - n)) & _M32


def _rol64(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & _M64


def jhash_steps(words: Sequence[int], initval: int) -> tuple[list[Row], int]:
    """jhash2 (include/linux/jhash.h): the state (a, b, c) after each step, and the hash."""
    start = (_GOLDEN + 4 * len(words) + initval) & _M32
    s = {"a": start, "b": start, "c": start}
    rows: list[Row] = [(f"a = b = c = deadbeef + {4 * len(words):x} + {initval:x}", tuple(s.values()))]
    left = list(words)
    while len(left) > 3:
        for name, word in zip("abc", left, strict=False):
            s[name] = (s[name] + word) & _M32
        rows.append((f"+ {' '.join(f'{word:08x}' for word in left[:3])}", tuple(s.values())))
        for x, y, n, z in _MIX:  # __jhash_mix: x -= y, x ^= rol(y, n), y += z
            s[x] = (s[x] - s[y]) & _M32 ^ _rol32(s[y], n)
            s[y] = (s[y] + s[z]) & _M32
            rows.append((f"{x} = ({x} - {y}) ^ rol({y}, {n}), then {y} = {y} + {z}", tuple(s.values())))
        left = left[3:]
    if not left:
        return rows, s["c"]
    for name, word in zip("abc", left, strict=False):
        s[name] = (s[name] + word) & _M32
    rows.append((f"+ {' '.join(f'{word:08x}' for word in left)}", tuple(s.values())))
    for x, y, n in _FINAL:  # __jhash_final
        s[x] = ((s[x] ^ s[y]) - _rol32(s[y], n)) & _M32
        rows.append((f"{x} = ({x} ^ {y}) - rol({y}, {n})", tuple(s.values())))
    return rows, s["c"]


def siphash_steps(words: Sequence[int], key: int) -> tuple[list[Row], int]:
    """SipHash-2-4 of 64-bit words, with equal halves of the key: v0 to v3 after each word, and the value."""
    v = [key ^ c for c in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)]
    rows: list[Row] = [("key ^ somepseudorandomlygeneratedbytes", tuple(v))]
    names = [f"word {at}" for at in range(len(words))] + ["length"]
    for name, word in zip(names, (*words, len(words) * 8 << 56), strict=True):
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
        rows.append((f"v3 ^= {word:016x}, 2 rounds, v0 ^= it ({name})", tuple(v)))
    v[2] ^= 0xFF
    _rounds(v, 4)
    rows.append(("v2 ^= ff, 4 rounds", tuple(v)))
    return rows, v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _M64
        v[1] = _rol64(v[1], 13) ^ v[0]
        v[0] = _rol64(v[0], 32)
        v[2] = (v[2] + v[3]) & _M64
        v[3] = _rol64(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _M64
        v[3] = _rol64(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _M64
        v[1] = _rol64(v[1], 17) ^ v[2]
        v[2] = _rol64(v[2], 32)


def bounds(weights: Sequence[int]) -> list[int]:
    """The last 31-bit value of each next hop: round(running weight * 2^31 / total) - 1."""
    total, running, found = sum(weights), 0, []
    for weight in weights:
        running += weight
        found.append((2 * (running << 31) + total) // (2 * total) - 1)
    return found
