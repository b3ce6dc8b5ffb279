"""MSCCL: a collective whose program is a user's XML file, for a fixed number of ranks.

The file is read once, when the ranks are known, and checked before anything starts (mscclrun.py). From then on its text
is a part of the parameters, so that workers need no file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from heddle.base.declared import Declared
from heddle.base.files import read_regular, real
from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives.bases import ReducingPattern
from heddle.traffic.collectives.known import known
from heddle.traffic.collectives.mscclfile import MAX_BYTES, Algorithm, read_algorithm
from heddle.traffic.collectives.mscclrun import Machine, Programs, wanted
from heddle.traffic.collectives.parameters import GROUP
from heddle.traffic.collectives.steps import ComputeStep, Piece, ReceiveStep, Reduction, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint

_BOUND: Final = "|"  # between the name of a file and its compressed text
_FACTORS: Final = {"broadcast": 1.0, "reduce": 1.0}
_REDUCING: Final = ("all-reduce", "reduce-scatter", "reduce")


def _bound(name: str, text: bytes) -> str:
    return name + _BOUND + base64.b85encode(zlib.compress(text, 9)).decode()


def file_of(msccl: str) -> list[str]:
    """The name of the file, as typed."""
    return [msccl.partition(_BOUND)[0]]


def is_msccl_file(typed: str) -> bool:
    """Whether it is a name, without the text of a file."""
    return bool(typed) and _BOUND not in typed


@dataclass(frozen=True)
class MscclProgram(ReducingPattern):
    """A program of an XML file. msccl: the name of the file; after `bound` with its text."""

    collective = "msccl"
    algorithm = "xml"
    replaces = False

    msccl: Annotated[str, Declared(
        "MSCCL XML file with the program of all ranks", GROUP, reads=str, value="FILE", writes=file_of,
    )] = ""  # fmt: skip

    @property
    def typed(self) -> str:
        """`--msccl FILE`."""
        return f"--msccl {file_of(self.msccl)[0]}"

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> MscclProgram:
        """With the text of its file, checked."""
        if not self.msccl:
            hint = "use --msccl FILE"
            raise InputError(Problem("", "--collective msccl", "needs the XML file of a program", hint))
        found = replace(self, msccl=_bound(self.msccl, _read(self.msccl))) if is_msccl_file(self.msccl) else self
        found._compiled()
        return found

    def _compiled(self) -> Programs:
        return _compiled(self.msccl, self.operation)

    @property
    def _program(self) -> Algorithm:
        return _algorithm(self.msccl)

    @property
    def redop(self) -> Reduction | Literal["none"]:
        return self.operation if self._program.collective in _REDUCING else "none"

    def busbw_factor(self, ranks: int) -> float:
        usual = (ranks - 1) / ranks
        return 2 * usual if self._program.collective == "all-reduce" else _FACTORS.get(self._program.collective, usual)

    def unfit(self, ranks: int) -> str:
        """Another number of ranks than the program has; an average."""
        if ranks != self._program.ranks:
            return f"is a program for {self._program.ranks} ranks, not {ranks}; use --ranks {self._program.ranks}"
        if self.redop == "avg":
            return "has no average; use --op sum"
        return "" if self.redop == "none" else super().unfit(ranks)

    def whole(self, ranks: int, count: int) -> int:
        """A multiple of the number of its chunks."""
        return count // self._program.chunks * self._program.chunks

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """The compiled operations, with elements instead of chunks."""
        width = count // self._program.chunks
        return [_scaled(each, width) for each in self._compiled()[rank]]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        width = count // self._program.chunks
        pieces = wanted(self._program, rank)
        return [Piece(each.lo * width, each.hi * width, each.source, each.start * width) for each in pieces]

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """As `Pattern.credits`, with chunks instead of elements."""
        import numpy as np

        masks = known(self._compiled())
        found = [(dst, src) for src, dst in self.routes(ranks).tolist() if not masks[src] >> dst & 1]
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        pairs = {
            (each.source, rank)
            for rank, steps in enumerate(self._compiled())
            for each in steps
            if isinstance(each, ReceiveStep)
        }
        return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _scaled(step: Step, width: int) -> Step:
    """With elements instead of chunks. width: elements of a chunk."""
    if isinstance(step, ComputeStep):
        return step
    span = step.span[0] * width, step.span[1] * width
    return replace(step, span=span) if isinstance(step, ReceiveStep) else replace(step, span=span, put=step.put * width)


def _read(file: str) -> bytes:
    try:
        return read_regular(real(file), MAX_BYTES)
    except OSError as error:
        hint = "check the path; in a workload file it is relative to that file"
        raise InputError(Problem("", f"--msccl {file}", f"cannot be read: {error.strerror}", hint)) from None


@lru_cache(maxsize=8)
def _algorithm(bound: str) -> Algorithm:
    """The algorithm of a bound text; of the name of a file, too, before it is bound."""
    name, mark, packed = bound.partition(_BOUND)
    return read_algorithm(zlib.decompress(base64.b85decode(packed)) if mark else _read(name), name)


@lru_cache(maxsize=8)
def _compiled(bound: str, operation: Reduction) -> Programs:
    return Machine(_algorithm(bound), operation, file_of(bound)[0]).run()
