"""A live test that fails runs once more; what passes then is named, and too many of these are a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    plugins = [word for name in ("no:cacheprovider", "xdist", "tests.again") for word in ("-p", name)]
    argv = [sys.executable, "-m", "pytest", *plugins, *words, folder]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_live_test_that_passes_in_its_second_run_is_named_and_what_fails_twice_fails(tmp_path: Path) -> None:
    done = session(tmp_path, "netns", MOST, 1, "-n", "2")
    lines = [line for line in done.stdout.splitlines() if line.startswith("FLAKY")]
    assert sorted(lines) == [
        f"FLAKY netns/test_some.py::test_flaky[{n}]: ValueError: pause {n} of the machine" for n in range(MOST)
    ]
    assert done.returncode == 1 and f"1 failed, {MOST + 1} passed" in done.stdout, done.stdout
    assert 'raise ValueError(f"pause {n}' in done.stdout, "the first failure itself is shown"
    assert (tmp_path / "flaky").read_text().splitlines() == lines
    unit = session(tmp_path / "unit", "unit", 1, 0)
    assert unit.returncode == 1 and "FLAKY" not in unit.stdout and "1 failed, 2 passed" in unit.stdout
