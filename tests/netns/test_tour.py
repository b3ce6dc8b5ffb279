"""The tour on a terminal: it explains, waits, runs real commands, and leaves nothing behind however it ends.

And the demo, on a machine where a lab of its name may run already.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.cli import demo as stage
from heddle.cli.demo import demo
from heddle.cli.tour_verb import STEPS
from tests.machine import patience
from tests.terminal import Terminal, on_terminal
from tests.unit.test_stories import demo_rows

ROOT = Path(__file__).resolve().parents[2]
TOUR = [sys.executable, "tasks.py", "tour"]
Leftovers = Callable[[str], list[str]]


@pytest.fixture
def typing() -> Iterator[Terminal]:
    """The tour on a terminal. A test that ends early closes it, and waits until the tour has put things in order."""
    with on_terminal(TOUR, {**os.environ, "NO_COLOR": "1", "LINES": "24", "COLUMNS": "80"}) as terminal:
        yield terminal


def lab_of(tour: Terminal) -> str:
    """The name of the tour's lab."""
    found = re.search(r"up demo --name (\w+)", tour.said)
    assert found is not None
    return found[1]


@pytest.mark.long("10 seconds and more")
def test_q_ends_the_tour_and_takes_its_lab_down(typing: Terminal, leftovers: Leftovers) -> None:
    typing.until("q ends the tour:")
    assert "up demo --name tour" in typing.said
    typing.type("\n")
    typing.until("[2 of 7]")
    assert "converged in" in typing.said and leftovers(lab_of(typing))
    typing.until("q ends the tour:")
    typing.type("q\n")
    assert typing.code() == 0
    assert "The tour ends here." in typing.said and "[3 of 7]" not in typing.said
    assert leftovers(lab_of(typing)) == []


@pytest.mark.deep
@pytest.mark.parametrize("begun", ["", "create: "], ids=["at the prompt", "in the middle of up"])
def test_ctrl_c_leaves_nothing_behind(begun: str, typing: Terminal, leftovers: Leftovers) -> None:
    typing.until("q ends the tour:")
    if begun:
        typing.type("\n")
        typing.until(begun)
    typing.type("\x03")
    # Python's input() loses one that arrives between its look for signals and its wait: one of thirty at the prompt.
    assert typing.code(again="" if begun else "\x03") == 130
    assert "Traceback" not in typing.said and "[2 of 7]" not in typing.said
    assert leftovers(lab_of(typing)) == []


@pytest.mark.deep
def test_a_closed_terminal_leaves_nothing_behind(typing: Terminal, leftovers: Leftovers) -> None:
    """The kernel sends SIGHUP to the tour and to its command, and the tour ends its command: two signals at once."""
    for _ in range(2):
        typing.until("q ends the tour:")
        typing.type("\n")
    typing.until("# Collective test starting")
    lab = lab_of(typing)
    typing.close()
    assert typing.ended() == 128 + signal.SIGHUP
    assert leftovers(lab) == []


@pytest.mark.deep
@pytest.mark.long
def test_the_whole_tour_explains_runs_through_and_compares(leftovers: Leftovers) -> None:
    env = {**os.environ, "HEDDLE_PROGRAM": "heddle"}
    done = subprocess.run(
        [*TOUR, "--yes"], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=patience(280)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    words = " ".join(done.stdout.split())
    for number, step in enumerate(STEPS, 1):
        assert f"[{number} of 7] {step.title}" in done.stdout
        assert step.before.replace("./inv", "heddle") in words
    mmr = re.search(r"MMR of bytes +max/mean +([0-9.]+) +([0-9.]+)", done.stdout)
    assert mmr is not None and float(mmr[2]) < float(mmr[1])
    assert re.search(r"\nhashing +flow +e-ecmp", done.stdout)
    assert "./inv" not in done.stdout and "\n  heddle run --lab tour" in done.stdout
    (lab,) = set(re.findall(r"up demo --name (\w+)", words))
    assert leftovers(lab) == []


LAST_STEP = """
import sys, tasks
from heddle.cli import program, tour_verb

tour_verb.STEPS = tour_verb.STEPS[-1:]  # there is no lab, which `down` takes as done
sys.exit(program.main(vars(tasks), ["./inv", "tour", "--yes", "--format", "json"]))
"""


def test_with_json_stdout_is_one_document_of_the_commands() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_STEP], cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    (step,) = result["steps"]
    assert (step["title"], step["command"]) == (STEPS[-1].title, f"./inv down {result['lab']}")


def test_without_a_terminal_it_says_what_to_do() -> None:
    done = subprocess.run(
        TOUR, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=patience(60)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "./inv tour waits for Enter, and there is no terminal" in done.stderr
    assert "hint: use ./inv tour --yes" in done.stderr


def test_three_acts_are_right_and_proven_and_leave_nothing(
    lab_name: Callable[[], str], leftovers: Callable[[str], list[str]]
) -> None:
    name = lab_name()
    shown: list[str] = []
    result = demo(Silent(), shown.append, name)
    assert [p.act.qps for p in result.played] == [1, 16, 16]
    assert not result.problems
    assert len(shown) == 3
    # The table of the README, whose MMRs tests/unit/test_stories.py predicts.
    assert [(p.act.title, f"{p.paths.mmr.flows:.2f}", f"{len(p.paths.flows)}") for p in result.played] == demo_rows()
    assert all(p.paths.mmr.bytes == pytest.approx(p.paths.mmr.flows, abs=0.05) for p in result.played)
    assert result.gain > 1.2 or any(p.run.limited for p in result.played)
    assert set(result.to_json()) >= {"acts", "gain", "emulated"}
    assert "times as fast" in result.text()
    assert leftovers(name) == []


@pytest.mark.long("10 seconds and more")
def test_a_reader_that_goes_away_leaves_no_lab(
    lab_name: Callable[[], str], leftovers: Callable[[str], list[str]]
) -> None:
    name = lab_name()

    def gone(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        demo(Silent(), gone, name)
    assert leftovers(name) == []


def test_a_running_lab_called_demo_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "read_record", {"demo": "a record"}.get)
    assert stage.free_name("demo") == "demo2"
