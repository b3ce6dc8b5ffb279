"""A congestion control from another distribution, beside the wheel: as a user installs both, on a running fabric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.wheels import InstalledWheel, install


def test_it_is_offered_runs_and_is_recorded_and_its_own_tests_pass(wheel: Path, tmp_path: Path, name: str) -> None:
    made = install(wheel, tmp_path / "the environment")
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}

    def heddle(*words: str) -> subprocess.CompletedProcess[str]:
        done = made.heddle(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done

    heddle("plugin", "new", "congestion", "gentle")
    pip = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-q", "--no-index", "--no-deps"]
    words = [*pip, "--no-build-isolation", "--disable-pip-version-check", str(tmp_path / "heddle-gentle")]
    subprocess.run(words, check=True, capture_output=True)

    assert "gentle (halves the rate for a CNP" in heddle("run", "--help").stdout
    assert "gentle" in heddle("--complete", "--", "heddle", "run", "--cc", "").stdout.split()
    assert "gentle" in words_of_assistants(made, tmp_path)
    found = heddle("doctor", "--format", "json").stdout
    (row,) = (each for each in json.loads(found)["checks"] if each["name"] == "plugins")
    assert row["ok"] and "heddle-gentle 0.1.0" in row["detail"]

    heddle("up", "tiny", "--name", name)
    try:
        typed = ("--cc", "gentle", "--cc-set", "quiet=100", "--collective", "incast", "--size", "64K", "--iters", "2")
        run = json.loads(heddle("run", "--lab", name, *typed, "--format", "json").stdout)
        assert {result["wrong"] for result in run["results"]} == {0}
        assert run["options"]["congestion"] == "gentle"
        heddle("report", "--lab", name, "--out", str(tmp_path / "r.html"))
        page = (tmp_path / "r.html").read_text()
        assert "--cc gentle" in page and "--cc-set quiet=100" in page, "the command that repeats the run"
    finally:
        heddle("down", name)

    own = [str(made.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "heddle-gentle")]
    tests = subprocess.run(own, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **env})
    assert tests.returncode == 0 and "3 passed" in tests.stdout, tests.stdout + tests.stderr


def words_of_assistants(made: InstalledWheel, there: Path) -> list[str]:
    """What an assistant is told of the argument `cc` of the tool `run`."""
    program = (
        "import json; from heddle.cli.front import tasks; from heddle.cli.program import commands_in; "
        "from heddle.cli.assistant import _listed; "
        "print(json.dumps(_listed(commands_in(vars(tasks()))['run'].verb).input_schema['properties']['cc']['enum']))"
    )
    done = subprocess.run([str(made.python), "-c", program], capture_output=True, text=True, check=False, cwd=there)
    assert done.returncode == 0, done.stderr
    return [str(each) for each in json.loads(done.stdout)]
