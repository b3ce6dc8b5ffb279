"""What is typed after `./inv hashing`: options, names of switches, rows of tables, before any lab is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.cli.hashing_change import ExactRows, _names, _options, _text, entry_rows, file_rows
from heddle.fabric.hashmodes import MODES
from heddle.fabric.policy import DEFAULT_OPTIONS
from heddle.fabric.shapes import build
from heddle.predict.hashes import siphash_steps
from heddle.runs.explain import Step
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing

ROOT = Path(__file__).resolve().parents[2]
FABRIC = build(ClosSpec(name="tiny", racks=2, ctsw=2, hosts_per_rack=2))


@pytest.mark.parametrize("key", ["gap", "hash.gap", "routing.hash.gap"])
def test_a_key_is_its_last_word_or_its_path_in_the_fabric_file(key: str) -> None:
    assert _options(FABRIC, "flowlet", [f"{key}=5ms"])[0].gap_ns == 5_000_000
    assert _options(FABRIC, "flowlet", ["routing.seed=7", "udf.bytes=2"])[1] == 7


@pytest.mark.parametrize(
    ("mode", "setting", "said"),
    [
        ("flowlet", "gpa=5ms", "gpa is not a key of hashing\n       hint: did you mean gap?"),
        ("flow", "ucmp=true", "ucmp is not a key of hashing\n       hint: allowed: policy, "),
        ("flow", "ecmp=spray", "ecmp is not a key of hashing\n       hint: write the mode as a word"),
        ("flow", "gap=5ms", "gap has no effect under flow\n       hint: use it with flowlet or adaptive"),
        ("spray", "first=load", "first has no effect under spray"),
        ("flowlet", "choice=random", "choice has no effect under flowlet"),
        ("e-ecmp", "policy=l3", "policy has no effect under e-ecmp"),
        ("flow", "udf.bytes=2", "udf has no effect under flow\n       hint: use it with e-ecmp or flowlet or spray"),
        ("e-ecmp", "buckets=64", "buckets has no effect under e-ecmp\n       hint: add --set resilient"),
    ],
)
def test_an_option_that_does_nothing_is_refused_and_says_where_it_would(mode: str, setting: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        _options(FABRIC, mode, [setting])
    assert f"--set  {said}" in str(caught.value)


def test_a_file_may_hold_options_of_every_mode() -> None:
    routing = {"hash": {"gap": "5ms", "choice": "round-robin"}, "resilient": True}
    fabric = build(ClosSpec.model_validate({"name": "tiny", "racks": 2, "ctsw": 2, "routing": routing}))
    for mode in MODES:
        assert _options(fabric, mode, ["buckets=64"])[0].buckets == 64


def test_switches_that_are_none_are_not_all() -> None:
    assert _names([]) == []
    assert _names(["rtsw1, rtsw2", "ctsw1"]) == ["rtsw1", "rtsw2", "ctsw1"]
    with pytest.raises(InputError, match="--switch , names no switch"):
        _names([","])


def test_a_port_number_is_written_with_digits_of_ascii() -> None:
    rows = ExactRows()
    rows.add(entry_rows(["rtsw1 \u0663 10.0.1.0/24 eth1", "rtsw1,4,10.0.1.0/24,eth1"]))
    assert [problem.why for problem in rows.problems.found] == ["is not a port number"]
    assert list(rows.tables) == ["rtsw1"]


def test_a_table_may_be_larger_than_a_fabric_file_and_come_from_a_spreadsheet(tmp_path: Path) -> None:
    table = tmp_path / "te.csv"
    rows = "".join(f"rtsw1,{sport},10.0.1.0/24,eth1\r\n" for sport in range(1, 10_001))
    table.write_text(f"\ufeffswitch,sport,prefix,port\r\n{rows}", newline="")
    assert len(file_rows(str(table))) == 10_000
    with pytest.raises(InputError, match=r"is a directory\n  hint: name a file in it"):
        file_rows(str(tmp_path))


def test_a_row_with_an_unclosed_quote_is_reported_in_one_line(tmp_path: Path) -> None:
    table = tmp_path / "te.csv"
    table.write_text('switch,sport,prefix,port\n"rtsw1,5,10.0.1.0/24,eth9\nrtsw1,5\n')
    rows = ExactRows()
    rows.add(file_rows(str(table)))
    assert [problem.what for problem in rows.problems.found] == ["rtsw1,5,10.0.1.0/24,eth9 rtsw1,5"]


def test_steps_of_64_bits_stay_within_a_hundred_columns() -> None:
    lines = Step("SipHash", tuple(siphash_steps([1, 2, 3], 0xA5FF9E0CA5FF9E0C)[0])).lines()
    assert max(map(len, lines)) <= 96
    assert [line for line in lines if "length" in line]


def test_a_table_of_switches_with_many_options_stays_within_a_hundred_columns() -> None:
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
