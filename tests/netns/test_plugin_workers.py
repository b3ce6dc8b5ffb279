"""The plugin under pytest-xdist: each worker has a pool of its own, and the controller reports for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.lab import lifecycle as life
from heddle.testing.claims import claims
from tests.machine import patience, until
from tests.userplace import PLUGIN, UserPlace, section

Leftovers = Callable[[str], list[str]]
HEAD = "import os, pathlib, subprocess, time, pytest\npytestmark = pytest.mark.fabric('tiny', racks=1)\n"
NOTE = "    pathlib.Path(f'lab-{os.getpid()}').write_text(lab.name)\n"
FIRST = f"{HEAD}def test_a(heddle_lab, heddle_run):\n    lab = heddle_lab\n{NOTE}    heddle_run(sizes='64K', iters=1)\n"
LEFT = f"""{HEAD}
def test_b(heddle_lab):
    lab = heddle_lab
{NOTE}
    subprocess.Popen(["ip", "netns", "exec", lab.handle("host1").netns.name, "sleep", "601"])
    while not subprocess.run(["ip", "netns", "pids", lab.handle("host1").netns.name], capture_output=True).stdout:
        time.sleep(0.02)
"""
KEPT = f"""{HEAD}
def test_c(heddle_lab):
    lab = heddle_lab
{NOTE}
    pathlib.Path("kept").write_text(lab.name)
    assert lab.name == "mine"
"""
SLOW = f"{HEAD}def test_slow(heddle_lab):\n    lab = heddle_lab\n{NOTE}    time.sleep(100)\n"


def labs(place: UserPlace) -> dict[int, str]:
    """Worker -> its lab."""
    return {int(path.name.removeprefix("lab-")): path.read_text() for path in place.path.glob("lab-*")}


# `./inv test` itself has two workers, each with a pool of its own.
@pytest.mark.deep
def test_workers_have_labs_of_their_own_and_one_report(tmp_path: Path, leftovers: Leftovers) -> None:
    place = UserPlace.below(tmp_path, test_first=FIRST, test_left=LEFT, test_kept=KEPT)
    (place.path / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    done = place.pytest(*PLUGIN, "-n", "2", "--dist", "loadfile", "--junit-xml=out.xml", "--heddle-keep")
    kept = (place.path / "kept").read_text()
    try:
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 2 passed, 1 warning in ")
        assert f"test_kept.py::test_c: lab {kept} is left up" in section(done.stdout, "heddle")
        assert "test_left.py::test_b left process " in section(done.stdout, "warnings summary")
        named = labs(place)
        assert len(named) == 2 and len(set(named.values())) == 2, named
        assert [left for lab in named.values() if lab != kept for left in leftovers(lab)] == []
        assert not {each.pid for each in claims()} & set(named)
    finally:
        life.down(kept)
    assert leftovers(kept) == []
    found = {each.get("name"): each.get("value") for each in ET.parse(place.path / "out.xml").iter("property")}
    assert found["heddle.run1.sizes"] == "65536" and found["heddle.fabric"] == "tiny, racks=1", found


@pytest.mark.deep
@pytest.mark.parametrize(("number", "group"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_an_interrupted_session_takes_the_labs_of_all_workers_down(
    tmp_path: Path, leftovers: Leftovers, number: signal.Signals, group: bool
) -> None:
    """SIGTERM reaches the controller only, Ctrl-C the whole process group."""
    place = UserPlace.below(tmp_path, test_slow=SLOW, test_slower=SLOW)
    session = subprocess.Popen(
        place.command(*PLUGIN, "-n", "2", "--dist", "loadfile"), cwd=place.path, env=place.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(labs(place)) == 2, 90, process=session)
    (os.killpg if group else os.kill)(session.pid, number)
    out, _ = session.communicate(timeout=patience(90))
    assert session.returncode == 2, out
    assert [left for lab in labs(place).values() for left in leftovers(lab)] == []
    assert not {each.pid for each in claims()} & set(labs(place))
