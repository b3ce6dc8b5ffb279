"""The hashes against published vectors, selection against the kernel's arithmetic, tables against plain examples."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Literal

import numpy as np
import pytest

from heddle.base.families import Network
from heddle.fabric.policy import Udf
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.forwarding import forwarding_of
from heddle.predict.hashes import e_ecmp_hash, jhash2, jhash_2words, kernel_hash, siphash24, udf_values
from heddle.traffic.flow import Flow


def hops(*weights: int, dead: tuple[int, ...] = ()) -> tuple[NextHop, ...]:
    return tuple(NextHop(f"eth{i + 1}", i + 2, "169.254.0.1", w, i in dead) for i, w in enumerate(weights))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0x726FDB47DD0E0E31),
        (8, 0x93F5F5799A932462),
        (16, 0x3F2ACC7F57C29BDB),
        (24, 0xB8AD50C6F649AF94),
        (48, 0xE612A3CB9ECBA951),
    ],
)
def test_siphash_gives_the_reference_vectors(length: int, expected: int) -> None:
    """Aumasson and Bernstein's (vectors_sip64; lib/tests/siphash_kunit.c): key 00..0f, input 00, 01, ..."""
    key = np.frombuffer(bytes(range(16)), dtype="<u8").tolist()
    words = np.frombuffer(bytes(range(length)), dtype="<u8").reshape(1, length // 8)
    assert int(siphash24(words, *key)[0]) == expected


def test_jhash_gives_lookup3_hashword() -> None:
    # jhash2 is Bob Jenkins' lookup3 hashword(); his driver prints these for the empty message.
    empty = np.zeros((1, 0), dtype=np.uint32)
    assert int(jhash2(empty, 0)[0]) == 0xDEADBEEF
    one = np.array([[1, 2]], dtype=np.uint32)
    assert jhash2(one, 7)[0] == jhash_2words(one[:, 0], one[:, 1], 7)[0]


def test_the_kernel_hash_does_not_see_direction_or_the_qp() -> None:
    there = Flow("host1", "host2", "10.0.0.1", "10.0.1.1", 51234, 7, "rtsw1:eth5")
    back = Flow("host2", "host1", "10.0.1.1", "10.0.0.1", 4791, 9, "rtsw2:eth5", dport=51234)
    for policy in (0, 1, 2, 3):
        assert len(set(kernel_hash(FlowArrays.of([there, back]), 99, policy).tolist())) == 1
    with pytest.raises(ValueError, match="policy 4 is not modelled"):
        kernel_hash(FlowArrays.of([there]), 99, 4)


def chosen(weights: list[int], values: list[int], *, modulo: bool = False) -> list[int]:
    """The index of the next hop that each 31-bit value takes in one group, which others stand before and behind."""
    groups = [((7, 8), (1, 2), False), (tuple(range(len(weights))), tuple(weights), modulo), ((9,), (1,), False)]
    table = np.array([[1]], dtype=np.int32)
    forwarding = forwarding_of(["s"], [f"s:eth{i}" for i in range(10)], [-1] * 10, table, groups)
    which = np.ones(len(values), dtype=np.int32)
    return [int(port) for port in forwarding.choose(which, np.array(values, dtype=np.uint32))]


def test_the_kernels_bounds_are_rounded_and_compared_as_the_kernel_does() -> None:
    assert chosen([1, 1, 1], [715827882, 715827883, 1431655764, 1431655765, 2**31 - 1]) == [0, 1, 1, 2, 2]
    assert chosen([1], [0, 2**31 - 1]) == [0, 0]
    # DIV_ROUND_CLOSEST_ULL: 10 * 2^31 / 16 and 13 * 2^31 / 48 are whole and not.
    for weights in ([10, 6], [13, 35], [1, 2, 3, 10]):
        total, running = sum(weights), 0
        for at, weight in enumerate(weights[:-1]):
            running += weight
            bound = (2 * (running << 31) + total) // (2 * total) - 1
            assert chosen(weights, [bound, bound + 1]) == [at, at + 1]
    # The first next hop whose bound is not below the hash is taken.
    edges = [0, 0x1FFFFFFF, 0x20000000, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF]
    assert chosen([1, 1, 1, 1], edges) == [0, 0, 1, 1, 2, 3]
    assert chosen([1, 1], edges) == [0, 0, 0, 0, 1, 1]
    # A resilient group of the kernel is indexed by the rest of a division.
    assert chosen([1] * 5, [0, 4, 5, 12, 2**31 - 1], modulo=True) == [0, 4, 0, 2, (2**31 - 1) % 5]


def test_every_row_may_have_a_seed_of_its_own() -> None:
    rows = [Flow("host1", "host2", f"10.0.0.{i}", "10.0.1.1", 50_000 + i, i, "rtsw1:eth5") for i in range(1, 40)]
    flows = FlowArrays.of(rows)
    seeds = np.arange(1, 40, dtype=np.uint32)
    for hashed in (lambda f, s: kernel_hash(f, s, 3), lambda f, s: kernel_hash(f, s, 1), e_ecmp_hash):
        alone = [int(hashed(flows.part(i, i + 1), i + 1)[0]) for i in range(39)]
        assert hashed(flows, seeds).tolist() == alone


def test_a_user_defined_field_reads_the_bytes_of_a_packet_and_none_that_change_within_a_flow() -> None:
    for src, dst, l4 in (("10.0.0.1", "10.0.1.1", 20), ("fd00::1", "fd00:0:0:1::1", 40)):
        flows = FlowArrays.of([Flow("host1", "host2", src, dst, 0xC123, 0xABCDEF, "rtsw1:eth5")])

        def field(base: Literal["l3", "l4", "bth"], offset: int, count: int, of: FlowArrays = flows) -> int | None:
            value = udf_values(of, Udf(base, offset, count))
            return None if value is None else int(value[0])

        assert field("bth", 5, 3) == field("l4", 13, 3) == field("l3", l4 + 13, 3) == 0xABCDEF
        assert field("l4", 0, 4) == field("l3", l4, 4) == 0xC12312B7
        assert field("l3", l4 - 1, 1) == 1  # the last byte of the destination address
        assert field("bth", 9, 3) is None and field("bth", 0, 1) is None and field("bth", 4, 4) is None  # PSN, opcode
        assert field("l4", 4, 2) is None and field("l3", l4 // 20 * 2, 2) is None  # lengths


def test_the_longest_prefix_decides() -> None:
    routes: dict[Network, tuple[NextHop, ...]] = {
        IPv4Network("0.0.0.0/0"): hops(1),
        IPv4Network("10.0.0.0/8"): hops(1, 1),
        IPv4Network("10.0.1.0/24"): hops(1, 1, 1),
        IPv4Network("10.0.1.4/31"): hops(2),
        IPv4Network("10.9.0.0/16"): (),
    }
    fib = Fib("rtsw1", routes)
    for address, prefix in (
        ("10.0.1.5", "10.0.1.4/31"),
        ("10.0.1.6", "10.0.1.0/24"),
        ("10.0.2.6", "10.0.0.0/8"),
        ("192.0.2.1", "0.0.0.0/0"),
        ("10.9.1.1", "10.9.0.0/16"),
    ):
        assert fib.match(IPv4Address(address)) == IPv4Network(prefix)
        assert fib.lookup(IPv4Address(address)) == routes[IPv4Network(prefix)]
    assert Fib("rtsw1", {}).match(1) is None
    assert Fib.from_json(fib.to_json()) == fib
