"""Hashing that is switched while a run holds the lab: data arrives all the same, and no path is called proven."""

from __future__ import annotations

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.families import Network
from heddle.base.problems import InputError
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import set_exact, set_hashing, wanted
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests.conftest import Borrow
from tests.netns.during import run_and

LONG = RunOptions(qps=4, sizes=(1 << 21,), iters=4, warmup=0, placement="cyclic")  # two seconds at line rate


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    return borrow("tiny")


def test_a_mode_is_switched_in_the_middle_of_a_run_and_its_paths_are_not_called_proven(lab: Lab) -> None:
    set_hashing(lab, "flow")
    result = run_and(lab, LONG, lambda: set_hashing(lab, "e-ecmp"))
    assert result.wrong == 0
    proof = paths_of(lab)
    assert not proof.agree
    assert proof.notes[0].startswith("hashing was changed during the run, so no path follows one rule: rtsw1, rtsw2")
    assert paths_text(proof).startswith("NOT PROVEN")


@pytest.mark.deep
def test_there_and_back_is_noticed_too(lab: Lab) -> None:
    """Under spray all that e-ecmp does lies within the ways that there are."""
    set_hashing(lab, "spray")

    def there_and_back() -> None:
        set_hashing(lab, "e-ecmp", switches=["rtsw1"])
        set_hashing(lab, "spray", switches=["rtsw1"])

    assert run_and(lab, LONG, there_and_back).wrong == 0
    proof = paths_of(lab)
    assert not any(row.why for row in proof.flows)
    assert not proof.agree
    assert proof.notes[0].endswith(": rtsw1")
    assert paths_text(proof).startswith("NOT PROVEN: the paths of 16 QPs")
    assert run(lab, RunOptions(sizes=(4096,), iters=1), Silent()).wrong == 0
    assert paths_of(lab).agree


@pytest.mark.deep
def test_a_row_is_added_to_what_the_table_is_by_then(lab: Lab) -> None:
    set_hashing(lab, "exact-match")
    prefix: Network = next(p for p, ports in lab.fabric.expected_next_hops["rtsw1"].items() if len(ports) > 1)
    set_exact(lab, "rtsw1", {(50001, prefix): "eth1"})
    set_hashing(lab, "exact-match", added={"rtsw1": {(50002, prefix): "eth2"}})
    assert wanted(lab)["rtsw1"].steering.exact == {(50001, prefix): "eth1", (50002, prefix): "eth2"}
    with pytest.raises(InputError, match="names the port eth9"):
        set_hashing(lab, "exact-match", added={"rtsw1": {(50003, prefix): "eth9"}})


def test_a_lab_whose_hashing_is_being_switched_is_not_taken_down_under_it(lab: Lab) -> None:
    with state.lock(lab.name, state.CHANGES), pytest.raises(InputError, match="is being worked on by another Heddle"):
        life.down(lab.name)
    assert open_lab(lab.name).fabric == lab.fabric
