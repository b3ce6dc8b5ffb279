"""The base of every collective: its operations, step by step, and all that follows from them.

A pattern states the operations of each rank (`program`) and the result (`result`), in elements. Pairs of ranks,
credits, labels and volume follow. A pattern may override a derived method with a closed form, for speed;
tests/unit/test_collectives.py compares both.

Credits. A receiver has buffers for two iterations. Most patterns cannot exceed that, since a rank needs data of all its
receivers before its next iteration. Where a sender does not, its receiver grants each iteration: when it has all data
of one, it writes CREDIT_BYTES to the sender, as receivers of NCCL clear their senders to send (CTS). The sender's
iteration ends with that credit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import itemgetter, or_
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, get_args

from heddle.base.declared import Declared
from heddle.base.problems import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint

GROUP: Final = "What runs"  # the heading of the flags of parameters, which are declared fields (base/declared.py)
NEARLY_BYTES: Final = 1 << 17
Span = tuple[int, int]  # elements [lo, hi); an empty range is not sent
# input: the rank's input, written again for each iteration. credit: see above; patterns do not use it.
Buffer = Literal["input", "output", "scratch", "credit"]
Reduction = Literal["sum", "max", "min", "avg"]


@dataclass(frozen=True, slots=True)
class SendStep:
    """Send a range of a buffer to rank `to`, to its element `put` and up.

    It waits for all earlier operations of this rank that write into the range, for the steps `after`, and for the
    receives `nearly` without their last NEARLY_BYTES, at least one message. step: of the receiver's operation.
    """

    step: int
    to: int
    span: Span
    put: int
    buffer: Buffer = "input"
    after: tuple[int, ...] = ()
    nearly: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiveStep:
    """A range of a buffer that rank `source` writes. step: unique among the receives and computations of a rank.

    reduce: combine the data with the old values; empty: replace them. divide: divide the result by this number, after
    the last receive of this range.
    """

    step: int
    source: int
    span: Span
    buffer: Buffer = "output"
    reduce: Reduction | Literal[""] = ""
    divide: int = 1


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """Work that takes `seconds`, after the steps `after`. step: as in ReceiveStep."""

    step: int
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalStep:
    """Copy or reduce a range of a buffer into another one of the same rank, from its element `put` on.

    It waits for the steps `after` only. step: as in ReceiveStep, and above those of all messages. reduce: as there.
    """

    step: int
    span: Span
    put: int
    buffer: Buffer
    into: Buffer
    reduce: Reduction | Literal[""] = ""
    after: tuple[int, ...] = ()


Step = SendStep | ReceiveStep | ComputeStep | LocalStep


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [lo, hi) of a rank's result: a copy from `start` on of one rank's input, or of a reduction of inputs.

    source: that rank; None: the reduction. ranks: of which; empty: all. operation: empty: that of the pattern.
    buffer: that has the result; empty: `input` in place, else `output`.
    """

    lo: int
    hi: int
    source: int | None
    start: int
    ranks: tuple[int, ...] = ()
    operation: Reduction | Literal[""] = ""
    buffer: Buffer | Literal[""] = ""


class Ranges:
    """Ranges of elements [lo, hi), each with the number of its step.

    They are sorted, by the power of two above their length: none is far before a range that it overlaps. So the
    ranges that overlap one are found without looking at all.
    """

    def __init__(self) -> None:
        self._sorted: dict[int, list[tuple[int, int, int, int]]] = {}  # (lo, number, hi, step)
        self._count = 0

    def add(self, span: Span, step: int) -> None:
        """A range of a step."""
        lo, hi = span
        insort(self._sorted.setdefault((hi - lo).bit_length(), []), (lo, self._count, hi, step))
        self._count += 1

    def overlapping(self, span: Span) -> list[tuple[Span, int]]:
        """The ranges that share elements with this one, with their steps, in the order in which they were added."""
        found: list[tuple[int, Span, int]] = []
        for bits, ranges in self._sorted.items():
            at = bisect_left(ranges, (span[0] - (1 << bits),))
            while at < len(ranges) and ranges[at][0] < span[1]:
                lo, number, hi, step = ranges[at]
                if max(lo, span[0]) < min(hi, span[1]):
                    found.append((number, (lo, hi), step))
                at += 1
        return [(each, step) for _, each, step in sorted(found, key=itemgetter(0))]


