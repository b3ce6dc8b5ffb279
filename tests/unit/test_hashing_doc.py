"""The example of docs/hashing.md has the words, the steps and the hash that `./inv hashing --explain` works out."""

from __future__ import annotations

import re
from pathlib import Path

from heddle.fabric.fabricfile import load_fabric
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.hashes import e_ecmp_hash
from heddle.runs.explain import jhash_steps
from heddle.traffic.options import run_options
from heddle.traffic.plan import build_plan

DOC = (Path(__file__).resolve().parents[2] / "docs" / "hashing.md").read_text()


def test_the_example_is_right() -> None:
    options = run_options(qps=16, placement="cyclic", sport="fixed")
    fabric = load_fabric("demo", overrides=["routing.ecmp=e-ecmp"]).fabric
    flow = next(f for f in build_plan(fabric, options).flows() if (f.src, f.dst, f.qpn) == ("host1", "host5", 266718))
    seed = fabric.by_name["rtsw1"].hash_seed
    assert (flow.sport, flow.first_hop, seed) == (49152, "rtsw1:eth5", 2784992780)
    words = [0x0A000001, 0x0A000101, flow.sport << 16 | flow.dport, flow.qpn]
    example = DOC[DOC.index("| source 10.0.0.1") : DOC.index("The hash is")]
    steps, value = jhash_steps(words, 2784992780)
    shown = {int(word, 16) for word in re.findall(r"`([0-9a-f]{8})`", example)}
    assert {*words, 2784992780} <= shown
    assert {word for _, states in steps for word in states} == shown - {*words, 2784992780, 0xDEADBEEF}
    assert f"The hash is `{value:08x}`, and h is half of it: {value >> 1}." in DOC
    assert e_ecmp_hash(FlowArrays.of([flow]), 2784992780).tolist() == [value]
