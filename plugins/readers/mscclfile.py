"""MSCCL XML: a collective program, as msccl-tools writes it and as MSCCL and RCCL read it.

In:  the text of a file. Out: Algorithm, checked line by line; InputError with file and line of every error.
A document type, and with it every entity, is refused, and so is a file above MAX_BYTES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, cast, get_args
from xml.parsers import expat

from heddle.base.problems import Problem, Problems, did_you_mean

MAX_BYTES: Final = 8 << 20  # the largest file of RCCL has 1.4 MB
_MOST_PROBLEMS: Final = 20
_MOST: Final = 1 << 20  # chunks of a buffer, and every other number
Letter = Literal["i", "o", "s"]
Kind = Literal["s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"]
COLLECTIVES: Final[Mapping[str, str]] = {
    "allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter", "alltoall": "all-to-all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
READS: Final = ("s", "rrc", "rrs", "rrcs", "cpy", "re")  # kinds that read `src`
WRITES: Final = ("r", "rcs", "rrc", "rrcs", "cpy", "re")  # kinds that write `dst`


class Chunks(NamedTuple):
    """Chunks of a buffer, from `at` on."""

    buffer: Letter
    at: int


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One step of a thread block. after: thread block and step of the same GPU that must have ended."""

    gpu: int
    block: int
    number: int
    where: str
    kind: Kind
    src: Chunks
    dst: Chunks
    count: int
    after: tuple[int, int] | None
    signals: bool  # others may wait for it

    @property
    def name(self) -> str:
        """`gpu 1, tb 0, step 3`."""
        return f"gpu {self.gpu}, tb {self.block}, step {self.number}"

    def problem(self, why: str, hint: str = "") -> Problem:
        """A problem at its line."""
        return Problem(self.where, f"{self.name} ({self.kind})", why, hint)

    @property
    def sends(self) -> bool:
        """Whether it sends."""
        return self.kind.endswith("s")

    @property
    def receives(self) -> bool:
        """Whether it receives."""
        return self.kind.startswith("r") and self.kind != "re"


@dataclass(slots=True)
class Block:
    """A thread block: its steps run in order. sends_to, receives_from: ranks, or -1."""

    gpu: int
    number: int
    sends_to: int
    receives_from: int
    channel: int
    where: str
    steps: list[BlockStep] = field(default_factory=list)


@dataclass(slots=True)
class Algorithm:
    """A whole file. chunks: of the array of a rank. sizes: for each GPU the chunks of its buffers."""

    name: str = ""
    collective: str = ""
    ranks: int = 0
    chunks: int = 0
    in_place: bool = False
    sizes: dict[int, dict[Letter, int]] = field(default_factory=dict)
    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)


def read_algorithm(text: bytes, file: str) -> Algorithm:
    """The algorithm of an XML text. InputError with every error."""
    reader = _Reader(file)
    try:
        reader.parser.Parse(text, True)
    except expat.ExpatError as error:
        why = f"is not well-formed XML: {expat.ErrorString(error.code)}"
        reader.problems.add(where=f"{file}:{error.lineno}", what="the file", why=why, hint="")
    except _TooManyError:
        pass
    reader.end()
    return reader.found


class _TooManyError(Exception):
    """There are more problems than anyone reads."""


