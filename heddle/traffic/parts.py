"""The parts of a job's iteration: collectives among its ranks, transfers and computations, with what each waits for.

In:  parts, as a workload file's `steps`, or an importer of traces, states them.
Out: tuple[Part, ...], which `run` and `predict` take as one schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.traffic.collectives.pattern import Pattern


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that some ranks of a job do in an iteration: a collective or transfer, or a computation.

    ranks: of the job; their order is that of the pattern's own ranks. pattern: what they run; None: each of them
    computes for `seconds` (emulated time). size_bytes: of a rank's array, as --size. after: indices of earlier parts;
    a rank begins its sends, or its computation, when it has done those of them in which it takes part. (Receives are
    always posted.)
    """

    name: str
    ranks: tuple[int, ...]
    pattern: Pattern | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    after: tuple[int, ...] = ()