def known(programs: Sequence[Sequence[Step]]) -> list[int]:
    """For each rank a bit mask: the ranks that must have begun an iteration before this rank can end it.

    Operations of a rank are looked at in order.
    """
    done: list[dict[int, int]] = [{} for _ in programs]  # step -> mask, of the receives and computations so far
    masks: dict[tuple[int, int], int] = {}  # (receiver, step) -> mask of the message
    left = [_with_needs(program) for program in programs]
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(left):
            while steps:
                each, needs = steps[-1]
                if isinstance(each, ReceiveStep):
                    mask = masks.get((rank, each.step), 0 if each.span[0] >= each.span[1] else None)
                    if mask is None:
                        break
                else:
                    mask = reduce(or_, (done[rank].get(step, 0) for step in needs), 1 << rank)
                steps.pop()
                moved = True
                if isinstance(each, SendStep):
                    masks[each.to, each.step] = mask
                else:
                    done[rank][each.step] = mask
    return [reduce(or_, found.values(), 0) for found in done]


def _with_needs(program: Sequence[Step]) -> list[tuple[Step, list[int]]]:
    """The operations of a rank, the last one first, each with the steps that it waits for."""
    written: defaultdict[Buffer, Ranges] = defaultdict(Ranges)
    found: list[tuple[Step, list[int]]] = []
    for each in program:
        needs: list[int] = []
        if isinstance(each, ReceiveStep):
            written[each.buffer].add(each.span, each.step)
        else:
            needs += each.after
            if isinstance(each, SendStep):
                needs += (step for _, step in written[each.buffer].overlapping(each.span))
        found.append((each, needs))
    return found[::-1]


DType = Literal["float32", "bfloat16", "float16", "int32"]
InPlace = Literal["auto", "off", "on", "both"]
NOTHING: Span = (0, 0)
STEP_BITS: Final = 16  # of an address, and of an immediate
OFFSET_BITS: Final = 32  # of an address: a byte of a buffer
MAX_STEPS: Final = 1 << STEP_BITS
MAX_RANKS: Final = 1 << 11  # of a communicator
CREDIT_BYTES: Final = 4
ELEMENT_SIZES: Final[Mapping[DType, int]] = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
_PRINTED: Final[Mapping[str, str]] = {"float32": "float", "float16": "half"}  # by nccl-tests
_ALIGN_BYTES: Final = 16


def read_dtype(typed: str) -> DType:
    """A type of elements; also `float` and `half`, as nccl-tests names two of them. ValueError for others."""
    found: DType | None = next((each for each in get_args(DType) if typed in (each, _PRINTED.get(each))), None)
    if found is None:
        raise ValueError(f"is not a type of elements here; {did_you_mean(typed, get_args(DType))}")
    return found


