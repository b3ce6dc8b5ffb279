"""Every workshop unit, driven by what is in labs/: a check fails before, knows each typical wrong answer, and passes
after the solution.

A learner's commands and those of the solution run in this process, which spares each of over a hundred its start; for
unit 01 they are processes, too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base import process
from heddle.base.resources import HERE
from heddle.base.version import VERSION
from heddle_plugins.workshop import unitlife
from heddle_plugins.workshop.catalogue import WorkshopUnit, find_unit, unit_ids
from heddle_plugins.workshop.unitlife import run_command, write_files
from tests.pages import blocks
from tests.typed import typed

FIRST = "01-clos-by-hand"  # in `./inv test`


def inv(*words: str, cwd: Path, ends: int) -> dict[str, Any]:
    """One command of a learner, in a directory of the learner's. ends: the exit code that it must have."""
    done = typed(*words, "--format=json", cwd=cwd)
    assert done.returncode == ends, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs of lab.yml run here."""
    start = tuple(HERE.command())

    def follow(argv: Sequence[str], line: Callable[[str], None], *, timeout: float) -> process.Done:
        done = typed(*argv[len(unitlife._HERE) + len(start) :], cwd=Path.cwd())
        for each in (done.stdout + done.stderr).splitlines():
            line(each)
        return process.Done(tuple(argv), done.returncode, done.stdout, done.stderr, 0.0)

    monkeypatch.setattr(unitlife, "process", SimpleNamespace(follow=follow))


def go_through(
    unit_id: str, runtime: str, name: str, cwd: Path, leftovers: Callable[[str], list[str]], monkeypatch: Any
) -> None:
    unit = find_unit(unit_id)
    monkeypatch.chdir(cwd)
    started = inv(
        "workshop", "start", unit.number, f"--runtime={runtime}", f"--name={name}", "--fresh", "--yes", cwd=cwd, ends=0
    )
    assert (started["lab"], started["runtime"], started["created"]) == (name, runtime, True)

    before = inv("workshop", "check", unit.number, cwd=cwd, ends=1)
    assert [step["step"] for step in before["steps"]] == list(unit.spec.steps)
    done_already = [step["step"] for step in before["steps"] if step["state"] == "ok"]
    assert not done_already, f"{unit_id}: right before the learner has done anything: {done_already}"

    if unit_id == FIRST:
        as_the_page_for_learners_has_it(cwd)
    for step, spec in unit.spec.steps.items():
        for mistake, wrong in spec.wrong.items():
            write_files(unit, wrong.files)
            for command in wrong.commands:
                run_command(command, name)
            verdicts = {each["step"]: each for each in inv("workshop", "check", unit.number, cwd=cwd, ends=1)["steps"]}
            seen = verdicts[step]
            assert (seen["state"], seen["mistake"]) == ("wrong", mistake), f"{unit_id}: {step}, {mistake}: {seen}"
            assert seen["hint"] == wrong.hint
            assert seen["observed"]

    solved = inv("workshop", "solve", unit.number, "--yes", cwd=cwd, ends=0)
    assert {step["state"] for step in solved["steps"]} == {"ok"} and solved["solved"], solved

    learners = {unit.spec.file, *unit.solution().files, *(each for step in unit.spec.steps.values()
                for wrong in step.wrong.values() for each in wrong.files)}  # fmt: skip
    assert {each.name for each in cwd.iterdir()} <= learners, "a unit writes into the learner's directory"
    assert inv("workshop", "stop", unit.number, cwd=cwd, ends=0)["down"] == [name]
    assert not leftovers(name)
    handed_in(unit, cwd)


def as_the_page_for_learners_has_it(cwd: Path) -> None:
    """The lines of labs/START.md that go_through has not for itself: both have every action but `solve`."""
    lines = [each.words for block in blocks("labs/START.md", "sh") for each in block.commands()]
    assert [words[1] for words in lines[1:]] == ["list", "start", "check", "answer", "hint", "stop", "result"]
    for words in lines:
        if words[1:] in (("list",), ("hint",)):
            done = typed(*words, cwd=cwd)
            assert done.returncode == 0, done.stderr


def handed_in(unit: WorkshopUnit, cwd: Path) -> None:
    """The result outlives the lab. It counts what was wrong, and proves the paths of each run that solved a step."""
    wrote = inv("workshop", "result", unit.number, "--out=mine.json", cwd=cwd, ends=0)
    assert (wrote["result"], wrote["units"]) == (str(cwd / "mine.json"), 1)
    result = json.loads((cwd / "mine.json").read_text())["units"][0]
    assert result["unit"] == unit.id and result["solved"] and result["started"]
    # A mistake at one step may be right for another one, before the solution is shown and before its own mistakes.
    assert any(step["with_solution"] for step in result["steps"])
    for step in result["steps"]:
        spec = unit.spec.steps[step["step"]]
        assert step["solved_at"] >= result["started"] and step["heddle"] == VERSION
        # Records end when a step is right. Mistakes after that are not counted.
        assert step["wrong"] >= 1 or not spec.wrong or not step["with_solution"], step
        assert bool(step["observed"]) == (spec.look != "answer")
        if spec.look == "run":
            proof = step["proof"]
            assert proof["qps"] == len(proof["paths"]) > 0 and len(proof["digest"]) == 64, proof
            # Where packets were lost or repeated on purpose, not every path can be proven.
            assert proof["proven"] == proof["qps"] or unit.number in ("06", "07", "09"), proof


def test_a_unit_from_start_to_stop(
    runtime: str, name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch,
    in_this_process: None,
) -> None:  # fmt: skip
    go_through(FIRST, runtime, name, tmp_path, leftovers, monkeypatch)


@pytest.mark.long
def test_a_unit_whose_commands_are_processes(
    runtime: str, name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the gate: the same unit in this process, and processes of verbs in test_tour.py and test_owners.py."""
    go_through(FIRST, runtime, name, tmp_path, leftovers, monkeypatch)


