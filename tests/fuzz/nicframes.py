"""Frames into the compiled NIC in a process of its own: `python -m tests.fuzz.nicframes OBJECT SEED FIRST COUNT`.

Each case is a NIC with queue pairs in both directions, and some hundred frames: right ones, damaged ones, trimmed ones,
and ones with hostile fields and a right ICRC, which the NIC must read to the end. The object is built with
AddressSanitizer and UndefinedBehaviorSanitizer, whose library is preloaded: the process ends at the first error.
Out: the number of each case before it begins, then how many frames were turned away, and messages completed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from heddle.endpoints.congestion.controlled import Controlled, congestion_of
from heddle.endpoints.fastpath import fastloop
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.qpend import Message, QpInfo
from heddle.endpoints.transports.rc import RcSender
from heddle.endpoints.transports.rcstate import RcParams
from heddle.kernel.native import native
from heddle.wire import layout as wire
from heddle.wire.layout import icrc
from tests.fuzz.mutate import damaged
from tests.unit.fastpath_bench import MTU, FastBench, answer, found
from tests.unit.test_fuzz_nic import header
from tests.unit.test_rc import RKEY
from tests.unit.test_trimmed import mutated

MESSAGE: Final = 12 * MTU - 100
FRAMES: Final = 200
PARAMS: Final = RcParams(MTU, 64, 8, 1e6, 7)
_NUMBERS: Final = (0, 1, 255, 256, MTU, MTU + 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF)


class Sanitized(FastBench):
    """The NIC of another object."""

    code_and_crc: tuple[Any, int]

    def loaded(self) -> tuple[Any, int]:
        return self.code_and_crc


def hostile(dice: random.Random, version: int, frame: bytes) -> bytes:
    """A frame with odd fields behind its addresses, and a right ICRC."""
    made = bytearray(frame[: len(frame) - 4])
    first = wire.LAYOUTS[version].udp_at + wire.UDP_BYTES
    for _ in range(dice.choice((1, 1, 2, 4))):
        choice = dice.randrange(4)
        if choice == 0:  # the opcode
            made[first] = dice.randrange(256)
        elif choice == 1 and len(made) > first + 12:  # words of the BTH and the headers behind it
            at = first + 4 * dice.randrange(1, min(8, (len(made) - first) // 4))
            made[at : at + 4] = (dice.choice(_NUMBERS) & 0xFFFFFFFF).to_bytes(4, "big")
        elif choice == 2:  # pad count, partition, acknowledge request
            made[first + dice.randrange(1, 12)] ^= 1 << dice.randrange(8)
        elif dice.random() < 0.5:
            made = made[: max(first + 12, dice.randrange(len(made)))]
        else:
            made += bytes(dice.choice((1, 3, 4, MTU, 4 * MTU)))
    if dice.random() < 0.7:  # lengths that fit, so that not every odd length is refused there
        layout = wire.LAYOUTS[version]
        size = len(made) + 4 - layout.udp_at
        made[layout.udp_at + 4 : layout.udp_at + 6] = (size & 0xFFFF).to_bytes(2, "big")
        at, less = (16, 14) if version == 4 else (18, layout.udp_at)
        made[at : at + 2] = (len(made) + 4 - less & 0xFFFF).to_bytes(2, "big")
    return bytes(made) + icrc(bytes(made[wire.IP_AT :]) + bytes(4))


def right_frames(version: int, psn: int) -> list[bytes]:
    """Data of a message to each receiving queue pair, and acknowledgements to each sending one."""
    frames = []
    for number in range(3):
        qpn = 0x300 + number
        sender = RcSender(PARAMS, QpInfo(0x400 + number, header(version, qpn), psn))
        sender.post(Message(memoryview(bytes(MESSAGE)), FastBench.BASE, RKEY, 7))
        batch = SendBatch(MTU, slots=64, version=version)
        frames += [bytes(batch.frame(i)) for i in range(sender.take(batch, 0, 64, 0.0))]
        syndromes = (wire.ACK_NO_LIMIT, 0x00, 0x20, 0x3F, 0x60, 0x61, 0x62, 0x63, 0x7F, 0xFF)
        frames += [answer(version, 0x100 + number, psn + at & wire.PSN_MASK, s) for at, s in enumerate(syndromes)]
    return frames


def case(seed: int, number: int) -> tuple[int, int]:
    """Run one case; frames that were turned away, and messages that were completed."""
    dice = random.Random(f"{seed} frames {number}")
    version, psn = dice.choice((4, 6)), dice.choice((0, 5, wire.PSN_MASK - 3, 1 << 23))
    control = dice.choice((None, CONTROL))
    nic = Sanitized(PARAMS, version, psn, MESSAGE, dice.choice(((0.0,), (0.0, 0.004))), control)
    right = right_frames(version, psn)
    in_order = iter(right[: -(-MESSAGE // MTU)])
    nic.expect(MESSAGE, 7, dice.choice((1, 3)))
    nic.post(np.zeros(MESSAGE, np.uint8), 0, 7)
    now = 0.0
    try:
        for at in range(FRAMES):
            frame, choice = dice.choice(right), dice.random()
            if choice < 0.45:
                frame = hostile(dice, version, frame)
            elif choice < 0.58:
                frame = damaged(dice, frame)
            elif choice < 0.7:
                frame = mutated(frame, version, dice, whole=False)
            elif choice < 0.9:  # a message becomes complete
                frame = next(in_order, frame)
            if frame:
                nic.give(frame[: 1 << 15])
            if at % 8 == 7:
                now += dice.choice((0.0, 0.001, 0.1, 4.0))
                nic.work(now, tick=dice.random() < 0.3)
                nic.sent()
        nic.work(now + 10, tick=True)
        nic.written()
        nic.counters()
        return sum(nic.turned_away()), len(nic.done)
    finally:
        nic.close()


def _control() -> Controlled:
    from heddle.fabric.fabricfile import load_fabric
    from heddle.runs.run import job_plan
    from heddle.traffic.options import RunOptions

    control = congestion_of(job_plan(load_fabric("tiny").fabric, RunOptions(congestion="dcqcn")))
    assert control is not None
    return control


def main(words: Sequence[str]) -> int:
    """Run the cases; 0 if no sanitizer ended this process."""
    object_, seed, first, count = words[0], *map(int, words[1:])
    assert isinstance(found, fastloop.Library)
    code = native.load(Path(object_), fastloop._SIGNATURES)
    assert not isinstance(code, str), code
    Sanitized.code_and_crc = code, found.crc
    turned = done = 0
    for number in range(first, first + count):
        print(number, flush=True)
        away, complete = case(seed, number)
        turned, done = turned + away, done + complete
    print(f"turned away {turned}, completed {done}")
    return 0


CONTROL: Final = _control()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
