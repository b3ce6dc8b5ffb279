"""What an offline prediction costs: the largest fabric that is asked for, and whether time grows as flows do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heddle.base.events import Observer

from . import Figure, at_most

_INV: Final = Path(__file__).resolve().parents[2] / "inv"
# 8 zones x 252 RTSW x 18 CTSW, joined by 18 ATSW: 32,256 NICs.
_FABRIC: Final = """name: offline
zones: 8
racks: 252
ctsw: 18
atsw: 18
oversubscription: 7
hosts_per_rack: 2
nics_per_host: 8
"""
_PLAN: Final = "ring,size=256M,placement=cyclic"  # cyclic: every connection leaves its rack, zones are crossed
_TIMES: Final = 3


def figures(observer: Observer) -> Iterator[Figure]:
    """32,256 GPUs x 16 QPs with all modes compared; then seconds of the walk alone for 16 and for 32 QPs."""
    with tempfile.TemporaryDirectory() as scratch:
        fabric = Path(scratch, "offline.yml")
        fabric.write_text(_FABRIC)
        observer.say("32,256 GPUs x 16 QPs, all modes")
        seconds, megabytes = _measured([str(_INV), "predict", str(fabric), "--workload", f"{_PLAN},qps=16"])
    yield at_most("predict 32,256 GPUs x 16 QPs, 3 tiers", seconds, "s", 10.0)
    yield at_most("predict 32,256 GPUs x 16 QPs: peak memory", megabytes / 1024, "GB", 4.0)
    observer.say("the same with 32 QPs")
    one, two = (_walked(qps) for qps in (16, 32))
    yield Figure("predict: walk of 516,096 flows, 3 modes", one, "s")
    yield at_most("predict: walk of twice the flows", two / one, "x", 2.5, "walk of the flows")


def _measured(argv: list[str]) -> tuple[float, float]:
    """Seconds, and megabytes of the largest process, of the quickest of some runs of a command."""
    code = (
        "import json, resource, subprocess, sys, time; start = time.monotonic();"
        "subprocess.run(json.loads(sys.argv[1]), check=True, capture_output=True);"
        "print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    rows = []
    for _ in range(_TIMES):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(argv)], check=True, capture_output=True, text=True
        )
        seconds, megabytes = (float(word) for word in done.stdout.split())
        rows.append((seconds, megabytes))
    return min(row[0] for row in rows), max(row[1] for row in rows)


def _walked(qps: int) -> float:
    """Seconds of the quickest of some walks of all flows under all modes that give them a path."""
    from heddle.endpoints.workloadfile import load_workload
    from heddle.fabric.shapes import build
    from heddle.offline.loads import Scenario, carry, nics_of, traffic_of
    from heddle.offline.wires import HASHED, forwarding_of, rule_of, rules_of, steering_of, wires_of
    from heddle.spec.shapes.clos import ClosSpec
    from heddle.spec.yamlfile import parse

    fabric = build(ClosSpec.model_validate(parse(_FABRIC, "offline.yml").data))
    wires, (traffic,) = wires_of(fabric), traffic_of(fabric, load_workload(f"{_PLAN},qps={qps}").workload)
    nics, forwarding = nics_of(wires, traffic), forwarding_of(wires)
    steering = steering_of(wires, forwarding)
    scenarios = [
        Scenario(mode, forwarding, rules_of(wires, rule_of(fabric.policy, mode), steering, wires.seeds))
        for mode in HASHED
    ]
    best = float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        carry(wires, traffic, nics, scenarios)
        best = min(best, time.perf_counter() - start)
    return best
