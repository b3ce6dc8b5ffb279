"""What trainers and servers exchange: checkpoints, written and read back, and training data.

In:  ranks: trainers, then storage hosts, then preprocess hosts, as `Workload.endpoints` appends them; the bytes of each
     trainer; the least time of an iteration on hardware, or a rate.
Out: operations. The data of all trainers are one sequence, trainer after trainer. A server has an equal part of it,
     in order: of n trainers and m servers, each sends to one or several neighbours (n:m shards).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple

from heddle.base.declared import Declared
from heddle.base.units import format_bytes, parse_duration, parse_size
from heddle.fabric.wiring import FRONTEND
from heddle.traffic.collectives.pattern import (
    CREDIT_BYTES,
    GROUP,
    ComputeStep,
    Pattern,
    Piece,
    ReceiveStep,
    SendStep,
    Step,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint

STORAGE, PREPROCESS = "storage", "preprocess"
# Bytes/s of a GPU: 2 TB/s sustained and 7 TB/s at peak of the storage of Llama 3 (arXiv 2407.21783, 3.3.1), over its
# 16,384 GPUs.
RATES: Final[Mapping[str, int]] = {"sustained": 122_000_000, "peak": 427_000_000}
_ALIGN_BYTES: Final = 16
_MOST_PERIOD_S: Final = 3600


def read_rate(typed: str) -> str:
    """`sustained`, `peak`, or bytes/s on hardware as 122MB; divided by k: 122MB/4000. ValueError."""
    rate, divided, k = typed.partition("/")
    if rate not in RATES and parse_size(rate) <= 0:
        raise ValueError("is not a rate; write bytes per second of a trainer, as 122MB")
    _check_scale(k, divided)
    return typed


def read_period(typed: str) -> str:
    """A time on hardware as 500us; multiplied by k: 500us*4000. ValueError."""
    period, times, k = typed.partition("*")
    if not 0 < parse_duration(period) <= _MOST_PERIOD_S * 10**9:
        raise ValueError(f"is not between 0 and {_MOST_PERIOD_S} s; write a time of hardware, as 500us")
    _check_scale(k, times)
    return typed


def _check_scale(k: str, sign: str) -> None:
    if sign and not (k.isdecimal() and int(k)):
        raise ValueError(f"has {sign}{k}, which is not a scale; leave it out")


class _Hop(NamedTuple):
    """Data from one group of ranks to another. Each: the group's first rank, and its number of ranks."""

    one: tuple[int, int]
    other: tuple[int, int]


