"""The interface of transports. Worker, NIC, ranks and results use only the declarations here and in QpEnd.

A transport is one file in this directory and one line of `TRANSPORTS` (__init__.py). It provides a Transport: its
parameters, the columns that it reports, and two kinds of QpEnd (../nic/qpend.py): one sends data, one receives it.

| caller | calls |
|---|---|
| run    | `of(plan)` before anything starts; `columns` for result rows |
| crew   | `parameters()`, sent to each worker process |
| worker | `load(parameters)`, then `sender` and `receiver` for the ends of its queue pairs |
| rank   | `post(message)`; it is called back through `Access` |
| NIC    | `take` and `answer` for frames to send, `receive` for frames that arrived, `expire` at `deadline` |
| loop   | at the end, `counters`, and `paths` for the source ports of a sending end that chooses them itself |

Congestion control is a pair of ends that wrap the ends of any transport (../congestion/ratecontrol.py). It decides when
packets may leave. It is not `ready` between two packets and sets `deadline` to the time of the next one: the NIC then
calls `expire`, and `take` if the end is ready. The resolution is that of epoll, 1 ms. The receiving end sees marks as
`got.kinds[i].ce` and answers them with CNPs. So a transport must accept calls of `take` with a limit of 1.

Receiver-driven admission is a pair of ends around those of another transport, congestion control included
(../admission/ctsends.py). The receiving one sends CTS packets in `answer` or `take`, the sending one takes them. The
gate that keeps messages until they are granted is in front of the connection, because a message may use several queue
pairs. So admission works with any transport.

A transport of the hosts' own kernel has a `stack`, which makes the queue pairs (rxe.py). Then nothing calls `fast`,
`sender` and `receiver`: the stack builds the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from heddle.base.problems import Problems
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.hoststack import HostStack
from heddle.endpoints.nic.qpend import Access, QpEnd, QpInfo
from heddle.traffic.flow import ROCE, Numbering
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class FastConnection:
    """Reliable connections that the compiled loop can drive (endpoints/fastpath). Times in seconds.

    pace: for one end, the window, and the number of packets after which an acknowledgement is requested.
    sender_counters, receiver_counters: keys of the columns that the ends count, in the order of hd_qp_counters.
    """

    timeout_s: float
    ack_delay_s: float
    retries: int
    pace: Callable[[QpInfo], tuple[int, int]]
    sender_counters: tuple[str, ...]
    receiver_counters: tuple[str, ...]
    why: Callable[[int, int], str]  # (syndrome of the refusal or 0, oldest PSN not acknowledged) -> error of an end


@dataclass(frozen=True, slots=True)
class Transport:
    """How queue pairs carry messages in one run. Frozen: the same parameters give the same ends in every worker.

    params:       its parameters: each transport says of which class, a frozen dataclass of plain data.
    columns:      its counters, in the order of JSON rows.
    answer_bytes: the largest payload of an answer.
    any_order:    reordering is not treated as loss, so a fabric may spray its packets.
    addressed:    every packet has its own address (RETH), not only the first of a message.
    stack:        the hosts' stack that carries the data; None: Heddle's own NICs do.
    numbering:    of its queue pairs.
    lead:         bytes before each message, where messages are parts of a stream that a kernel cuts; 0: packets.
    predicted:    whether its source ports and bytes can be known offline.
    packet_cost:  of one 4 KB data packet, as in host/capacity.py, if it differs from that of other transports.
    options:      what users choose of this transport alone: a frozen dataclass of declared options (base/declared.py).
    """

    params: Any

    columns: ClassVar[tuple[Column, ...]]
    answer_bytes: ClassVar[int] = 0
    any_order: ClassVar[bool] = False
    addressed: ClassVar[bool] = False
    stack: ClassVar[HostStack | None] = None
    numbering: ClassVar[Numbering] = ROCE
    lead: ClassVar[int] = 0
    predicted: ClassVar[bool] = True
    packet_cost: ClassVar[float | None] = None
    options: ClassVar[type[Any] | None] = None

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The transport with parameters for a plan; InputError for options that it does not support."""
        raise NotImplementedError

    @classmethod
    def typed(cls, typed: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options that a user typed, by their words, with this transport's defaults; InputError for wrong ones."""
        return typed

    @classmethod
    def check(cls, options: RunOptions, problems: Problems) -> None:
        """Report options that it supports neither in a run nor in a prediction."""

    @classmethod
    def spread(cls, options: RunOptions) -> int:
        """The number of UDP source ports that each queue pair uses in turn."""
        return 1

    @classmethod
    def load(cls, parameters: Mapping[str, JsonValue]) -> Self:
        """The transport from the result of `parameters`, after conversion to JSON and back."""
        from pydantic import TypeAdapter  # help lists the options of transports, and loads none of their parameters

        return TypeAdapter(cls).validate_python({"params": parameters})

    def parameters(self) -> dict[str, JsonValue]:
        """The parameters as plain data, for workers and for the record of the run."""
        return asdict(self.params)

    def fast(self) -> FastConnection | None:
        """The data that the compiled loop needs to drive this transport's ends, or None: then Python drives them."""
        return None

    @property
    def uncompiled(self) -> str:
        """The option because of which `fast` is None, as typed; empty if it is the transport."""
        return ""

    @property
    def again_dscp(self) -> int:
        """The DSCP of single packets that its ends send again; -1: that of the data."""
        return -1

    def patience_s(self) -> float | None:
        """Seconds without any packet after which a run has lost data for good; None if ends detect every loss."""
        return None

    def sender(self, qp: QpInfo) -> QpEnd:
        """The end that sends data. Never called for a transport with a stack."""
        raise NotImplementedError

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        """The end that writes arriving data into a rank's memory. Never called for a transport with a stack."""
        raise NotImplementedError
