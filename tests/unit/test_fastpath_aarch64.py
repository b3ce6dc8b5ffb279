"""The compiled NICs for aarch64, run by qemu: the comparisons of test_fastpath.py with the committed object.

It makes the same frames, byte for byte, as the Python NICs, and so as the object for x86-64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.endpoints.fastpath import library
from tests.unit import fastpath_bench
from tests.unit import test_fast_congestion as congestion
from tests.unit import test_fastpath as native
from tests.unit.emulated_fastpath import EmulatedCode, build_driver, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SEEDS = range(3)
VERSIONS = (4, 6)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "driver")


@pytest.fixture(autouse=True)
def emulated(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What test_fastpath.py compares with the Python NICs is the emulated object."""

    class EmulatedBench(fastpath_bench.FastBench):
        def loaded(self) -> tuple[Any, int]:
            code = EmulatedCode(program, [near.fileno() for near, _ in self.pairs])
            return code, code.crc

        def at(self, array: np.ndarray) -> Any:
            return array

        def string_at(self, where: int, size: int) -> bytes:
            return bytes(self.code.string_at(where, size))

        def close(self) -> None:
            super().close()
            self.code.close()

    monkeypatch.setattr(fastpath_bench, "FastBench", EmulatedBench)


def test_the_object_is_of_this_version(program: Path) -> None:
    code = EmulatedCode(program)
    assert code.hd_version() == library.VERSION
    code.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sender_makes_the_same_packets(version: int, seed: int) -> None:
    native.test_a_sender_makes_the_same_packets_for_the_same_events(version, seed)


@pytest.mark.parametrize("delays", native.DELAYS, ids=["at once", "held back"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_receiver_answers_alike(version: int, seed: int, delays: tuple[float, ...]) -> None:
    native.test_a_receiver_answers_alike_and_writes_the_same(version, seed, delays)


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_frames_are_turned_away(version: int) -> None:
    native.test_frames_that_are_wrong_are_turned_away_for_the_same_reason(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_loop_returns(version: int) -> None:
    native.test_the_loop_returns_when_a_message_is_complete(version)


def test_writes_that_are_not_allowed_are_refused() -> None:
    native.test_writes_outside_the_region_and_with_a_wrong_key_are_refused()


def test_a_sender_gives_up() -> None:
    native.test_a_sender_that_gets_no_answer_gives_up()


@pytest.mark.parametrize("version", VERSIONS)
def test_congestion_control_has_the_same_numbers(version: int) -> None:
    """64-bit floating point rounds alike on both machines, without contraction."""
    congestion.test_a_sender_waits_alike(version, version)
    congestion.test_a_receiver_notifies_alike(version, version)
