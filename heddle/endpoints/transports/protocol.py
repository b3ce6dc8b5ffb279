"""What a transport is. Worker, NIC, ranks and results know transports only by what is declared here and in QpEnd.

A transport is one file in this directory and one line of `TRANSPORTS` (__init__.py). It supplies a Transport: its
parameters, the columns that it reports, and two kinds of QpEnd (../nic/qpend.py): one sends data, one receives it.

| caller | calls |
|---|---|
| run    | `of(plan)` before anything starts; `columns` for result rows |
| crew   | `parameters()`, sent to each worker process |
| worker | `load(parameters)`, then `sender` and `receiver` for the ends of its queue pairs |
| rank   | `post(message)`; it is called back through `Access` |
| NIC    | `take` and `answer` for frames to send, `receive` for frames that arrived, `expire` at `deadline` |

Two kinds of collaborators belong to a transport and not to the NIC. Both are created in `sender` and `receiver`, and
what they need to know is part of the transport's parameters.

Congestion control decides when packets may leave. A sending end asks it in `ready` and `take`, and reports to it in
`receive` (acknowledgements, CNPs) and `expire`. A receiving end sees marks as `got.kinds[i].ce` and may answer them. A
rate limiter is not `ready` between two packets and sets `deadline` to the time of the next one: the NIC then calls
`expire`, and `take` if the end is ready. The grain is that of epoll, 1 ms.

Receiver-driven admission is a pair of ends that wrap the ends of another transport: the sending one keeps messages
from `post` until a grant arrives, the receiving one grants in `answer`. A wrapped end is an end, so admission
combines with any transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

from pydantic import JsonValue

from heddle.endpoints.nic.qpend import Access, QpEnd, QpInfo
from heddle.traffic.plan import Plan


@dataclass(frozen=True, slots=True)
class Column:
    """A number that a transport reports for each queue pair, beside packets, bytes and marks, which the NIC counts.

    key:  its name in JSON rows and in `QpEnd.counters`. unit: packets, times, ...
    text: what the table prints behind the sum over all queue pairs: `sent again`.
    line: the line of the table that shows it: `packets` (with wrong ICRCs), `order` (packets that arrived before an
          earlier one), or none: in JSON only.
    """

    key: str
    unit: str
    text: str
    line: Literal["", "packets", "order"] = ""


@dataclass(frozen=True, slots=True)
class FastConnection:
    """Reliable connections that the compiled loop can drive (endpoints/fastpath). Times in seconds.

    pace: of one end, the window and after how many packets an acknowledgement is asked for.
    sender_counters, receiver_counters: keys of the columns that the ends count, in the order of hd_qp_counters.
    """

    timeout_s: float
    ack_delay_s: float
    retries: int
    pace: Callable[[QpInfo], tuple[int, int]]
    sender_counters: tuple[str, ...]
    receiver_counters: tuple[str, ...]
    why: Callable[[bool, int], str]  # (no answer came, else the syndrome that refused) -> why an end gave up


class Transport(Protocol):
    """How queue pairs carry messages in one run. Frozen: the same parameters make the same ends in every worker.

    columns:      what it counts, in the order of JSON rows.
    answer_bytes: the largest payload of an answer.
    any_order:    packets that overtake each other are no loss to it, so a fabric may spray them.
    """

    columns: ClassVar[tuple[Column, ...]]
    answer_bytes: ClassVar[int]
    any_order: ClassVar[bool]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """With the parameters that fit a plan; InputError for options that this transport cannot meet."""

    @classmethod
    def load(cls, parameters: Mapping[str, JsonValue]) -> Self:
        """What `parameters` gave, after its way through JSON."""

    def parameters(self) -> dict[str, JsonValue]:
        """The parameters as plain data, for workers and for the record of the run."""

    def fast(self) -> FastConnection | None:
        """What the compiled loop needs to drive this transport's ends, or None: then Python drives them."""

    def sender(self, qp: QpInfo) -> QpEnd:
        """The end that sends data."""

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        """The end that writes what arrives into a rank's memory."""
