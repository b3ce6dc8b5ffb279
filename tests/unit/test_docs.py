"""The manual says what the code does: keys of a fabric file, limits of traffic, the example of hashing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from heddle.base.declared import options_of
from heddle.endpoints.congestion.controlled import CONTROLLERS
from heddle.endpoints.congestion.dcqcn import PROFILES, Dcqcn
from heddle.endpoints.congestion.ratecontrol import NicFacts
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.shapes import clos, rail
from heddle.host import capacity as saturation
from heddle.predict.forwarding import FlowArrays
from heddle.predict.hashes import e_ecmp_hash, jhash_steps
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import MARK
from heddle.spec.shapes import SHAPES
from heddle.traffic.admission import ADMISSION_TUNABLES
from heddle.traffic.collectives import patterns
from heddle.traffic.plan import build_plan
from heddle.wire.layout import OVERHEAD_BYTES
from tests.unit import run_samples as samples

DOC = Path(__file__).resolve().parents[2] / "docs" / "fabric-file.md"


def keys_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys_of(field.annotation, f"{prefix}{name}.")
        else:
            found.add(prefix + name)
    return found


def test_every_key_of_a_fabric_file_is_explained() -> None:
    """A row explains a key, or all below it: `queues.pfc.watchdog`. docs/fabric-keys.md has values and defaults."""
    cells = re.findall(r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| (?=[^|]{10})", DOC.read_text(), re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)]
    keys = {key for spec in SHAPES.values() for key in keys_of(spec)}
    explained = {row: {key for key in keys if f"{key}.".startswith(f"{row}.")} for row in rows}
    assert keys - set().union(*explained.values()) == set()
    assert len(rows) == len(set(rows)) > 60
    assert [row for row, found in explained.items() if not found] == ["auto"]  # a value of `--split`


def page(name: str) -> str:
    return (DOC.parent / f"{name}.md").read_text(encoding="utf-8")


TEXT = "\n".join(page(name) for name in ("run-table", "trust", "cc-parameters", "admission"))
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
    for collective, algorithm in patterns():
        assert f"| `{collective}` | `{algorithm}` |" in page("collectives")
    parameters = re.findall(r"^\| `([a-z]+)` \|", page("collectives").partition("## Parameters")[2], re.MULTILINE)
    assert set(parameters) == {
        each.name for kind in patterns(of_files=True).values() for each in options_of(type(kind))
    }
    # The names of the document exist.
    document = samples.result().to_json()
    assert "unreliable" in document
    for name in re.findall(r"`machine\.(\w+)`", TEXT):
        assert name in document["machine"], name


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_parameter_of_congestion_control_has_its_row(name: str) -> None:
    for each in CONTROLLERS[name].tunables:
        unit = f" {each.unit}" if each.unit else ""
        high = "line rate" if each.line else f"{each.high:.10g}"
        row = f"| `{each.name}` | {each.default:g}{unit} | {each.low:g} to {high} | {each.text} |"
        assert row in TEXT


def test_every_parameter_has_its_row_and_those_of_dcqcn_a_source() -> None:
    sources = set(re.findall(r"^\| ([A-Z]) \| ", TEXT, re.MULTILINE))
    for each in Dcqcn.tunables:
        cell = re.search(rf"^\| `{each.name}` \|.*\| ([^|]+) \|$", TEXT, re.MULTILINE)
        assert cell is not None
        assert set(re.findall(r"\b[A-Z]\b", cell[1])) & sources, each.name
    # Every parameter of admission has its row.
    for each in ADMISSION_TUNABLES:
        unit = f" {each.unit}" if each.unit else ""
        assert f"| `{each.name}` | {each.default:g}{unit} | {each.low:g} to {each.high:.10g} | {each.text} |" in TEXT


def test_the_default_profile_and_the_delays_of_shapes_are_those_of_the_code() -> None:
    profile = PROFILES["default"](NicFacts(line_mbps=400_000, frame_bytes=4096 + OVERHEAD_BYTES, rtt_us=0)).values
    text = page("cc-parameters").partition("## The default profile")[2]
    rows = {"rpg_time_reset": "us", "rpg_byte_reset": "", "rpg_threshold": "", "min_time_between_cnps": "us"}
    for name, unit in rows.items():
        row = re.search(rf"^\| `{name}` \| [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
        assert row is not None and row[1] == f"{profile[name]} {unit}".strip(), name
    assert f"| L / 12 | {profile['init_cr'] / 1000:.0f} Gb/s |" in text
    assert f"| L / 300 | {profile['rpg_hai_rate'] / 1000:.1f} Gb/s |" in text
    found = re.findall(r"^\| `(clos|rail)` \| (\w+ to \w+) \|[^|]+\| (\S+) (ns|us) \|", page("delay"), re.MULTILINE)
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


HASHING = (Path(__file__).resolve().parents[2] / "docs" / "hashing.md").read_text()


def test_the_example_is_right() -> None:
    options = run_options(qps=16, placement="cyclic", sport="fixed")
    fabric = load_fabric("demo", overrides=["routing.ecmp=e-ecmp"]).fabric
    flow = next(f for f in build_plan(fabric, options).flows() if (f.src, f.dst, f.qpn) == ("host1", "host5", 266718))
    seed = fabric.by_name["rtsw1"].hash_seed
    assert (flow.sport, flow.first_hop, seed) == (49152, "rtsw1:eth5", 2784992780)
    words = [0x0A000001, 0x0A000101, flow.sport << 16 | flow.dport, flow.qpn]
    example = HASHING[HASHING.index("| source 10.0.0.1") : HASHING.index("The hash is `")]
    steps, value = jhash_steps(words, 2784992780)
    shown = {int(word, 16) for word in re.findall(r"`([0-9a-f]{8})`", example)}
    assert {*words, 2784992780} <= shown
    assert {word for _, states in steps for word in states} == shown - {*words, 2784992780, 0xDEADBEEF}
    assert f"The hash is `{value:08x}`, and h is half of it: {value >> 1}." in HASHING
    assert e_ecmp_hash(FlowArrays.of([flow]), 2784992780).tolist() == [value]
