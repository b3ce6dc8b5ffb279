"""A checkout without some of its plugins: verbs of the core work, and the rest is refused in one sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.base import resources
from tests.answers import Answers
from tests.away import left_out

ROOT = Path(__file__).resolve().parents[2]
AWAY = ("packets", "places", "testing")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout without the plugins of AWAY."""
    root = tmp_path_factory.mktemp("without plugins")
    for name in ("heddle", "plugins", *resources.CONTENT, *resources.BESIDE):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    (root / resources.PLUGINS).symlink_to("plugins")
    for name in AWAY:
        shutil.rmtree(root / "plugins" / name)
    return root


def inv(checkout: Path, line: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(checkout / "tasks.py"), *line.split()]
    return subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)


def test_what_a_missing_plugin_has_is_refused_in_one_sentence(checkout: Path, answers: Answers) -> None:
    def refused(line: str) -> str:
        done = inv(checkout, line)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    answers(refused)


def test_verbs_of_the_core_work_without_them(checkout: Path) -> None:
    assert inv(checkout, "up tiny --dry-run").returncode == 0
    helped = inv(checkout, "capture --help")
    assert helped.returncode == 0 and "--read" in helped.stdout
    checks = inv(checkout, "doctor").stdout
    assert "\nverbs " in checks and "\nvm " not in checks, "its row is a part of places"


def test_tests_that_need_a_missing_plugin_are_left_out() -> None:
    found = left_out(frozenset({"places"}))
    assert {"netns/places", "unit/places", "vm", "sshd.py", "netns/test_mcp.py"} <= set(found)
    assert not {"netns", "unit", "conftest.py", "unit/test_resources.py"} & set(found)
    assert left_out(frozenset()) == []