@pytest.mark.long  # 20 seconds and more each
@pytest.mark.parametrize("unit", [each for each in unit_ids() if each != FIRST])
def test_every_unit_from_start_to_stop(
    unit: str, name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch,
    in_this_process: None,
) -> None:  # fmt: skip
    go_through(unit, "netns", name, tmp_path, leftovers, monkeypatch)


@pytest.mark.deep
def test_the_copy_of_a_fabric_file_belongs_to_the_learner(
    name: str, tmp_path: Path, leftovers: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("workshop", "start", "03", f"--name={name}")
    copy = tmp_path / "qp-scaling.yml"
    copy.write_text("# mine\n" + (find_unit("03").folder / "fabric.yml").read_text())
    before = copy.read_text()
    assert inv(*start, cwd=tmp_path, ends=0)["file"] == str(copy)
    assert copy.read_text() == before  # there was a file of this name
    assert not inv(*start, cwd=tmp_path, ends=0)["created"]

    other = inv("workshop", "start", "01", cwd=tmp_path, ends=2)["error"]["problems"][0]
    assert (other["what"], other["hint"]) == ("unit 01-clos-by-hand", "./inv workshop stop 03")
    assert other["why"] == "cannot start: unit 03-qp-scaling is running"

    copy.write_text(before.replace("ecmp: e-ecmp", "ecmp: spray"))
    asked = inv(*start, cwd=tmp_path, ends=2)["error"]["problems"][0]
    assert (asked["why"], asked["hint"]) == ("has changed since the lab was started", "add --yes to start it again")
    assert inv(*start, "--yes", cwd=tmp_path, ends=0)["created"]
    modes = {row["mode"] for row in inv("hashing", f"--lab={name}", cwd=tmp_path, ends=0)["switches"]}
    assert modes == {"spray"}

    kept = inv("workshop", "start", "03", "--fresh", cwd=tmp_path, ends=2)["error"]["problems"][0]
    assert kept["why"] == "was not replaced"
    assert "spray" in copy.read_text()
    inv("workshop", "start", "03", "--fresh", "--yes", cwd=tmp_path, ends=0)
    assert copy.read_text() == before.removeprefix("# mine\n")
    inv("workshop", "stop", cwd=tmp_path, ends=0)
    assert not leftovers(name)


@pytest.mark.deep
def test_a_lab_that_the_learner_broke_is_named_with_the_way_out(name: str, tmp_path: Path) -> None:
    inv("workshop", "start", "02", f"--name={name}", "--fresh", cwd=tmp_path, ends=0)
    subprocess.run(["ip", "netns", "delete", f"heddle-{name}-rtsw2"], check=True)
    problems = inv("workshop", "check", cwd=tmp_path, ends=1)["error"]["problems"]
    assert "rtsw2" in problems[0]["where"] + problems[0]["what"]
    assert problems[-1]["hint"] == "./inv workshop start 02 --fresh starts it again"
    inv("workshop", "start", "02", "--fresh", cwd=tmp_path, ends=0)
    assert {step["state"] for step in inv("workshop", "check", cwd=tmp_path, ends=1)["steps"]} == {"not yet"}
    inv("down", name, cwd=tmp_path, ends=0)
    gone = inv("workshop", "check", cwd=tmp_path, ends=2)["error"]["problems"][0]
    assert gone["what"] == "no unit"
