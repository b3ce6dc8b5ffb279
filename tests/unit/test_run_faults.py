"""`run --fault`: what may be typed, which ports it means, what a run records, and what the record holds meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.units import format_share
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.onpurpose import before_run, link_faults, note, note_link_faults, taken_down
from heddle.lab.runfaults import faults_on
from heddle.runs.run import plan_run
from heddle.spec.impairments import NO_FAULT, LinkFault, RunFault, parse_run_fault
from heddle.switch.links import delaylines
from heddle.traffic.options import RunOptions, run_options

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


def test_the_record_has_what_each_port_had_before_the_run(tmp_path: Path) -> None:
    note(tmp_path, ["rtsw1:eth1"], down=True)
    faults = {"rtsw1:eth2": LinkFault(loss=0.25), "rtsw1:eth3": LinkFault(loss=0.5)}
    before = {"rtsw1:eth2": LinkFault(corrupt=0.1), "rtsw1:eth3": None, "rtsw1:eth4": NO_FAULT}
    note_link_faults(tmp_path, faults, before)
    note(tmp_path, ["rtsw2:eth1"], down=True)
    assert (link_faults(tmp_path), before_run(tmp_path)) == (faults, before)
    assert taken_down(tmp_path) == {"rtsw1:eth1", "rtsw2:eth1"}
    note_link_faults(tmp_path, faults)
    assert before_run(tmp_path) == {}


@pytest.mark.parametrize("run", ["x", [1], {"a": 1}, {"a": {"loss": "1"}}, {"a": {"colour": 1}}])
def test_a_damaged_record_has_no_run(tmp_path: Path, run: object) -> None:
    (tmp_path / "faults.json").write_text(json.dumps({"down": [], "links": {}, "run": run}))
    assert before_run(tmp_path) == {}


@pytest.mark.parametrize("share", ["1/256", "50%", "100%"])
def test_shares_are_read_as_they_are_printed(share: str) -> None:
    assert format_share(parse_run_fault(f"rtsw1:eth1,loss={share}").fault.loss) == share
