"""The manual says what the code does: keys of a fabric file, limits of traffic, the example of hashing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

from heddle.fabric.shapes import clos, rail
from heddle.host import capacity as saturation
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import MARK
from heddle.traffic.collectives import patterns
from heddle.wire.layout import OVERHEAD_BYTES
from tests.unit import run_samples as samples

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


TEXT = "\n".join(page(name) for name in ("run-table", "trust", "algorithms"))
WORDS = " ".join(TEXT.split())


def test_limits_causes_and_names_are_those_of_the_code() -> None:
    assert f"more than {saturation.FULL:.0%}".replace("%", " %") in WORDS
    assert f"at least {saturation.TOOK_PART:.0%}".replace("%", " %") in WORDS
    assert f"processor for more than {saturation.WAITED:.0%}".replace("%", " %") in WORDS
    assert f"less than {saturation.LEAST_S:.1f} s is too short" in WORDS
    assert f"{OVERHEAD_BYTES} bytes for each full packet" in WORDS
    assert f"{4096 / (4096 + OVERHEAD_BYTES):.1%}".replace("%", " %") in WORDS
    # Every cause and every collective has its row.
    rows = re.findall(r"^\| `([a-z-]+)`[ |(]", TEXT, re.MULTILINE)
    assert set(get_args(saturation.CauseKind)) <= set(rows)
    assert {collective for collective, _ in patterns()} <= set(re.findall(r"`([a-z-]+)`", TEXT))
    # The names of the document exist.
    document = samples.result().to_json()
    assert "unreliable" in document
    for name in re.findall(r"`machine\.(\w+)`", TEXT):
        assert name in document["machine"], name


def test_the_delays_of_shapes_are_those_of_the_code() -> None:
    text = page("congestion-control")
    found = re.findall(r"^\| `(clos|rail)` \| (\w+ to \w+) \|[^|]+\| (\S+) (ns|us) \|", text, re.MULTILINE)
    delays = [float(value) * (1000 if unit == "us" else 1) for _, _, value, unit in found]
    of_clos = [level.uplink_ns for level in clos.LEVELS if level.uplink_ns]
    assert delays == [*of_clos, rail._HOST_NS, rail._LEAF_NS]


def test_the_verdict_on_the_host_cpu_is_quoted_as_it_is_printed() -> None:
    lines = re.findall(r"^#UNRELIABLE: .*", page("trust"), re.MULTILINE)
    text = "processor 0: 100% busy (5% in softirqs), 55% of the packets passed it"
    causes = [saturation.Cause("processor", size, 0, sure=False, text=text) for size in (512 << 10, 4 << 20)]
    phase = saturation.Phase(64 << 10, 1.0, 1.0, (), (), 0, judged=True)
    phases = tuple(replace(phase, size=size) for size in (64 << 10, 512 << 10, 4 << 20))
    use = MachineUse(1.0, 1.0, 0.0, 0, 0, 2000, 3000, phases, tuple(causes))
    assert lines == [f"{MARK} {line}" for line in use.doubt_lines()][:2]
