"""Faults of links as values: what may be typed, also for one run, what is printed, what netem gets, and the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.units import format_share, parse_share
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.impairments import PortFault, Requested, faults_on
from heddle.runs.run import plan_run
from heddle.spec.impairments import NO_FAULT, LinkFault, RunFault, parse_run_fault
from heddle.switch.links import delaylines
from heddle.switch.links.delaylines import DelayLine
from heddle.switch.links.portfaults import FaultCounts
from heddle.traffic.options import RunOptions, run_options
from heddle.views.faulttext import faults_text

TINY: Final = load_fabric("tiny").fabric
WRONG: Final = (
    ["loss=1/256"],
    ["rtsw1:eth3"],
    [""],
    ["rtsw1:eth3,los=1/256"],
    ["rtsw1:eth3,loss"],
    ["rtsw1:eth3,loss=1/256,loss=1%"],
    ["rtsw1:eth3,loss=2,corrupt=often,delay=5,jitter=2ms"],
    ["rtsw1:eth3,loss=0"],
    ["rtsw1:eth3,reorder=1%"],
    ["rtsw1:eth3,delay=1us,jitter=5us"],
    ["rtsw1:eth3,loss=2", "rtsw1:eth4"],
    ["rtsw1:eth9,ctws1,loss=1%", "rtsw1:eth3,loss=1%", "leaf1:eth1,loss=1%"],
)


@pytest.mark.parametrize(
    ("text", "share"), [("1/256", 1 / 256), ("0.5%", 0.005), ("0.005", 0.005), ("1", 1.0), ("100%", 1.0), ("0", 0.0)]
)
def test_shares_are_fractions_percent_or_numbers(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2", "is more than all packets"),
        ("101%", "is more than all packets"),
        ("1/0", "divides by 0"),
        ("-0.1", "is not a share"),
        ("often", "is not a share"),
        ("", "is not a share"),
        ("1/2%", "is not a share"),
        ("1e-12", "is less than 1 packet in 1,000,000,000"),
    ],
)
def test_other_shares_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_share(text)


def test_a_share_is_printed_as_it_is_usually_written() -> None:
    assert [format_share(each) for each in (1 / 256, 0.01, 0.3, 1.0, 0.5)] == ["1/256", "1/100", "30%", "100%", "50%"]


def test_a_fault_in_words_has_both_times() -> None:
    fault = LinkFault(delay_ns=10_000, jitter_ns=1_000, loss=1 / 256, reorder=0.02)
    assert fault.text(4000) == "1/256 lost, 1/50 reordered, delay 10us (40ms here), jitter 1us (4ms here)"
    assert NO_FAULT.text(4000) == "none"
    assert not NO_FAULT and fault


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        (LinkFault(reorder=0.1), "reorder"),
        (LinkFault(jitter_ns=1), "jitter"),
        (LinkFault(delay_ns=5, jitter_ns=6), "jitter"),
        (LinkFault(delay_ns=5, jitter_ns=5, reorder=1.0, loss=1.0), ""),
    ],
)
def test_values_that_do_not_fit_together_are_named(fault: LinkFault, key: str) -> None:
    assert fault.complaint()[0] == key


def test_only_a_delay_needs_netem() -> None:
    assert LinkFault(delay_ns=1).needs_netem
    assert not LinkFault(loss=1.0, corrupt=1.0, duplicate=1.0).needs_netem


def test_netem_keeps_the_order_by_a_rate_far_above_any_link() -> None:
    line = DelayLine("eth1", 7, 40_000_000, 4_000_000, 0.25)
    assert (line.inlet, line.outlet) == ("line7", "back7")
    assert line.netem() == "netem limit 1000000 delay 40000000ns 4000000ns reorder 25.0000000% rate 100gbit"
    assert DelayLine("eth1", 7, 1).netem() == "netem limit 1000000 delay 1ns rate 100gbit"


def test_the_record_has_ports_that_are_down_and_faults_side_by_side(tmp_path: Path) -> None:
    links = {"rtsw1:eth2": LinkFault(loss=0.25), "rtsw1:eth3": NO_FAULT}
    before = {"rtsw1:eth2": LinkFault(corrupt=0.1), "rtsw1:eth3": None, "rtsw1:eth4": NO_FAULT}
    for each in (
        Requested(),
        Requested(down=frozenset({"rtsw1:eth1", "rtsw2:eth1"})),
        Requested(frozenset({"rtsw1:eth1"}), links),
        Requested(frozenset({"rtsw1:eth1"}), links, before),
    ):
        each.write(tmp_path)
        assert Requested.read(tmp_path) == each


@pytest.mark.parametrize("faults", ["x", [1], {"a": 1}, {"a": {"loss": "1"}}, {"a": {"colour": 1}}])
def test_a_damaged_part_of_the_record_counts_as_no_fault(tmp_path: Path, faults: object) -> None:
    (tmp_path / "faults.json").write_text(json.dumps({"down": ["rtsw1:eth1"], "links": faults, "run": faults}))
    assert Requested.read(tmp_path) == Requested(down=frozenset({"rtsw1:eth1"}))


def test_the_table_names_the_fault_its_source_and_its_counts() -> None:
    counts = FaultCounts(packets=1024, lost=4, corrupted=0, duplicated=0, delayed=1020, waiting=3)
    rows = [
        PortFault("rtsw1:eth1", "ctsw1:eth1", LinkFault(delay_ns=1000, loss=1 / 256), "fault", counts),
        PortFault("rtsw1:eth2", "ctsw2:eth1", LinkFault(loss=1 / 256), "file", None),
    ]
    text = faults_text(rows, 4000, "rtsw1:eth3")
    first, second = (line.split("  ") for line in text.splitlines()[1:3])
    assert [cell.strip() for cell in first if cell.strip()] == [
        "rtsw1:eth1", "ctsw1:eth1", "1/256 lost, delay 1us (4ms here)", "1,024", "4", "-", "-", "1,020", "3",
    ]  # fmt: skip
    assert "1/256 lost (file): missing, ./inv up --repair sets it again" in "  ".join(second)
    assert "k = 4000" in text
    assert "./inv fault rtsw1:eth3 --loss 1/256" in faults_text([], 4000, "rtsw1:eth3")


@pytest.mark.parametrize(
    ("text", "ports", "fault"),
    [
        ("rtsw1:eth3,loss=1/256", ("rtsw1:eth3",), LinkFault(loss=1 / 256)),
        ("rtsw1:eth3, ctsw*, loss=1%, corrupt=0.5%", ("rtsw1:eth3", "ctsw*"), LinkFault(loss=0.01, corrupt=0.005)),
        ("delay=10us,jitter=1us,reorder=2%,rtsw1", ("rtsw1",), LinkFault(10_000, 1_000, reorder=0.02)),
        ("rtsw1,duplicate=100%", ("rtsw1",), LinkFault(duplicate=1.0)),
    ],
)
def test_a_fault_for_a_run_is_ports_and_values(text: str, ports: tuple[str, ...], fault: LinkFault) -> None:
    assert parse_run_fault(text) == RunFault(ports, fault)


def test_ports_are_resolved_on_the_fabric_and_the_last_fault_of_a_port_counts() -> None:
    found = faults_on(TINY, ["rtsw1,loss=1%", "rtsw1:eth3,corrupt=1%"])
    assert found == {
        **dict.fromkeys(("rtsw1:eth1", "rtsw1:eth2", "rtsw1:eth4"), LinkFault(loss=0.01)),
        "rtsw1:eth3": LinkFault(corrupt=0.01),
    }
    assert faults_on(TINY, []) == {}


def test_wrong_faults_are_explained_before_anything_starts(golden: Callable[[str, str], None]) -> None:
    said = []
    for texts in WRONG:
        with pytest.raises(InputError) as caught:
            plan_run(TINY, run_options(fault=texts))
        said.append(f"--fault {' --fault '.join(texts)}\n{caught.value}\n")
    golden("runs/run_faults.log", "\n".join(said))


def test_a_run_keeps_what_was_typed() -> None:
    texts = ["rtsw1:eth3,loss=1/256", "host1,corrupt=1%"]
    assert run_options(fault=texts).faults == tuple(texts)
    assert RunOptions().faults == ()


@pytest.mark.root
def test_where_netem_is_missing_a_delay_is_refused_before_anything_starts() -> None:
    options = run_options(fault=["rtsw1:eth3,delay=10us"])
    if not delaylines.missing():
        plan_run(TINY, options)
        return
    with pytest.raises(MachineError, match=r"a delay on a link is not possible: this kernel has no sch_netem\n.*vm"):
        plan_run(TINY, options)


@pytest.mark.parametrize("share", ["1/256", "50%", "100%"])
def test_shares_are_read_as_they_are_printed(share: str) -> None:
    assert format_share(parse_run_fault(f"rtsw1:eth1,loss={share}").fault.loss) == share
