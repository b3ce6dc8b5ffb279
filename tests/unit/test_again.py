"""A live test that fails runs once more; what passes then is named, and too many of these are a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pathlib, pytest

@pytest.fixture(scope="module")
def lab():
    made = pathlib.Path("made")
    made.write_text(made.read_text() + "x" if made.exists() else "x")
    return made

@pytest.mark.parametrize("n", range({flaky}))
def test_flaky(lab, n):
    mark = pathlib.Path(f"mark{{n}}")
    if not mark.exists():
        mark.touch()
        raise ValueError(f"pause {{n}}\\nof the machine")

def test_broken(lab):
    assert {broken} == 0

def test_good(lab): ...
"""


def session(place: Path, folder: str, flaky: int, broken: int, *words: str) -> subprocess.CompletedProcess[str]:
    (place / folder).mkdir(parents=True)
    (place / folder / "test_some.py").write_text(TESTS.format(flaky=flaky, broken=broken))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    env = {**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HEDDLE_FLAKY": str(place / "flaky")}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist",
        "-p",
        "tests.again",
        *words,
        folder,
    ]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_a_live_test_that_passes_in_its_second_run_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = session(tmp_path, "netns", MOST, 0, *words)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FLAKY")]
    assert sorted(lines) == [
        f"FLAKY netns/test_some.py::test_flaky[{n}]: ValueError: pause {n} of the machine" for n in range(MOST)
    ]
    assert done.returncode == 0, done.stdout
    assert 'raise ValueError(f"pause {n}' in done.stdout, "the first failure itself is shown"
    assert (tmp_path / "flaky").read_text().splitlines() == lines
    if not words:
        assert (tmp_path / "made").read_text() == "x" * (1 + MOST), "a second run has new fixtures"


def test_more_of_them_are_a_failure_also_over_several_sessions(tmp_path: Path) -> None:
    assert session(tmp_path, "netns", MOST, 0).returncode == 0
    second = session(tmp_path, "clab", MOST + 1, 0)  # its first ones have their mark already
    assert second.returncode == 1 and second.stdout.count("\nFLAKY") == MOST + 1, second.stdout


def test_what_fails_twice_fails_and_unit_tests_run_once(tmp_path: Path) -> None:
    live = session(tmp_path / "live", "netns", 0, 1)
    assert live.returncode == 1 and "FLAKY" not in live.stdout and "1 failed, 1 passed, 1 skipped" in live.stdout
    unit = session(tmp_path / "unit", "unit", 1, 0)
    assert unit.returncode == 1 and "FLAKY" not in unit.stdout and "1 failed, 2 passed" in unit.stdout