class _Shards(NamedTuple):
    """The transfers of a hop, by sender, then receiver: columns. start, put: in the parts of sender and receiver."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    start: NDArray[np.int64]
    put: NDArray[np.int64]
    length: NDArray[np.int64]


@lru_cache(maxsize=32)
def _shards(hop: _Hop, total: int) -> _Shards:
    """Where the parts of both groups overlap. total: elements of all trainers."""
    import numpy as np

    ends = [np.arange(many + 1, dtype=np.int64) * total // many for _, many in hop]
    cuts = np.union1d(*ends)
    lo, length = cuts[:-1], np.diff(cuts)
    at = [np.searchsorted(each, lo, side="right") - 1 for each in ends]
    start, put = (lo - each[place] for each, place in zip(ends, at, strict=True))
    src, dst = (first + place for (first, _), place in zip(hop, at, strict=True))
    return _Shards(src, dst, start, put, length)


def _rows(shards: _Shards, ends: NDArray[np.int64], rank: int) -> list[tuple[int, ...]]:
    """The transfers of a rank. ends: their senders or receivers, which are in order."""
    on = slice(*ends.searchsorted([rank, rank + 1]).tolist())
    return [*zip(*(column[on].tolist() for column in shards), strict=True)]


@dataclass(frozen=True)
class ServedPattern(Pattern):
    """Trainers and their servers. Its busbw is the rate of the busiest rank."""

    replaces = False
    once = True
    serves: ClassVar[tuple[str, ...]] = (STORAGE,)
    usual = {"network": FRONTEND, "transport": "tcp"}  # noqa: RUF012  (never written)

    storage_hosts: Annotated[int, Declared(
        "storage hosts of a checkpoint, or of training data; 0: all of the front-end network, or the last rank", GROUP,
        value="N", least=0, most=1 << 16, hint="leave it out for all storage hosts",
    )] = 0  # fmt: skip
    every: Annotated[str, Declared(
        "least time from one checkpoint, or batch of training data, to the next, on hardware", GROUP, reads=read_period,
        value="TIME",
    )] = ""  # fmt: skip

    @property
    def by_rank(self) -> bool:
        """Always: the last ranks are servers."""
        return True

    @property
    def served(self) -> Mapping[str, int]:
        return {STORAGE: self.storage_hosts}

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> ServedPattern:
        """With the number of servers, where the fabric has them."""
        many = {f"{word}_hosts": sum(end.serves == word for end in endpoints) for word in self.serves}
        return replace(self, **{name: number for name, number in many.items() if number})  # type: ignore[arg-type]

    def scaled(self, k: int) -> ServedPattern:
        return replace(self, every=f"{self.every}*{k}") if self.every and "*" not in self.every else self

    def pace(self, rank: int, count: int) -> float:
        period, _, k = self.every.partition("*")
        return parse_duration(period) * int(k or 1) * 1e-9 if self.every else 0.0

    def lines(self) -> Sequence[str]:
        period, _, k = self.every.partition("*")
        return [f"every {period} on hardware, times {k or 1} here: {self.pace(0, 0):g} s"] if self.every else []

    def groups(self, ranks: int) -> list[tuple[int, int]]:
        """Trainers, and each kind of server: first rank, and number of ranks."""
        servers = [max(1, many) for many in self.served.values()]
        found = [(0, ranks - sum(servers))]
        for many in servers:
            found.append((sum(found[-1]), many))
        return found

    def hops(self, ranks: int) -> Sequence[_Hop]:
        """In the order in which the data move."""
        raise NotImplementedError

    def unfit(self, ranks: int) -> str:
        """No trainer is left."""
        if (trainers := self.groups(ranks)[0][1]) > 0:
            return ""
        return f"needs a trainer beside {ranks - trainers} servers, but has {ranks} ranks; use more ranks"

    def whole(self, ranks: int, count: int) -> int:
        """As many as all servers can share equally, in units of 16 bytes."""
        (_, trainers), *servers = self.groups(ranks)
        parts = lcm(*(many for _, many in servers))
        unit = _ALIGN_BYTES // self.element_bytes * (parts // gcd(trainers, parts))
        return count // unit * unit

    def held(self, ranks: int, count: int) -> int:
        trainers = self.groups(ranks)[0][1]
        return max(-(-count * trainers // many) for _, many in self.groups(ranks))

    def busbw_factor(self, ranks: int) -> float:
        """The most that a rank sends or receives, in arrays of a trainer."""
        trainers = self.groups(ranks)[0][1]
        return max(trainers / many for _, many in self.groups(ranks))

    def serial(self, ranks: int, count: int) -> tuple[int, int, float]:
        """All data at one server, and its pace."""
        hops = len(self.hops(ranks))
        return hops * ranks * count, hops * ranks, self.pace(0, count)

    def at_once(self, ranks: int) -> int:
        return ranks

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """The step of a transfer is its sender. What was received is sent on as it arrives (see `waits`)."""
        total, steps = self.groups(ranks)[0][1] * count, list[Step]()
        for number, hop in enumerate(self.hops(ranks)):
            shards, after = _shards(hop, total), tuple[int, ...]()
            own = _rows(shards, shards.src, rank)
            if self.waits and own and steps:  # a mark: every send would wait for every receive
                steps.append(ComputeStep(ranks, 0.0, tuple(each.step for each in steps)))
                after = (ranks,)
            for src, dst, start, put, length in own:
                span = (start, start + length)
                steps.append(SendStep(src, dst, span, put, "output" if number else "input", after=after))
            for src, _, _, put, length in _rows(shards, shards.dst, rank):
                steps.append(ReceiveStep(src, src, (put, put + length)))
        return steps

    waits: ClassVar[bool] = False  # whether a server sends when it has received everything

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """What arrives in each hop came from the input of the first group."""
        total, hops = self.groups(ranks)[0][1] * count, self.hops(ranks)
        for hop in hops:
            first, many = hop.other
            if first <= rank < first + many:
                shards = _shards(_Hop(hops[0].one, hop.other), total)
                rows = _rows(shards, shards.dst, rank)
                return [Piece(put, put + length, src, start) for src, _, start, put, length in rows]
        return ()

    def _sent(self, ranks: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs with data as one number, in order, and their lengths."""
        import numpy as np

        found = [_shards(hop, self.groups(ranks)[0][1] * count) for hop in self.hops(ranks)]
        keys = np.concatenate([each.src * ranks + each.dst for each in found])
        order = np.argsort(keys)
        return keys[order], np.concatenate([each.length for each in found])[order]

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        keys, _ = self._sent(ranks, self.whole(ranks, ranks * ranks * _ALIGN_BYTES))
        return np.stack(np.divmod(keys, ranks), axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver to its sender: trainers do not wait for servers."""
        return self.back(ranks)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the data, or of a credit."""
        import numpy as np

        keys, lengths = self._sent(ranks, count)
        wanted = pairs @ [ranks, 1]
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, lengths[at], CREDIT_BYTES // self.element_bytes)


@dataclass(frozen=True)
class Checkpoint(ServedPattern):
    """Every trainer writes its array to the storage hosts."""

    collective = "checkpoint"
    algorithm = "sharded"

    def hops(self, ranks: int) -> Sequence[_Hop]:
        trainers, storage = self.groups(ranks)
        return (_Hop(trainers, storage),)


@dataclass(frozen=True)
class ReadBack(ServedPattern):
    """A checkpoint, which the storage hosts send back when they have all of it: trainers compare it.

    Its busbw counts one of the two directions.
    """

    collective = "checkpoint"
    algorithm = "read-back"
    waits = True

    def hops(self, ranks: int) -> Sequence[_Hop]:
        trainers, storage = self.groups(ranks)
        return _Hop(trainers, storage), _Hop(storage, trainers)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None: each waits for the other."""
        import numpy as np

        return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Restore(ServedPattern):
    """Every trainer reads its array from the storage hosts."""

    collective = "restore"
    algorithm = "sharded"

    def hops(self, ranks: int) -> Sequence[_Hop]:
        trainers, storage = self.groups(ranks)
        return (_Hop(storage, trainers),)


@dataclass(frozen=True)
class Ingest(ServedPattern):
    """Training data from storage hosts through preprocess hosts, which send on each message, to trainers."""

    collective = "ingest"
    algorithm = "pipeline"
    streams = True
    serves: ClassVar[tuple[str, ...]] = (STORAGE, PREPROCESS)

    preprocess_hosts: Annotated[int, Declared(
        "preprocess hosts of training data; 0: all of the front-end network, or the last rank", GROUP, value="N",
        least=0, most=1 << 16, hint="leave it out for all preprocess hosts",
    )] = 0  # fmt: skip
    rate: Annotated[str, Declared(
        "most bytes per second of training data of a trainer, on hardware: 122MB, sustained (122MB) or peak (427MB)",
        GROUP, reads=read_rate, value="BYTES", words=tuple(RATES),
    )] = ""  # fmt: skip

    @property
    def served(self) -> Mapping[str, int]:
        return {STORAGE: self.storage_hosts, PREPROCESS: self.preprocess_hosts}

    def scaled(self, k: int) -> ServedPattern:
        found = super().scaled(k)
        return replace(found, rate=f"{self.rate}/{k}") if self.rate and "/" not in self.rate else found  # type: ignore[call-arg]

    @property
    def _bytes_per_s(self) -> float:
        rate, _, k = self.rate.partition("/")
        return (RATES.get(rate) or parse_size(rate)) / int(k or 1)

    def pace(self, rank: int, count: int) -> float:
        least = count * self.element_bytes / self._bytes_per_s if self.rate else 0.0
        return max(least, super().pace(rank, count))

    def lines(self) -> Sequence[str]:
        if not self.rate:
            return super().lines()
        rate, _, k = self.rate.partition("/")
        named = f"{rate}, " * (rate in RATES) + format_bytes(RATES.get(rate) or parse_size(rate))
        said = f"at most {named}/s a trainer on hardware, divided by {k or 1} here: {format_bytes(self._bytes_per_s)}/s"
        return [*super().lines(), said]

    def hops(self, ranks: int) -> Sequence[_Hop]:
        trainers, storage, preprocess = self.groups(ranks)
        return _Hop(storage, preprocess), _Hop(preprocess, trainers)
