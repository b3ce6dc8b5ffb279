"""Hashes against published vectors and the kernel's arithmetic; words after `./inv hashing`; flows in words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from heddle.base.families import Network
from heddle.base.problems import InputError
from heddle.cli.hashing_change import ExactRows, _names, _options, _text, entry_rows, file_rows
from heddle.fabric.hashmodes import MODES
from heddle.fabric.shapes import build, clos
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.forwarding import FlowArrays, forwarding_of
from heddle.predict.hashes import (
    bounds,
    e_ecmp_hash,
    jhash2,
    jhash_2words,
    jhash_steps,
    kernel_hash,
    siphash24,
    siphash_steps,
    udf_values,
)
from heddle.predict.rules import HashingRule
from heddle.predict.walk import element, ports_of, spreads
from heddle.runs.explain import Step, made_up
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, Udf
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow
from tests.answers import Answers


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
    # Equal next hops are counted without a search: the same at every bound.
    for many in (2, 3, 7, 18, 37, 252, 1023):
        bounds = [(2 * (n << 31) + many) // (2 * many) - 1 for n in range(1, many)]
        assert chosen([1] * many, bounds) == [*range(many - 1)]
        assert chosen([1] * many, [bound + 1 for bound in bounds]) == [*range(1, many)]
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
        alone = [int(hashed(flows.take(slice(i, i + 1)), i + 1)[0]) for i in range(39)]
        assert hashed(flows, seeds).tolist() == alone


@pytest.mark.parametrize(("mode", "policy", "distinct"), [("flow", 3, 20), ("flow", 0, 4), ("e-ecmp", 1, 60)])
def test_inputs_are_equal_where_what_is_hashed_is(mode: str, policy: int, distinct: int) -> None:
    src, sport, qpn = (each.ravel().astype(np.uint32) for each in np.mgrid[1:5, 1:6, 1:4])
    flows = FlowArrays(src, np.full_like(src, 9), sport, np.full_like(src, 4791), qpn)
    inputs = HashingRule(mode, policy).inputs(flows)
    assert inputs is not None
    assert len(np.unique(inputs)) == distinct


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
    # Dead next hops do not hide a shorter prefix, and a route that discards does.
    dead: dict[Network, tuple[NextHop, ...]] = {
        IPv4Network(prefix): tuple(replace(hop, dead=True) for hop in hops(1, 1))
        for prefix in ("10.0.1.0/24", "10.9.1.0/24")
    }
    fib = Fib("rtsw1", {**routes, **dead})
    for address, prefix in (("10.0.1.6", "10.0.0.0/8"), ("10.0.1.5", "10.0.1.4/31"), ("10.9.1.1", "10.9.0.0/16")):
        assert fib.match(IPv4Address(address)) == IPv4Network(prefix)
    assert Fib("rtsw1", dead).match(IPv4Address("10.0.1.6")) == IPv4Network("10.0.1.0/24"), "it says why packets end"
    assert Fib.from_json(fib.to_json()) == fib


ROOT = Path(__file__).resolve().parents[2]
FABRIC = build(ClosSpec(name="tiny", racks=2, ctsw=2, hosts_per_rack=2))


@pytest.mark.parametrize("key", ["gap", "hash.gap", "routing.hash.gap"])
def test_a_key_is_its_last_word_or_its_path_in_the_fabric_file(key: str) -> None:
    assert _options(FABRIC, "flowlet", [f"{key}=5ms"])[0].gap_ns == 5_000_000
    assert _options(FABRIC, "flowlet", ["routing.seed=7", "udf.bytes=2"])[1] == 7


def test_an_option_that_does_nothing_is_refused_and_says_where_it_would(answers: Answers) -> None:
    answers(lambda mode, setting: _options(FABRIC, mode, [setting]))


def test_keys_of_hashing_and_of_switches() -> None:
    routing = {"hash": {"gap": "5ms", "choice": "round-robin"}, "resilient": True}
    fabric = build(ClosSpec.model_validate({"name": "tiny", "racks": 2, "ctsw": 2, "routing": routing}))
    for mode in MODES:
        assert _options(fabric, mode, ["buckets=64"])[0].buckets == 64
    # Switches that are none are not all.
    assert _names([]) == []
    assert _names(["rtsw1, rtsw2", "ctsw1"]) == ["rtsw1", "rtsw2", "ctsw1"]
    with pytest.raises(InputError, match="--switch , names no switch"):
        _names([","])


def test_tables_may_be_large(tmp_path: Path) -> None:
    table = tmp_path / "te.csv"
    rows = "".join(f"rtsw1,{sport},10.0.1.0/24,eth1\r\n" for sport in range(1, 10_001))
    table.write_text(f"\ufeffswitch,sport,prefix,port\r\n{rows}", newline="")
    assert len(file_rows(str(table))) == 10_000
    with pytest.raises(InputError, match=r"is a directory\n  hint: name a file in it"):
        file_rows(str(tmp_path))
    exact = ExactRows()
    exact.add(entry_rows(["rtsw1 x 10.0.1.0/24 eth1", "rtsw1,4,10.0.1.0/24,eth1"]))
    assert [str(problem).partition("\n")[0] for problem in exact.problems.found] == [
        "--entry  rtsw1 x is not a port number"
    ]
    assert list(exact.tables) == ["rtsw1"]


def test_steps_and_tables_stay_within_a_hundred_columns() -> None:
    lines = Step("SipHash", tuple(siphash_steps([1, 2, 3], 0xA5FF9E0CA5FF9E0C)[0])).lines()
    assert max(map(len, lines)) <= 96
    assert [line for line in lines if "length" in line]
    # A table of switches with many options stays within a hundred columns.
    options, _ = _options(
        FABRIC, "flowlet", ["gap=1500us", "first=load", "resilient=true", "udf.base=l3", "udf.offset=12"]
    )
    row = SwitchHashing("rtsw1", "flowlet", 4294967295, 1, 0x37, options)
    counts = dict.fromkeys(("steered", "fell_back", "repicks", "misses"), 123456)
    text = _text("tiny", [(row, counts)])
    assert max(map(len, text.splitlines())) <= 100
    assert "udf l3+12:3, gap 1500us, by load, 256 buckets" in text and "123456" in text


def test_the_columns_are_explained_below_the_table_in_help_and_in_the_docs() -> None:
    row = SwitchHashing("rtsw1", "flow", 7, 3, 0x37, DEFAULT_OPTIONS)
    counts = dict.fromkeys(("steered", "fell_back", "repicks", "misses"), 0)
    head, *lines = _text("tiny", [(row, counts)]).splitlines()
    below = " ".join(lines[1:])
    argv = [sys.executable, str(ROOT / "tasks.py"), "hashing", "--help"]
    help_text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    doc = (ROOT / "docs/hashing.md").read_text()
    for column in head.split("seed")[1].replace("fell back", "fell_back").split():
        name = column.replace("_", " ")
        assert f"{name}: " in below, name
        assert f"| `{name}` |" in doc, name
        assert name in help_text.partition("Columns:")[2], name
    assert max(map(len, lines)) <= 100


TINY = clos.build(ClosSpec(name="tiny", racks=2, ctsw=2, hosts_per_rack=2))


def test_steps_end_where_the_arrays_arithmetic_ends() -> None:
    chance = np.random.default_rng(5)
    for length in range(1, 12):
        words = chance.integers(0, 1 << 32, (1, length), dtype=np.uint64).astype(np.uint32)
        rows, value = jhash_steps([int(word) for word in words[0]], 0xA5FF9E0C)
        assert value == int(jhash2(words, 0xA5FF9E0C)[0])
        assert all(0 <= state < 1 << 32 for _, states in rows for state in states)
    for length in (6, 9):
        long = chance.integers(0, 1 << 63, (1, length), dtype=np.uint64)
        key = 0xA5FF9E0C << 32 | 0xA5FF9E0C
        rows, value = siphash_steps([int(word) for word in long[0]], key)
        assert value == int(siphash24(long, key, key)[0]) and len(rows) == length + 3
    assert bounds([1, 1, 1]) == [715827882, 1431655764, 2147483647]


def test_a_flow_is_named_by_its_ends_and_steps_of_its_path_are_read() -> None:
    flow = made_up(TINY, "host1,host4,qpn=0x101,sport=50000")
    assert (flow.src, flow.dst, flow.qpn, flow.sport, flow.dport) == ("host1", "host4", 0x101, 50000, 4791)
    assert flow.first_hop == TINY.by_name["host1"].ports[0].peer_ref
    assert made_up(TINY, "host1:eth1,host4").src_ip == flow.src_ip
    # Steps of a path are written and read.
    for ports, word in (
        (["rtsw1:eth1"], "rtsw1:eth1"),
        (["rtsw1:eth1", "rtsw1:eth3"], "rtsw1:{eth1,eth3}"),
        (["ctsw1:eth2", "ctsw2:eth2"], "{ctsw1:eth2,ctsw2:eth2}"),
    ):
        assert element(ports) == word
        assert list(ports_of(word)) == ports
        assert spreads([word]) is (len(ports) > 1)


def test_a_flow_that_cannot_be_is_refused_and_says_why(answers: Answers) -> None:
    answers(lambda word: made_up(TINY, word))