@dataclass(frozen=True)
class Pattern:
    """A collective with one algorithm, and its parameters. dtype: type of an element.

    in_place: the operations, and so the result, are in the buffer `input`, otherwise the result is in `output`.
    replaces: it can also be in one array with the input (endpoints/elements.py). by_chunk: nccl-tests prints as
    `count` the elements of a chunk, one of the array's `ranks` parts (common.cu prints `paramcount`). once: a pair has
    one transfer in an iteration, and `pair_labels` are the numbers of its elements. streams: all transfers are under
    way at the same time, since each message is sent on as it arrives. as_sends: NCCL carries it out as
    sends and receives, one for each pair. inside_gbps: by default, ranks of one host copy at this rate, in Gb/s on
    hardware, and its packets stay within rails; 0: ranks of one host use their NICs. of_file: the parameter that
    names a user's file, which has the program; empty if there is none. usual: options of a run with other defaults, as
    typed.
    """

    collective: ClassVar[str]
    algorithm: ClassVar[str]
    in_place: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    by_chunk: ClassVar[bool] = False
    once: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    as_sends: ClassVar[bool] = False
    inside_gbps: ClassVar[int] = 0
    of_file: ClassVar[str] = ""
    usual: ClassVar[Mapping[str, str]] = {}

    dtype: Annotated[DType, Declared(
        "type of an element", GROUP, word="datatype", reads=read_dtype, typed="float32", words=get_args(DType),
        value="TYPE", short="-d", listed="one of",
    )] = "float32"  # fmt: skip

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_SIZES[self.dtype]

    @property
    def printed_type(self) -> str:
        """The type of an element, as nccl-tests prints it."""
        return _PRINTED.get(self.dtype, self.dtype)

    @property
    def redop(self) -> Reduction | Literal["none"]:
        """The reduction, as nccl-tests prints it."""
        return "none"

    @property
    def printed_root(self) -> int:
        """The root, as nccl-tests prints it: -1 if there is none."""
        return -1

    @property
    def typed(self) -> str:
        """The flag that chose it, for errors."""
        return f"--collective {self.collective}"

    @property
    def by_rank(self) -> bool:
        """Whether parameters name ranks of the whole job, so that it cannot be split into communicators."""
        return False

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> Pattern:
        """With the ranks of a job, and the bytes of its sizes, where parameters depend on them. InputError."""
        return self

    def scaled(self, k: int) -> Pattern:
        """With the times and rates of its parameters as emulated: they are those of hardware."""
        return self

    @property
    def served(self) -> Mapping[str, int]:
        """Hosts with ranks after all others, by what they serve (`Node.serves`): how many; 0: all of the fabric."""
        return {}

    def pace(self, rank: int, count: int) -> float:
        """The least seconds of an iteration, beside its operations."""
        return 0.0

    def lines(self) -> Iterable[str]:
        """What an iteration does, in words, where the names do not say it."""
        return ()

    def buffer_of(self, piece: Piece) -> Buffer:
        """The buffer that has a piece of the result."""
        return piece.buffer or ("input" if self.in_place else "output")

    def added(self, ranks: int) -> int:
        """The most inputs that are added up in one element of a result."""
        return ranks if self.redop in ("sum", "avg") else 1

    def reductions(self, ranks: int, count: int) -> Sequence[Piece]:
        """The reduction of an iteration, whole, and in the smallest part that one message brings: a chunk of a ring."""
        if self.redop == "none":
            return ()
        steps = (step for rank in (0, ranks - 1) for step in self.program(ranks, rank, count))
        spans = [each.span for each in steps if isinstance(each, ReceiveStep) and each.reduce]
        spans = [span for span in spans if span[0] < span[1]]
        parts = {(0, count), min(spans, key=lambda span: span[1] - span[0], default=(0, count))}
        return [Piece(lo, hi, None, lo, tuple(range(ranks)), self.redop) for lo, hi in parts]

    def placed(self, asked: InPlace) -> tuple[bool, ...]:
        """Whether each measurement of a size is in place. auto: as the operations are."""
        if asked == "both":
            return (False, True) if self.replaces else (False,)
        return (self.in_place if asked == "auto" else asked == "on",)

    def hosted(self, hosts: Sequence[str]) -> Pattern:
        """With the host of each rank, where its operations depend on that."""
        return self

    # what a pattern states

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """The operations of `rank` for an array of `count` elements, in their order."""
        raise NotImplementedError

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """A rank's result by the definition of the collective: pieces in order; empty if the rank has no result."""
        raise NotImplementedError

    def busbw_factor(self, ranks: int) -> float:
        """busbw / algbw, as nccl-tests derives it (doc/PERFORMANCE.md)."""
        return (ranks - 1) / ranks

    def unfit(self, ranks: int) -> str:
        """The reason why this number of ranks is not possible, or `reason; hint`; empty if it is."""
        return ""

    def held(self, ranks: int, count: int) -> int:
        """Elements of the largest buffer of a rank."""
        return count

    def serial(self, ranks: int, count: int) -> tuple[int, int, float]:
        """Elements, steps and seconds of computations of an iteration in which no two things happen at once, at most.

        No rank has more steps than in a ring, and no chain of ranks is longer.
        """
        return 2 * count, 2 * ranks, 0.0

    def computing(self, rank: int) -> float:
        """Seconds of the computations of a rank in one iteration."""
        return 0.0

    def too_large(self, ranks: int) -> str:
        """The reason why the arrays are too large for their addresses in packets; empty if they are not."""
        return ""

    def at_once(self, ranks: int) -> int:
        """How many steps a rank may receive at once: steps [i n, (i + 1) n) never wait for each other."""
        return 1

    def whole(self, ranks: int, count: int) -> int:
        """How many of `count` elements are used, after nccl-tests' rounding (GetCollByteCount); 0 if too few.

        By chunk: chunks are equal, and multiples of 16 bytes. nccl-tests 2.19, src/alltoall.cu and src/gather.cu:
        (count/nranks) & ~(16/eltSize - 1) for each rank.
        """
        if not self.by_chunk:
            return count
        align = _ALIGN_BYTES // self.element_bytes
        return ranks * (count // ranks // align * align)

    # derived from the operations

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """All (sender, receiver) pairs that carry data, in order: shape (pairs, 2)."""
        return _derived(self, ranks)[0]

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """All (receiver, sender) pairs in which the receiver grants each iteration of the sender, in order.

        Those in which no data that the sender receives in an iteration depends on the receiver.
        """
        return _derived(self, ranks)[1]

    def back(self, ranks: int) -> NDArray[np.int64]:
        """All routes in the other direction, in order: the credits of patterns in which every sender needs them."""
        import numpy as np

        return np.unique(self.routes(ranks)[:, ::-1], axis=0)

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """All (sender, receiver) pairs that carry data or credits, in order: shape (connections, 2)."""
        import numpy as np

        credits = self.credits(ranks)
        return np.unique(np.concatenate([self.routes(ranks), credits]), axis=0) if len(credits) else self.routes(ranks)

    def connections(self, ranks: int) -> int:
        """The number of pairs in `peers`."""
        return len(self.peers(ranks))

    def receivers(self, ranks: int) -> int:
        """How many ranks receive data."""
        return len(set(self.routes(ranks)[:, 1].tolist()))

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """A label for each of these pairs: equal labels mean equal numbers of transfers of each length.

        With labels, code that counts bytes need not compute the programs of all ranks. count: elements of an array.
        """
        import numpy as np

        numbers: dict[tuple[int, ...], int] = {}
        sent: dict[int, dict[int, list[int]]] = {}
        for rank in dict.fromkeys(pairs[:, 0].tolist()):
            for to, length in self.sent_by(ranks, rank, count):
                sent.setdefault(rank, {}).setdefault(to, []).append(length)
        lengths = (tuple(sorted(sent.get(src, {}).get(dst, ()))) for src, dst in pairs.tolist())
        return np.array([numbers.setdefault(each, len(numbers)) for each in lengths], dtype=np.int64)

    def sent_by(self, ranks: int, rank: int, count: int) -> Iterator[tuple[int, int]]:
        """(receiver, elements) of each transfer that a rank sends, credits last."""
        for each in _sends(self.operations(ranks, rank, count)):
            yield each.to, each.span[1] - each.span[0]

    def transfers(self, ranks: int, count: int) -> Iterator[tuple[int, list[int]]]:
        """(number of pairs, elements of each transfer of one pair) for each label: all that is sent."""
        import numpy as np

        pairs = self.peers(ranks)
        label, first, many = np.unique(self.pair_labels(ranks, count, pairs), return_index=True, return_counts=True)
        if self.once:
            yield from ((number, [length]) for number, length in zip(many.tolist(), label.tolist(), strict=True))
            return
        for at, number in zip(first.tolist(), many.tolist(), strict=True):
            src, dst = pairs[at].tolist()
            yield number, [length for to, length in self.sent_by(ranks, src, count) if to == dst]

    def volume(self, ranks: int, count: int) -> int:
        """Elements that all ranks send in one iteration."""
        return sum(number * sum(lengths) for number, lengths in self.transfers(ranks, count))

    def longest(self, ranks: int, count: int) -> int:
        """Elements of the longest range that one rank sends to another in one step."""
        return max((length for _, lengths in self.transfers(ranks, count) for length in lengths), default=0)

    def operations(self, ranks: int, rank: int, count: int) -> list[Step]:
        """The operations of a rank with its credits: it grants when it has received all data of an iteration."""
        program, (grants, granted) = self.program(ranks, rank, count), _grants(self, ranks)
        span = (0, CREDIT_BYTES // self.element_bytes)
        data = tuple(each.step for each in program if isinstance(each, ReceiveStep)) if grants[rank] else ()
        for to in grants[rank]:
            program.append(SendStep(MAX_STEPS - 1 - rank, to, span, 0, "credit", data))
        for source in granted[rank]:
            program.append(ReceiveStep(MAX_STEPS - 1 - source, source, span, "credit"))
        if seconds := self.pace(rank, count):
            program.append(ComputeStep(MAX_STEPS - 1 - ranks, seconds))
        return program


def _sends(steps: Sequence[Step]) -> Iterator[SendStep]:
    return (each for each in steps if isinstance(each, SendStep) and each.span[0] < each.span[1])


def _pairs(found: set[tuple[int, int]]) -> NDArray[np.int64]:
    import numpy as np

    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


@lru_cache(maxsize=8)
def _grants(pattern: Pattern, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """For each rank: those to which it grants, and those that grant to it."""
    to: list[list[int]] = [[] for _ in range(ranks)]
    by: list[list[int]] = [[] for _ in range(ranks)]
    for receiver, sender in pattern.credits(ranks).tolist():
        to[receiver].append(sender)
        by[sender].append(receiver)
    return to, by


@lru_cache(maxsize=8)
def _derived(pattern: Pattern, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The routes and credits that follow from the operations, with an element count by which no chunk is empty."""
    count = pattern.whole(ranks, _ALIGN_BYTES * ranks)
    programs = [pattern.program(ranks, rank, count) for rank in range(ranks)]
    routes = {(rank, each.to) for rank, steps in enumerate(programs) for each in _sends(steps)}
    masks = known(programs)
    return _pairs(routes), _pairs({(dst, src) for src, dst in routes if not masks[src] >> dst & 1})


def chunk_range(index: int, ranks: int, count: int) -> Span:
    """Elements of chunk `index`: as even as whole elements allow; empty when there are fewer elements than ranks."""
    return index * count // ranks, (index + 1) * count // ranks


def chunk_lengths(ranks: int, count: int) -> NDArray[np.int64]:
    """How many elements each chunk has: shape (ranks,)."""
    import numpy as np

    ends = np.array([index * count // ranks for index in range(ranks + 1)], dtype=np.int64)
    lengths: NDArray[np.int64] = np.diff(ends)
    return lengths