class _Reader:
    def __init__(self, file: str) -> None:
        self.found, self.problems, self._file = Algorithm(), Problems(), file
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._begin
        self.parser.StartDoctypeDeclHandler = self._doctype
        self._gpu = -1
        self._block: Block | None = None
        self._says: dict[str, str] = {}

    @property
    def _where(self) -> str:
        return f"{self._file}:{self.parser.CurrentLineNumber}"

    def _wrong(self, what: str, why: str, hint: str = "") -> None:
        self.problems.add(where=self._where, what=what, why=why, hint=hint)
        if len(self.problems.found) >= _MOST_PROBLEMS:
            raise _TooManyError

    def _doctype(self, *_: object) -> None:
        self._wrong("DOCTYPE", "is refused: it may define entities", "remove the line")
        raise _TooManyError

    def _begin(self, name: str, says: dict[str, str]) -> None:
        self._says = says
        handler = {"algo": self._algo, "gpu": self._gpu_begins, "tb": self._block_begins, "step": self._step}.get(name)
        if handler is None:
            self._wrong(f"<{name}>", "is not an element of MSCCL", "use algo, gpu, tb and step")
        elif (name == "algo") == bool(self.found.name):
            self._wrong(f"<{name}>", "is not inside <algo>" if name != "algo" else "is a second algorithm")
            raise _TooManyError
        else:
            handler()

    def _number(self, key: str, least: int = 0, most: int = _MOST, usual: int | None = None) -> int:
        text = self._says.get(key)
        if text is None and usual is not None:
            return usual
        if text is None:
            self._wrong(key, "is missing")
        elif not re.fullmatch("-?[0-9]{1,9}", text) or not least <= int(text) <= most:
            self._wrong(f"{key}={text[:40]!r}", f"is not a whole number from {least} to {most}")
        else:
            return int(text)
        return least

    def _algo(self) -> None:
        found = self.found
        found.name = self._says.get("name") or "without a name"
        coll = self._says.get("coll", "")
        found.collective = COLLECTIVES.get(coll, "")
        if not found.collective:
            self._wrong(f"coll={coll!r}", "is not a collective that can be checked", did_you_mean(coll, COLLECTIVES))
        found.ranks, found.chunks = self._number("ngpus", 2, 1 << 11), self._number("nchunksperloop", 1)
        # msccl-tools before RCCL's: only `inplace`.
        inside = self._number("inplace", 0, 1, 0)
        found.in_place = not self._number("outofplace", 0, 1, 1 - inside)

    def _gpu_begins(self) -> None:
        self._gpu, self._block = self._number("id", 0, self.found.ranks - 1), None
        if self._gpu in self.found.sizes:
            self._wrong(f"gpu {self._gpu}", "is there a second time")
        self.found.sizes[self._gpu] = {
            "i": self._number("i_chunks"), "o": self._number("o_chunks"), "s": self._number("s_chunks")
        }  # fmt: skip

    def _block_begins(self) -> None:
        most = self.found.ranks - 1
        number, channel = self._number("id"), self._number("chan")
        block = Block(
            self._gpu, number, self._number("send", -1, most), self._number("recv", -1, most), channel, self._where
        )
        if self._gpu < 0:
            self._wrong(f"tb {number}", "is not inside a <gpu>")
        if (self._gpu, number) in self.found.blocks:
            self._wrong(f"gpu {self._gpu}, tb {number}", "is there a second time")
        if self._gpu in (block.sends_to, block.receives_from):
            self._wrong(f"gpu {self._gpu}, tb {number}", "sends to itself, or receives from itself")
        self.found.blocks[self._gpu, number] = self._block = block

    def _step(self) -> None:
        block = self._block
        if block is None:
            self._wrong("<step>", "is not inside a <tb>")
            return
        kind, number = self._says.get("type", ""), len(block.steps)
        what = f"gpu {block.gpu}, tb {block.number}, step {number}"
        if kind not in get_args(Kind):
            self._wrong(f"{what}: type={kind!r}", "is not a type of step", did_you_mean(kind, get_args(Kind)))
            kind = "nop"
        if (typed := self._number("s")) != number:
            self._wrong(what, f"has s={typed}; steps of a thread block are numbered in order from 0")
        wait = self._number("depid", -1)
        after = (wait, self._number("deps")) if wait >= 0 else None
        count = self._number("cnt", kind != "nop")
        step = BlockStep(
            block.gpu, block.number, number, self._where, cast("Kind", kind), self._place("src"), self._place("dst"),
            count, after, bool(self._number("hasdep", 0, 1)),
        )  # fmt: skip
        block.steps.append(step)
        for place, kinds in ((step.src, READS), (step.dst, WRITES)):
            room = self.found.sizes[block.gpu].get(place.buffer, 0)
            if kind in kinds and not 0 <= place.at <= room - count:
                self._wrong(what, f"uses {count} chunks from {place.at} on of buffer {place.buffer}, which has {room}")
        if step.sends and block.sends_to < 0:
            self._wrong(what, "sends, but its thread block has no send peer")
        if step.receives and block.receives_from < 0:
            self._wrong(what, "receives, but its thread block has no recv peer")

    def _place(self, end: str) -> Chunks:
        letter = self._says.get(f"{end}buf", "")
        if letter not in get_args(Letter):
            self._wrong(f"{end}buf={letter!r}", "is not a buffer", "use i (input), o (output) or s (scratch)")
            letter = "i"
        return Chunks(cast("Letter", letter), self._number(f"{end}off", -1))

    def end(self) -> None:
        """What only the whole file shows."""
        found, add = self.found, self.problems.found.append
        if not self.problems.found and not found.name:
            add(Problem(self._file, "the file", "has no <algo>"))
        if not self.problems.found and (missing := [gpu for gpu in range(found.ranks) if gpu not in found.sizes]):
            add(Problem(self._file, f"gpu {missing[0]}", f"is missing; ngpus is {found.ranks}"))
        peers: dict[tuple[str, int, int, int], Block] = {}
        for block in found.blocks.values():
            for word, peer in (("send", block.sends_to), ("recv", block.receives_from)):
                first = peers.setdefault((word, block.gpu, peer, block.channel), block)
                if peer >= 0 and first is not block:
                    why = f"has the same {word} peer and channel as tb {first.number}, so their order is not defined"
                    add(Problem(block.where, f"gpu {block.gpu}, tb {block.number}", why, "use another chan"))
            for step in block.steps if not self.problems.found else ():
                self._after(step)
        self.problems.raise_if_any()

    def _after(self, step: BlockStep) -> None:
        """Whether the step that it waits for exists, and can be waited for."""
        if step.after is None:
            return
        there = self.found.blocks.get((step.gpu, step.after[0]))
        if there is None or step.after[1] >= len(there.steps):
            why = f"waits for tb {step.after[0]}, step {step.after[1]}, which does not exist"
        elif not there.steps[step.after[1]].signals:
            why = f"waits for tb {step.after[0]}, step {step.after[1]}, which has hasdep=0, so it signals nothing"
        else:
            return
        self.problems.found.append(step.problem(why, "correct depid and deps"))
