"""Faults of links as values: what may be typed, what is printed, what the record has, what netem gets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from heddle.base.units import format_share, parse_share
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.faults import record
from heddle.lab.faults.packets import PortFault, wanted_faults
from heddle.lab.faults.record import SetFault
from heddle.spec.impairments import COUNTS, NO_FAULT, LinkFault
from heddle.switch.links.portfaults import DelayLine
from heddle.views.labtext import faults_text
from tests.answers import Answers

TINY: Final = load_fabric("tiny").fabric


@pytest.mark.parametrize(
    ("text", "share"), [("1/256", 1 / 256), ("0.5%", 0.005), ("0.005", 0.005), ("1", 1.0), ("100%", 1.0), ("0", 0.0)]
)
def test_shares_are_fractions_percent_or_numbers(text: str, share: float) -> None:
    assert parse_share(text) == share


def test_other_shares_are_refused_with_the_reason(answers: Answers) -> None:
    answers(parse_share)


def test_a_fault_in_words_has_both_times_and_shares_as_usually_written() -> None:
    fault = LinkFault(delay_ns=10_000, jitter_ns=1_000, loss=1 / 256, reorder=0.02)
    assert fault.text(4000) == "1/256 lost, 1/50 reordered, delay 10us (40ms here), jitter 1us (4ms here)"
    assert NO_FAULT.text(4000) == "none"
    assert not NO_FAULT and fault
    # A share is printed as it is usually written.
    assert [format_share(each) for each in (1 / 256, 0.01, 0.3, 1.0, 0.5)] == ["1/256", "1/100", "30%", "100%", "50%"]


def test_values_that_do_not_fit_together_are_named(answers: Answers) -> None:
    answers(lambda fault: LinkFault(**fault).complaint())


def test_only_a_delay_needs_netem_which_keeps_the_order_by_a_rate_above_any_link() -> None:
    assert LinkFault(delay_ns=1).needs_netem
    assert not LinkFault(loss=1.0, corrupt=1.0, duplicate=1.0).needs_netem
    # Netem keeps the order by a rate far above any link.
    line = DelayLine("eth1", 7, {"delay": 40_000_000, "jitter": 4_000_000, "reorder": 0.25})
    assert (line.inlet, line.outlet) == ("line7", "back7")
    assert line.netem() == "netem limit 1000000 delay 40000000ns 4000000ns reorder 25.0000000% rate 100gbit"
    assert DelayLine("eth1", 7, {"delay": 1}).netem() == "netem limit 1000000 delay 1ns rate 100gbit"


def test_the_record_is_one_list_of_what_was_set_in_its_order(tmp_path: Path) -> None:
    assert record.read(tmp_path) == ()
    some = (
        SetFault("down", "rtsw1:eth1"),
        SetFault("packets", "rtsw1:eth2", LinkFault(loss=0.25).to_json()),
        SetFault("packets", "rtsw1:eth2", LinkFault(loss=0.5).to_json(), (7, 9), run=True),
        SetFault("packets", "rtsw1:eth3"),
        SetFault("slow-link", "rtsw1:eth1", {"rate": 0.5}, worker=(7, 9)),
    )
    record.write(tmp_path, some)
    assert record.read(tmp_path) == some


@pytest.mark.parametrize("damaged", ["x", 1, {}, {"kind": "down"}, {"kind": "a", "where": "b", "maker": [1]}])
def test_a_damaged_part_of_the_record_counts_as_no_fault(tmp_path: Path, damaged: object) -> None:
    (tmp_path / "faults.json").write_text(json.dumps({"faults": [damaged, {"kind": "down", "where": "rtsw1:eth1"}]}))
    assert record.read(tmp_path) == (SetFault("down", "rtsw1:eth1"),)
    (tmp_path / "faults.json").write_text(json.dumps({"faults": damaged}))
    assert record.read(tmp_path) == ()


@pytest.mark.parametrize("values", [{"loss": "1"}, {"colour": 1}, {"loss": None}])
def test_a_damaged_fault_of_packets_counts_as_none(tmp_path: Path, values: dict[str, object]) -> None:
    record.write(tmp_path, [SetFault("packets", "rtsw1:eth1", values), SetFault("packets", "rtsw1:eth2", {"loss": 1})])
    lab = SimpleNamespace(dir=tmp_path, fabric=TINY, runtime=SimpleNamespace(here=True))
    assert wanted_faults(lab) == {"rtsw1:eth2": LinkFault(loss=1)}  # type: ignore[arg-type]


def test_the_table_names_the_fault_its_source_and_its_counts(answers: Answers) -> None:
    counts = {**dict.fromkeys(COUNTS, 0), "packets": 1024, "lost": 4, "delayed": 1020, "waiting": 3}
    rows = [
        PortFault("rtsw1:eth1", "ctsw1:eth1", LinkFault(delay_ns=1000, loss=1 / 256), "fault", counts),
        PortFault("rtsw1:eth2", "ctsw2:eth1", LinkFault(loss=1 / 256), "file", None),
    ]
    answers({"two": faults_text(rows, 4000, "rtsw1:eth3"), "none": faults_text([], 4000, "rtsw1:eth3")})
