"""Runs by their verbs: completion, `runs`, --run, and the limits that travel with a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle.runs.store import KEEP_BYTES, KEEP_RUNS, History
from tests.unit.history_runs import keep
from tests.unit.test_completion import offered

ROOT = Path(__file__).resolve().parents[2]


def test_shells_complete_runs_of_the_lab_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    for lab, count in (("one", 2), ("two", 3)):
        (tmp_path / "labs" / lab).mkdir(parents=True)
        (tmp_path / "labs" / lab / "lab.json").write_text("{}")
        for _ in range(count):
            keep(History.named(lab))
    both, one = ["0001", "0002", "0003", "last"], ["0001", "0002", "last"]
    assert offered("paths", "--run", "") == both
    assert offered("paths", "--lab", "one", "--run", "") == one
    assert offered("paths", "--lab=one", "--run", "") == one
    assert offered("graph", "one", "--run", "") == one
    assert offered("plot", "queues", "--lab", "one", "--run", "00") == one
    assert offered("hashing", "--explain", "266718", "--lab", "one", "--run", "") == one
    assert offered("runs", "one", "--remove", "") == one
    assert offered("runs", "") == ["one", "two"]


def test_the_verb_lists_and_removes_without_a_running_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks
    from heddle.cli.program import main

    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))

    def inv(*typed: str) -> tuple[int, dict[str, Any]]:
        code = main(vars(tasks), ["inv", "runs", *typed, "--format", "json"])
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, said

    assert inv() == (0, {"runs": [], "keep": {"runs": 50, "bytes": 200_000_000}, "removed": []})
    for lab in ("one", "two"):
        (tmp_path / "labs" / lab).mkdir(parents=True)
        (tmp_path / "labs" / lab / "lab.json").write_text("{}")
        for _ in range(2):
            keep(History.named(lab))
    code, said = inv()
    assert [(row["lab"], row["id"], row["last"]) for row in said["runs"]] == [
        ("one", "0001", False), ("one", "0002", True), ("two", "0001", False), ("two", "0002", True),
    ]  # fmt: skip
    code, said = inv("--remove", "1")
    assert (code, said["error"]["problems"][0]["why"]) == (2, "needs a LAB, because there are one, two")
    code, said = inv("one", "--remove", "1,last")
    assert (code, said["removed"], said["runs"]) == (0, ["0001", "0002"], [])
    assert History.named("two").ids() == ["0001", "0002"], "no file of another lab is touched"
    code, said = inv("oen")
    assert (code, said["error"]["problems"][0]["hint"]) == (2, "did you mean one?")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["paths", "--predict", "tiny", "--plan", "ring", "--run", "1"], "--predict and --run exclude each other"),
        (["paths", "--predict", "tiny", "--plan", "ring", "--now"], "--predict and --now exclude each other"),
        (["graph", "--fabric", "tiny", "--run", "1"], "--run and --fabric exclude each other"),
    ],
)
def test_run_has_no_use_without_a_lab(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks
    from heddle.cli.program import main

    assert main(vars(tasks), ["inv", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_limits_go_along_through_sudo_and_to_other_machines() -> None:
    from heddle.cli.privilege import KEPT
    from heddle.places.session import PASSED

    assert {KEEP_RUNS, KEEP_BYTES} <= set(KEPT)
    assert {KEEP_RUNS, KEEP_BYTES} <= set(PASSED)
