"""docs/traffic.md has the limits, causes and names of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from heddle.endpoints.congestion.controlled import CONTROLLERS
from heddle.endpoints.congestion.dcqcn import Dcqcn
from heddle.endpoints.expected import block_elements
from heddle.host import saturation
from heddle.traffic.admission import ADMISSION_TUNABLES
from heddle.traffic.collectives import patterns
from heddle.wire.layout import OVERHEAD_BYTES
from tests.unit import run_samples as samples

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "traffic.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


def test_the_limits_are_those_of_the_code() -> None:
    assert f"more than {saturation.FULL:.0%}".replace("%", " %") in WORDS
    assert f"at least {saturation.TOOK_PART:.0%}".replace("%", " %") in WORDS
    assert f"processor for more than {saturation.WAITED:.0%}".replace("%", " %") in WORDS
    assert f"less than {saturation.LEAST_S:.1f} s is too short" in WORDS
    assert f"{OVERHEAD_BYTES} bytes for each full packet" in WORDS
    assert f"{4096 / (4096 + OVERHEAD_BYTES):.1%}".replace("%", " %") in WORDS
    assert f"at most {block_elements(1):,} elements" in WORDS
    assert block_elements(57) == 1024 > block_elements(58)
    assert "more than 57 ranks" in WORDS
    assert f"{block_elements(64)} elements for 64 ranks" in WORDS


def test_every_cause_and_every_collective_has_its_row() -> None:
    rows = re.findall(r"^\| `([a-z-]+)`[ |(]", TEXT, re.MULTILINE)
    assert set(get_args(saturation.CauseKind)) <= set(rows)
    assert {collective for collective, _ in patterns()} <= set(rows)


def test_the_names_of_the_document_exist() -> None:
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


def test_every_parameter_of_dcqcn_has_a_source() -> None:
    sources = set(re.findall(r"^\| ([A-Z]) \| ", TEXT, re.MULTILINE))
    for each in Dcqcn.tunables:
        cell = re.search(rf"^\| `{each.name}` \|.*\| ([^|]+) \|$", TEXT, re.MULTILINE)
        assert cell is not None
        assert set(re.findall(r"\b[A-Z]\b", cell[1])) & sources, each.name


def test_every_parameter_of_admission_has_its_row() -> None:
    for each in ADMISSION_TUNABLES:
        unit = f" {each.unit}" if each.unit else ""
        assert f"| `{each.name}` | {each.default:g}{unit} | {each.low:g} to {each.high:.10g} | {each.text} |" in TEXT
