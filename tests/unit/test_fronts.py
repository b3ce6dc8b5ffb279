"""The fronts of the command line: ./inv, inv, invoke and python -m invoke take the same words and end alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.marks import deep
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]


# Each is followed by words of Heddle. ./inv itself is in test_bootstrap.py; the last line of it runs tasks.py.
FRONTS = {
    "tasks.py": [sys.executable, str(ROOT / "tasks.py")],
    "invoke": [str(Path(sys.executable).with_name("invoke"))],
    "python -m invoke": [sys.executable, "-m", "invoke"],
}
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["./inv", "invoke", deep("tasks.py"), deep("python -m invoke")])
def typed_to(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a line by one of the programs that take Heddle's verbs, in the project's directory."""
    if request.param == "./inv":
        monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
        return typed
    argv = FRONTS[request.param]
    env = _env(HEDDLE_STATE_DIR=str(tmp_path))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    return run


def test_every_front_lists_and_explains_the_verbs(typed_to: Typed) -> None:
    listed = typed_to("--list")
    assert listed.returncode == 0
    assert {"demo", "up", "paths", "exec"} <= {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
    for words in (("--help", "up"), ("up", "--help")):
        told = typed_to(*words)
        assert (told.returncode, told.stderr) == (0, "")
        assert "Bring up a fabric" in told.stdout
        assert "--runtime" in told.stdout
        assert "where nodes run" in told.stdout


def test_every_front_runs_a_verb_and_ends_alike(typed_to: Typed) -> None:
    done = typed_to("up", "tiny", "--explain", "--set", "ctsw=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ctsw3" in done.stdout
    wrong = typed_to("up", "tinny", "--explain")  # without that it would look for FRR first, and may install it
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "tinny is neither a preset nor a file\n  hint: did you mean tiny?\n"
    output = typed_to("up", "tinny", "--explian", "--format", "json")
    assert output.returncode == 2
    assert json.loads(output.stdout)["error"]["kind"] == "InputError"
    assert "did you mean --explain?" in output.stderr
    assert typed_to("upp").returncode == 2


def test_every_front_leaves_words_after_two_dashes_as_they_are(typed_to: Typed) -> None:
    done = typed_to("test", "nosuite", "--", "-k", "a b", "--x=y")
    assert done.returncode == 2
    assert "nosuite" in done.stderr


def test_invoke_hands_over_the_words_from_the_verb_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from invoke import Program

    from heddle.cli.program import typed_to_invoke

    assert typed_to_invoke() is None, "pytest is not invoke"
    program = Program()
    monkeypatch.setitem(sys.modules, "invoke.main", SimpleNamespace(program=program))
    assert typed_to_invoke() is None, "it has not begun"
    for argv, words in {
        "invoke --list": None,
        "invoke --help up": None,
        "invoke -r /srv up tiny": "up tiny",
        "invoke --search-root=/srv -e exec rtsw1 -- cat --a=b -- x": "exec rtsw1 -- cat --a=b -- x",
        "invoke test -- -k x": "test -- -k x",
        "invoke --lab zone status": "--lab zone status",
    }.items():
        program.normalize_argv(argv)
        program.parse_core_args()
        assert typed_to_invoke() == (words.split() if words else None), argv


def _env(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
