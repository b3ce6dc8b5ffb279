"""What a check records of each step, and the result that a learner hands in. tests/netns has the path proofs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from heddle.base import state
from heddle.base.problems import InputError
from heddle.base.version import VERSION
from heddle_plugins.workshop.catalogue import find_unit
from heddle_plugins.workshop.observe import UnitLab
from heddle_plugins.workshop.record import StepRecord, StepVerdict, recorded
from heddle_plugins.workshop.unit_actions import result_text
from heddle_plugins.workshop.unitlife import UnitProgress, hint, read_progress, results, write_progress
from tests.answers import Answers
from tests.typed import typed

UNIT = find_unit("02")
NO_LAB = UnitLab(cast(Any, None))  # a step without a run looks at no lab


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory without any progress."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def after(before: Mapping[str, StepRecord], word: str, seen: str, *, helped: bool = False) -> dict[str, StepRecord]:
    verdict = StepVerdict("links", "Count", cast(Any, word), seen)
    return recorded(UNIT, before, [verdict], NO_LAB, with_solution=helped)


def test_a_step_counts_its_wrong_states_and_keeps_its_first_right_one() -> None:
    steps = after({}, "not yet", "no answer was given")
    assert steps == {}
    for answer in ("4", "4", "16"):  # a check after another step was changed sees the same answer again
        steps = after(steps, "wrong", answer)
    assert (steps["links"].wrong, steps["links"].solved_at) == (2, "")
    steps = after(steps, "ok", "1")
    right = steps["links"]
    assert (right.wrong, right.with_solution, right.heddle, right.proof) == (2, False, VERSION, None)
    assert right.solved_at
    assert right.observed == ""  # the answer is no part of a result
    for word in ("wrong", "ok"):
        assert after(steps, word, "2", helped=True) == steps


def test_hints_count_until_the_step_is_right_also_after_a_fresh_start() -> None:
    hint(UNIT, "links")
    write_progress(UnitProgress(UNIT.id, steps=read_progress(UNIT.id).steps))  # start --fresh shows all hints again
    hint(UNIT, "links")
    assert read_progress(UNIT.id).steps["links"].hints == 2
    write_progress(UnitProgress(UNIT.id, steps=after(read_progress(UNIT.id).steps, "ok", "1")))
    hint(UNIT, "links")
    assert read_progress(UNIT.id).steps["links"].hints == 2


def test_a_result_has_only_what_checks_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"no unit has a solved step on record\n.*\./inv workshop check records each step"
    ):
        results()
    write_progress(UnitProgress(UNIT.id, solved=True, states={"links": "ok"}, answers={"links": "1"}))
    with pytest.raises(InputError, match="unit 02-entropy has no solved step on record"):
        results("02")

    steps = after(after({}, "wrong", "4"), "ok", "1")
    write_progress(UnitProgress(UNIT.id, steps=steps, started="2026-11-27T07:00:00+00:00"))
    text = result_text(results())
    assert (
        "Unit 02, Entropy, or why 16 QPs use one link: 1 of 4 steps are right; started 2026-11-27 07:00:00 UTC" in text
    )
    assert "not yet" in text
    done = typed("workshop", "result", "--out", "mine.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote mine.txt: 1 unit\n"), done.stderr
    assert (tmp_path / "mine.txt").read_text().splitlines()[1:] == text.splitlines()[1:]
    data = json.loads(typed("workshop", "result", "02", "--format=json", cwd=tmp_path).stdout)
    row = next(each for each in data["units"][0]["steps"] if each["step"] == "links")
    assert (data["heddle"], row["wrong"], row["solved"], data["units"][0]["solved"]) == (VERSION, 1, True, False)


def test_a_record_that_was_changed_by_hand_counts_as_none() -> None:
    write_progress(UnitProgress(UNIT.id, steps=after({}, "wrong", "4")))
    path = state.state_dir() / "workshop" / f"{UNIT.id}.json"
    data = json.loads(path.read_text())
    data["steps"]["links"]["solved_at"] = "2026-11-27T07:00:00+00:00"
    path.write_text(json.dumps(data))
    assert read_progress(UNIT.id).steps == {}
    with pytest.raises(InputError):
        results()
    # Progress of a version without records stays.
    data = {"format": 1, "unit": UNIT.id, "solved": True}
    path.write_text(json.dumps(data))
    assert read_progress(UNIT.id) == UnitProgress(UNIT.id, solved=True)


def test_wrong_words_are_named(tmp_path: Path, answers: Answers) -> None:
    def ended(line: str) -> str:
        done = typed("workshop", *line.split(), cwd=tmp_path)
        return f"exit code {done.returncode}\n{done.stderr}"

    answers(ended)
