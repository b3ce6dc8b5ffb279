"""The pool of labs: who gets which, how many are up, and who sees those that wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from heddle.base import state
from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runtimes.registry import on_machine
from heddle.testing.claims import claims
from heddle.testing.fabricmarker import FabricRequest
from heddle.testing.pool import Pool

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


@pytest.mark.deep
def test_the_same_fabric_is_shared_by_one_user_after_the_other(pool: Pool, leftovers: Leftovers) -> None:
    one = pool.take(ONE, user="first")
    two = pool.take(SAME, user="second")
    assert one.name != two.name, "the first is in use"
    assert {each.lab for each in claims()} >= {one.name, two.name}
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


@pytest.mark.deep
def test_a_lab_that_waits_is_hidden_and_one_that_was_destroyed_meanwhile_is_built_again(
    pool: Pool, notes: list[str]
) -> None:
    """Of one whose processes were killed: tests/netns/test_plugin.py."""
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
    return {each.lab for each in claims() if each.pid == os.getpid()}


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
        assert kept.name not in {each.lab for each in claims()}
    finally:
        life.down(kept.name)
