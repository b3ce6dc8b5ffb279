"""The compiled NICs for aarch64, run by qemu: the comparisons of test_fastpath.py with the committed object.

It makes the same frames, byte for byte, as the Python NICs, and so as the object for x86-64.
"""

from __future__ import annotations

from collections.abc import Callable
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


CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    *((native.test_a_sender_makes_the_same_packets_for_the_same_events, (v, s)) for v in VERSIONS for s in SEEDS),
    *(
        (native.test_a_receiver_answers_alike_and_writes_the_same, (version, seed, delays))
        for version in VERSIONS
        for seed in SEEDS
        for delays in native.DELAYS
    ),
    *((native.test_frames_that_are_wrong_are_turned_away_for_the_same_reason, (version,)) for version in VERSIONS),
    *((native.test_the_loop_returns_when_a_message_is_complete, (version,)) for version in VERSIONS),
    (native.test_writes_outside_the_region_and_with_a_wrong_key_are_refused, ()),
    (native.test_a_sender_that_gets_no_answer_gives_up, ()),
    # 64-bit floating point rounds alike on both machines, without contraction.
    *((congestion.test_a_sender_waits_alike, (version, version)) for version in VERSIONS),
    *((congestion.test_a_receiver_notifies_alike, (version, version)) for version in VERSIONS),
]


@pytest.mark.parametrize(("comparison", "arguments"), CASES)
def test_the_object_does_what_the_python_nics_do(comparison: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    comparison(*arguments)
