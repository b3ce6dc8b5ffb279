"""The pool of labs: who gets which, how many are up, and who sees those that wait.

Namespaces, programs and processes that a killed test made by hand are removed by the next test run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runtimes.netns_cleanup import namespaces_of
from heddle.runtimes.registry import on_machine
from heddle_plugins.testing import pool as claims
from heddle_plugins.testing.pool import FabricRequest, Pool, sweep
from tests.machine import child, patience, until
from tests.netns.static_fabric import static_fabric
from tests.userplace import UserPlace

ONE = FabricRequest("tiny", ("racks=1", "hosts_per_rack=1"))
SAME = FabricRequest("tiny", ("hosts_per_rack=1", "racks=1", "link.mtu=4200"))  # a default, written out
OTHER = FabricRequest("tiny", ("racks=1", "hosts_per_rack=2"))
Leftovers = Callable[[str], list[str]]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pool(notes: list[str]) -> Iterator[Pool]:
    made = Pool(most=2, note=notes.append)
    yield made
    made.close()


@pytest.mark.long("10 seconds and more")
def test_the_same_fabric_is_shared_by_one_user_after_the_other(pool: Pool, leftovers: Leftovers) -> None:
    one = pool.take(ONE, user="first")
    two = pool.take(SAME, user="second")
    assert one.name != two.name, "the first is in use"
    assert {each.lab for each in claims.claims()} >= {one.name, two.name}
    assert pool.release(one).damage == ()
    assert pool.take(SAME, user="third").name == one.name
    other = pool.take(OTHER, user="fourth")
    assert all(on_machine(each.name) for each in (one, two, other)), "labs in use stay, though they are too many"
    pool.release(two)
    assert not on_machine(two.name), "idle labs do not exceed the limit"
    pool.release(other)
    pool.release(one)
    last = pool.take(FabricRequest("tiny", ("racks=1", "hosts_per_rack=3")), user="fifth")
    assert [on_machine(each.name) for each in (two, one, other)] == [False, False, True]
    pool.drop_idle()
    assert [on_machine(each.name) for each in (other, last)] == [False, True]
    pool.close()
    for lab in (one, two, other, last):
        assert leftovers(lab.name) == []


def test_a_host_without_its_route_is_noticed_and_its_lab_goes_down(pool: Pool) -> None:
    lab = pool.take(OTHER, user="first")
    for word in ("down", "up"):
        lab.output("host1", ["ip", "link", "set", "eth1", word])
    (damage,) = pool.release(lab).damage
    assert damage.startswith("reachability: ") and "host1" in damage
    assert not on_machine(lab.name)


@pytest.mark.deep
def test_a_lab_that_waits_is_hidden_and_one_that_was_destroyed_meanwhile_is_built_again(
    pool: Pool, notes: list[str]
) -> None:
    """Of one whose processes were killed: tests/netns/testing/test_plugin.py."""
    waits = pool.take(ONE, user="first")
    assert open_lab(waits.name).name in state.labs()
    pool.release(waits)
    assert waits.name not in state.labs() and waits.name not in [each.lab for each in status()]
    with pytest.raises(InputError, match="is not running"):
        open_lab(waits.name)
    assert pool.take(SAME).name == waits.name and open_lab(waits.name).fabric == waits.fabric
    pool.release(waits)
    life.down(waits.name)
    again = pool.take(ONE, user="test_mine.py::test_two")
    assert again.name != waits.name and not on_machine(waits.name)
    title = "tiny, racks=1, hosts_per_rack=1"
    assert notes == [f"lab {waits.name} ({title}) is built again for test_mine.py::test_two: "
                     f"lab {waits.name} was taken down"]  # fmt: skip


def test_a_lab_that_cannot_come_up_leaves_neither_lab_nor_claim(pool: Pool) -> None:
    before = _claimed()
    with pytest.raises(InputError, match="neither a preset nor a file"):
        pool.take("tinny")
    with pytest.raises(InputError, match="is not a runtime"):
        pool.take("tiny", "docker")
    assert _claimed() == before


def _claimed() -> set[str]:
    """Labs that this process claims; other workers take labs at the same time."""
    return {each.lab for each in claims.claims() if each.pid == os.getpid()}


@pytest.mark.deep
def test_labs_of_the_user_are_ignored_and_one_that_is_kept_stays_up_without_a_claim(pool: Pool, name: str) -> None:
    life.up(load_fabric("tiny", name=name, overrides=ONE.overrides))
    kept = pool.take(ONE)
    assert kept.name != name
    pool.keep(kept)
    pool.close()
    try:
        assert on_machine(name) and on_machine(kept.name) and kept.name in state.labs()
        record = state.read_record(kept.name)
        assert record is not None and record.source == "tiny, racks=1, hosts_per_rack=1 (kept by pytest)"
        assert kept.name not in {each.lab for each in claims.claims()}
    finally:
        life.down(kept.name)


ROOT = Path(__file__).resolve().parents[3]
MAKE = """
import sys
from pathlib import Path
from heddle_plugins.testing import pool as claims
from tests.netns.pfc_lab import pfc_lab

claims.CLAIMS_DIR = Path(sys.argv[2])
with pfc_lab(Path(sys.argv[1])) as net:
    print(net.lab.name, flush=True)
    sys.stdin.read()
"""
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
    with child(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
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


@pytest.mark.deep
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
