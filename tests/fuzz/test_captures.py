"""Mutated capture files: `capture --read` prints what is before the damage, and names the damage."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle_plugins.packets.capture_read import read_capture
from tests.fuzz.cases import Fuzz
from tests.fuzz.mutate import damaged
from tests.marks import deep
from tests.unit.packets.capture_frames import CARRIED, FORMATS, FRAMES, pcap, pcapng

CORPUS: Final = [
    *FORMATS.values(), pcap([frame for _, frame in CARRIED]), pcapng(FRAMES[:3], ">", 9, b"leaf") + pcapng(FRAMES[3:6]),
]  # fmt: skip


class Quiet(Console):
    """Keeps what the verb prints."""

    def __init__(self) -> None:
        super().__init__("text")
        self.said: list[str] = []

    def result(self, data: Mapping[str, Any], text: str = "") -> None:
        self.said.append(text)

    def show(self, text: str) -> None:
        self.said.append(text)

    def fail(self, *problems: Problem, code: int = 1) -> None:
        self.said += map(str, problems)
        self.exit_code = code


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [600, deep(60_000)])
def test_captures(fuzz: Fuzz, count: int) -> None:
    packed = [gzip.compress(data) for data in CORPUS]

    def one(dice: random.Random, place: Path) -> None:
        data = dice.choice(CORPUS)
        choice = dice.random()
        if choice < 0.1:
            data = damaged(dice, dice.choice(packed))
        elif choice < 0.2:
            data = gzip.compress(damaged(dice, data), 1)
        else:
            data = damaged(dice, data)
        file = place / "x.pcap"
        file.write_bytes(data)
        out = Quiet()
        try:
            read_capture(out, str(file), dice.choice((None, 1, 100)), {})
        except InputError as error:
            out.said.append(str(error))
        assert out.exit_code in (0, 2)
        assert not any("\x1b" in text for text in out.said), "a name of an interface steers the terminal"

    fuzz.run(count, one)
