"""Namespaces, programs and processes that a killed test made by hand are removed by the next test run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.runtimes.netns_cleanup import namespaces_of
from heddle.testing import claims
from heddle.testing.pool import sweep
from tests.machine import patience, until
from tests.netns.static_fabric import static_fabric
from tests.userplace import UserPlace

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import sys
from pathlib import Path
from heddle.testing import claims
from tests.netns.pfc_lab import pfc_lab

claims.CLAIMS_DIR = Path(sys.argv[2])
with pfc_lab(Path(sys.argv[1])) as net:
    print(net.lab.name, flush=True)
    sys.stdin.read()
"""
Leftovers = Callable[[str], list[str]]
# A test of these suites that brings a lab up itself.
OWN_LAB = """
import pathlib, time
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life

def test_slow(name):
    life.up(load_fabric("tiny", name=name, overrides=["racks=1"]), runtime="netns")
    pathlib.Path("up").write_text(name)
    time.sleep(100)
"""


def test_the_fabric_of_a_killed_test_is_removed_with_its_processes(
    tmp_path: Path, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are in a directory of this test's own: another session on this machine must not sweep them first."""
    monkeypatch.setattr(claims, "CLAIMS_DIR", tmp_path / "claims")
    argv = [sys.executable, "-c", MAKE, str(tmp_path), str(claims.CLAIMS_DIR)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        name = maker.stdout.readline().strip()
        notes: list[str] = []
        sweep(notes.append)
        assert not [note for note in notes if name in note], "its process is running"
        maker.kill()
    found = leftovers(name)
    assert any("namespace" in each for each in found) and any("heddle.switch.pfc" in each for each in found), found
    sweep(notes.append)
    assert f"lab {name} was removed: pytest (process {maker.pid}) had ended without doing so" in notes
    assert leftovers(name) == []
    assert name not in {each.lab for each in claims.claims()}


def test_a_fabric_that_is_removed_as_usual_has_no_claim() -> None:
    with static_fabric() as lab:
        assert lab.name in {each.lab for each in claims.claims()}
    assert lab.name not in {each.lab for each in claims.claims()}
    assert namespaces_of(lab.name) == []


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A session with the fixtures of these suites, in the middle of a test that has brought its own lab up; its lab."""
    place = UserPlace.below(tmp_path, test_slow=OWN_LAB)
    session = place.start("-p", "tests.conftest", "-q")
    until((place.path / "up").exists, process=session)
    with session:
        yield session, (place.path / "up").read_text()
        session.kill()


def test_a_lab_that_a_test_brought_up_itself_goes_down_when_its_session_ends_early(
    own_lab: tuple[subprocess.Popen[str], str], leftovers: Leftovers
) -> None:
    session, lab = own_lab
    assert [each.pid for each in claims.claims() if each.lab == lab] == [session.pid]
    session.send_signal(signal.SIGTERM)
    out, _ = session.communicate(timeout=patience(60))
    assert session.returncode == 2, out
    assert leftovers(lab) == []
    assert lab not in {each.lab for each in claims.claims()}
