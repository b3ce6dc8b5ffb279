"""What it costs the processors of a host to give messages to its NICs: the model of `run --posting`.

In:  what a user typed, as `8,pinned,sharded`. Out: Posting; the time of a thread for each message.
A host has posting threads, and each serves an equal share of its NICs, one NIC after the other. In a turn at a NIC a
thread posts up to `batch` messages. A turn has a cost of its own (it polls for completions), and so has each message.
Other threads make both dearer: they share memory and the driver. Threads that share the state of the transfer, or that
are not pinned to a processor near their NICs, do so far more.

The numbers are fitted to the rates that "Harnessing 3200 Gbps Network" (Lequn Chen, 2024) publishes for two AWS p5
hosts with 32 EFA NICs of 100 Gb/s and writes of 64 KiB. Each step of that series is one factor here:

| step | Gb/s | fits |
|---|---|---|
| one thread | 293.461 | post_ns + turn_ns, 1,786 ns |
| 8 threads | 355.301 | UNPINNED |
| pinned | 1,237.738 | SHARED |
| sharded | 1,522.567 | OTHERS |
| batch | 2,589.488 | the shares of post_ns and turn_ns |
| lazy | 3,108.283 | LAZY; near the rate of the NICs, so the cost may be lower |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from heddle.base.problems import did_you_mean
from heddle.base.units import parse_duration

BATCH: Final = 16
OTHERS: Final = 0.0775  # of the cost of one thread, for each other thread
SHARED: Final = 1.2301
UNPINNED: Final = 3.4836
LAZY: Final = 0.825  # of post_ns: posting makes no progress, which is left to the poll loop
_MOST_THREADS: Final = 1024
_MOST_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Posting:
    """Posting threads of each host. post_ns, turn_ns: of one thread alone, on hardware: a message, and a turn."""

    threads: int
    pinned: bool = False
    sharded: bool = False
    lazy: bool = False
    batch: int = 1
    post_ns: float = 1001.0
    turn_ns: float = 785.0

    @property
    def text(self) -> str:
        """As typed."""
        words = [str(self.threads), *(word for word in _FLAGS if getattr(self, word))]
        usual = Posting(self.threads)
        words += [f"batch={self.batch}"] * (self.batch != usual.batch)
        words += [
            f"{word}={getattr(self, key):g}ns"
            for word, key in _TIMES.items()
            if getattr(self, key) != getattr(usual, key)
        ]
        return ",".join(words)

    def costs_ns(self, nics: int) -> tuple[float, float]:
        """Of a message and of a turn, as one of the NICs of a host sees them while all of them are busy."""
        factor = -(-nics // self.threads) * (1 + OTHERS * (self.threads - 1))
        if self.threads > 1:
            factor *= (1 if self.sharded else SHARED) * (1 if self.pinned else UNPINNED)
        return factor * self.post_ns * (LAZY if self.lazy else 1), factor * self.turn_ns


_FLAGS: Final = ("pinned", "sharded", "lazy")
_TIMES: Final = {"post": "post_ns", "turn": "turn_ns"}
POSTING_WORDS: Final = (
    "1",
    "8",
    "8,pinned",
    "8,pinned,sharded",
    "8,pinned,sharded,batch",
    "8,pinned,sharded,batch,lazy",
)


def parse_posting(text: str) -> Posting:
    """`8,pinned,sharded,batch=16,lazy,post=1us,turn=785ns`; ValueError with the reason."""
    first, *words = text.split(",")
    if not re.fullmatch("[0-9]{1,6}", first) or not 1 <= int(first) <= _MOST_THREADS:
        raise ValueError(f"does not begin with a number of threads from 1 to {_MOST_THREADS}; write 8,pinned,sharded")
    values: dict[str, bool | int | float] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name in _FLAGS and not number:
            values[name] = True
        elif name == "batch" and (number or str(BATCH)).isdecimal() and 1 <= int(number or BATCH) <= _MOST_THREADS:
            values[name] = int(number or BATCH)
        elif name in _TIMES and number:
            values[_TIMES[name]] = _nanoseconds(number)
        else:
            legal = [*_FLAGS, "batch", *(f"{each}=" for each in _TIMES)]
            raise ValueError(f"has {word or 'an empty word'}, which is no part of it; {did_you_mean(name, legal)}")
    return Posting(int(first), **values)  # type: ignore[arg-type]


def _nanoseconds(text: str) -> float:
    found = parse_duration(text)
    if not 1 <= found <= _MOST_NS:
        raise ValueError(f"has {text}, which is not a time from 1ns to 1s; write it as 800ns")
    return float(found)


def posting_words(posting: Posting | None) -> list[str]:
    """As typed; nothing where posting has no cost."""
    return [posting.text] if posting is not None else []
