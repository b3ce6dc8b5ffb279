"""--part K/N: each deep test is in one part of N, all other tests are in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import part_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
def test_each_feature(): ...
@pytest.mark.deep
@pytest.mark.parametrize("n", range(40))
def test_in_detail(n): ...
"""

WHOLE = """
import pytest
pytestmark = pytest.mark.deep
@pytest.mark.parametrize("n", range(9))
def test_shares(n): ...
"""


def session(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (place / "test_some.py").write_text(TESTS)
    (place / "test_whole.py").write_text(WHOLE)
    (place / "pytest.ini").write_text("[pytest]\nmarkers = deep\n")
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    env = {**mine, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.parts", "-v", *words]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_each_deep_test_is_in_one_part_and_the_others_are_in_all(tmp_path: Path) -> None:
    ran: list[str] = []
    wholes: list[int] = []
    for part in ("1/3", "2/3", "3/3"):
        done = session(tmp_path, "--part", part)
        assert done.returncode == 0 and f"part {part} of the tests with the mark deep" in done.stdout, done.stdout
        ran += [line.split()[0] for line in done.stdout.splitlines() if "PASSED" in line]
        wholes.append(done.stdout.count("test_whole.py::"))
    deep = [each for each in ran if "in_detail" in each]
    assert sorted(wholes) == [0, 0, 9], "a module that is deep as a whole is not divided"
    assert len(deep) == len(set(deep)) == 40 and ran.count("test_some.py::test_each_feature") == 3


def test_a_part_is_the_same_in_each_run() -> None:
    """Python's own hash of a text differs from process to process; workers must choose the same tests."""
    names = [f"tests/unit/test_x.py::test_{n}" for n in range(8)]
    assert [part_of("1/3").has(name) for name in names] == [False, False, False, True, False, True, False, True]


def test_another_text_is_an_error_of_one_line(tmp_path: Path) -> None:
    for text in ("", "2", "0/3", "4/3", "1/0", "a/b", "1/3/5"):
        with pytest.raises(pytest.UsageError, match="is not K/N"):
            part_of(text)
    done = session(tmp_path, "--part", "5/3")
    assert done.returncode == 4 and "ERROR: --part 5/3: is not K/N" in done.stderr and "Traceback" not in done.stderr
