"""The example of docs/hashing.md, followed by hand: every number in it, by integers of our own and not by hashes.py."""

from __future__ import annotations

import re
from pathlib import Path

from heddle.fabric.fabricfile import load_fabric
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.hashes import e_ecmp_hash
from heddle.traffic.flow import Flow
from heddle.traffic.options import run_options
from heddle.traffic.plan import build_plan

DOC = (Path(__file__).resolve().parents[2] / "docs" / "hashing.md").read_text()
MASK = 0xFFFFFFFF
WORD = re.compile(r"`([0-9a-f]{8})`")


def rol(x: int, n: int) -> int:
    return (x << n | x >> (32 - n)) & MASK


def example() -> Flow:
    options = run_options(qps=16, placement="cyclic", sport="fixed")
    plan = build_plan(load_fabric("demo", overrides=["routing.ecmp=e-ecmp"]).fabric, options)
    return next(flow for flow in plan.flows() if (flow.src, flow.dst, flow.qpn) == ("host1", "host5", 266718))


def rows(start: str, end: str) -> list[list[int]]:
    part = DOC[DOC.index(start) : DOC.index(end)]
    return [[int(word, 16) for word in WORD.findall(line)] for line in part.splitlines() if WORD.search(line)]


def test_the_words_are_those_of_the_run_that_the_text_names() -> None:
    seed = load_fabric("demo").fabric.by_name["rtsw1"].hash_seed
    flow = example()
    assert (flow.sport, flow.first_hop, seed) == (49152, "rtsw1:eth5", 2784992780)
    words = [0x0A000001, 0x0A000101, flow.sport << 16 | flow.dport, flow.qpn, seed]
    assert rows("| source 10.0.0.1", "a, b and c start") == [[word] for word in words]


def test_every_step_of_the_example_is_right() -> None:
    (k0,), (k1,), (k2,), (k3,), (seed,) = rows("| source 10.0.0.1", "a, b and c start")
    start = (0xDEADBEEF + 16 + seed) & MASK
    steps = [[(start + k) & MASK for k in (k0, k1, k2)]]
    for x, y, n in ((0, 2, 4), (1, 0, 6), (2, 1, 8), (0, 2, 16), (1, 0, 19), (2, 1, 4)):
        v = list(steps[-1])
        v[x] = (v[x] - v[y] & MASK) ^ rol(v[y], n)
        third = 3 - x - y
        v[y] = (v[y] + v[third]) & MASK
        steps.append(v)
    assert rows("| words added", "The fourth word") == steps
    v = [(steps[-1][0] + k3) & MASK, *steps[-1][1:]]
    assert f"`{start:08x}`" in DOC and f"`{v[0]:08x}`" in DOC
    gives = []
    for x, y, n in ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)):
        v[x] = ((v[x] ^ v[y]) - rol(v[y], n)) & MASK
        gives.append([v[x]])
    assert rows("| c = (c ^ b) - rol(b, 14)", "The hash is") == gives
    assert f"The hash is `{v[2]:08x}`, and h is half of it: {v[2] >> 1}." in DOC
    assert e_ecmp_hash(FlowArrays.of([example()]), seed).tolist() == [v[2]]
