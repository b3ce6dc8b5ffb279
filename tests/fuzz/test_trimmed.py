"""Damaged trimmed frames into every endpoint: none raises, no byte of data is wrong, and the right ones arrive.

Of the Python NIC with the ends of every transport, in both directions; and of the compiled NIC, which takes none.
nicframes.py gives them to the compiled NIC with sanitizers, too.
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.transports.rc import RcSender
from heddle.endpoints.transports.scapyparams import ScapyParams
from heddle.endpoints.transports.scapyqp import ScapyQp
from tests.fuzz.cases import Fuzz
from tests.marks import deep
from tests.unit.fastpath_bench import MTU, FastBench, needs_object
from tests.unit.test_fuzz_nic import IMM, MESSAGE, PARAMS, PAYLOAD, SENDER, header, right_frames
from tests.unit.test_fuzz_nic import PSN as FIRST
from tests.unit.test_fuzz_nic import RECEIVER as TAKES
from tests.unit.test_trimmed import DEAF, ENDS, SIZES, Ends, Loop, mutated

_FRAMES: Final = 1000  # damaged ones in a case, at least
SCAPY: Final = ScapyParams(MTU, 32, 4, 1.0, 1000)
EVERY: Final[dict[str, Ends]] = {
    **ENDS, **DEAF, "scapy": (lambda qp: ScapyQp(SCAPY, qp), lambda qp, memory: ScapyQp(SCAPY, qp, memory)),
}  # fmt: skip


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [2, deep(100)])
@pytest.mark.parametrize("name", EVERY)
def test_trimmed(fuzz: Fuzz, name: str, count: int) -> None:
    """100 cases are 100,000 frames and more."""
    given = list[int]()

    def one(dice: random.Random, place: Path) -> None:
        loop, made = Loop(EVERY[name], dice.choice((4, 6)), dice.randrange(1 << 30)), 0

        def damaged(frames: list[bytes]) -> list[bytes]:
            nonlocal made
            found = []
            for frame in frames:
                # A whole one may have a right ICRC, and is then a copy: uc takes one that comes early for a gap.
                some = [loop.dice.choice(loop.data or [frame]) for _ in range(10)]
                found += [mutated(each, loop.version, loop.dice, whole=name != "uc") for each in some]
                found.append(frame)
            made += len(found)
            return found

        loop.run(damaged, damaged)
        while made < _FRAMES:
            (near, _, _), (far, into, _) = loop.sender, loop.receiver
            into[0].arriving += damaged([loop.dice.choice(loop.data)])[:-1]
            far.receive(loop.now)
            far.transmit(loop.now)
            near.receive(loop.now)
        given.append(made)
        if name in ENDS:
            loop.check()
        assert bytes(loop.memory.data) == loop.total and loop.memory.arrivals == list(range(len(SIZES)))
        assert not loop.receiver[2].end.error and not loop.sender[2].end.error

    fuzz.run(count, one)
    assert fuzz.only is not None or sum(given) >= count * _FRAMES


@needs_object
@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [2, deep(100)])
def test_trimmed_compiled(fuzz: Fuzz, count: int) -> None:
    """The compiled NIC turns each of them away, and completes its message."""

    def one(dice: random.Random, place: Path) -> None:
        version = dice.choice((4, 6))
        right = right_frames(version, RcSender(PARAMS, QpInfo(SENDER, header(version, TAKES), FIRST)))
        with closing(FastBench(PARAMS, version, FIRST, MESSAGE)) as fast:
            fast.expect(MESSAGE, IMM, 1)
            fast.post(np.frombuffer(PAYLOAD, np.uint8), 0, IMM)
            for number in range(_FRAMES):
                fast.give(mutated(dice.choice(right), version, dice, whole=False)[: 1 << 15])
                if number % (_FRAMES // len(right)) == 0 and number * len(right) // _FRAMES < len(right):
                    fast.give(right[number // (_FRAMES // len(right))])
                fast.work(1.0)
                if not number % 64:
                    fast.sent()
            assert sum(fast.turned_away()) == _FRAMES
            assert (fast.done, fast.failed, fast.written()) == ([0], [], PAYLOAD)

    fuzz.run(count, one)
