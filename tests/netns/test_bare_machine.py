"""`./inv` on a machine without Heddle's Python packages and FRR, where it can neither ask nor install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from heddle.base.resources import HERE
from heddle.host.packages import FRR_DIRS
from tests.netns.test_wheel_job import hidden

TREE = (
    "inv", "tasks.py", "pyproject.toml", "requirements.lock", "heddle", "heddle_plugins", "plugins", "templates",
    "traffic",
)  # fmt: skip
STARTED = ("demo", "up tiny", "run --fabric tiny", "experiment ecn-threshold", "reproduce sigcomm24")
# No system package is needed, or whether one is needed is not known yet, or leave to install is given.
GOES_ON: tuple[tuple[str, dict[str, str]], ...] = (
    ("up tiny --dry-run", {}),
    ("demo --help", {}),
    ("experiment queue-pairs", {}),
    ("demo", {"CI": "true"}),
)


def test_what_is_missing_is_said_before_the_python_packages_are_set_up(tmp_path: Path) -> None:
    root = HERE.checkout("this test")
    for name in TREE:
        (tmp_path / name).symlink_to(root / name) if name != "inv" else shutil.copy(root / name, tmp_path / name)
    env = {key: value for key, value in os.environ.items() if key not in ("CI", "HEDDLE_PYTHON", "HEDDLE_VENV")}
    env["PATH"] = f"/usr/bin:{env['PATH']}"  # the distribution's Python: another one may have these packages

    def inv(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*hidden(*FRR_DIRS), str(tmp_path / "inv"), *words], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, env=env | more, check=False, cwd="/", timeout=600,
        )  # fmt: skip

    for words in STARTED:
        done = inv(*words.split())
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert done.stderr == (
            "frr is missing: the switches' control plane: zebra and bgpd\n"
            f"  hint: run ./inv {words} --yes: it installs frr by apt-get, and Heddle's Python packages in"
            " .venv\n"
        )
    (problem,) = json.loads(inv("demo", "--format", "json").stdout)["error"]["problems"]
    assert problem["what"] == "frr"
    assert not (tmp_path / ".venv").exists(), "nothing was made"
    for words, more in GOES_ON:  # to the setup
        done = inv(*words.split(), HEDDLE_PYTHON="/bin/false" if "CI" in more else "", PIP_NO_INDEX="1", **more)
        assert done.returncode == 3 and "frr" not in done.stderr, done.stderr
