"""What a run gave: the nccl-tests table, a row per QP, and JSON.

Time is the mean over ranks of what one iteration took, as nccl-tests reports it by default; algbw = size / time and
busbw = algbw x the pattern's factor (nccl-tests doc/PERFORMANCE.md). GB is 10^9 bytes. All of it is emulated: rates are
those of the fabric file, 1/k of the hardware's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from pydantic import JsonValue

from heddle.base.units import emulated_words
from heddle.endpoints.transports.protocol import Column
from heddle.fabric.hashmodes import SPREADING
from heddle.lab.fabricstate import FabricState
from heddle.runs.machineuse import MachineUse
from heddle.runs.queueuse import QueueUse
from heddle.traffic.collectives import find_pattern
from heddle.traffic.communicators import Communicators
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.flow import Sent
from heddle.traffic.inflight import InFlight
from heddle.traffic.options import ELEMENT_BYTES, RunOptions, describe
from heddle.traffic.propagation import Propagation

_COLUMNS: Final = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                              (us)  (GB/s)  (GB/s)        ",
)
_IN_PLACE: Final = ("     time   algbw   busbw  #wrong", "     (us)  (GB/s)  (GB/s)        ")


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One line of the table: bytes, microseconds an iteration, GB/s, wrong elements over all ranks."""

    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """What was sent on one QP, and what became of its packets.

    ce: data packets that arrived with a mark: congestion experienced. counters: what the transport reports, by the keys
    of its columns. received: data packets that the receiving NIC took, copies too; None in runs that did not record it.
    """

    sent: Sent
    ce: int
    counters: Mapping[str, int]
    received: int | None = None

    def to_json(self) -> dict[str, Any]:
        """One flat row: the transport's counters stand between bytes and marks."""
        return {**self.sent.to_json(), **self.counters, "ce": self.ce, "received": self.received}


@dataclass(frozen=True, slots=True)
class Carrier:
    """The transport of a run: its name, its parameters, and what its columns in the rows of flows mean."""

    name: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """`transport` of the run's document."""
        columns = [{"key": column.key, "unit": column.unit, "text": column.text} for column in self.columns]
        return {"name": self.name, "parameters": dict(self.parameters), "columns": columns}


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that a run has to say."""

    lab: str
    k: int
    ecmp: str
    options: RunOptions
    endpoints: tuple[Endpoint, ...]
    rows: tuple[SizeRow, ...]
    flows: tuple[FlowRow, ...]
    machine: MachineUse
    icrc_errors: int
    stray: int
    warnings: tuple[str, ...] = field(default=())
    queues: QueueUse | None = None
    transport: Carrier = field(default_factory=Carrier)
    communicators: Communicators = ()
    split: str = ""  # in words, where there are several communicators
    propagation: Propagation | None = None
    fabric_state: FabricState | None = None  # before and after the run
    nic_loop: str = ""  # which code drove the NICs: compiled, python
    run_id: str = ""  # where it is kept; see history.py

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes and ranks."""
        return sum(row.wrong for row in self.rows)

    @property
    def busbw(self) -> float:
        """The average over sizes, GB/s, as nccl-tests' last line has it."""
        return sum(row.busbw for row in self.rows) / len(self.rows)

    @property
    def in_flight(self) -> InFlight:
        """What each connection may have unacknowledged."""
        return InFlight.of(self.options, 0 if self.propagation is None else self.propagation.bdp_packets)

    def counted(self, line: Literal["packets", "order"]) -> list[tuple[Column, list[int]]]:
        """The transport's columns that a line of the table shows, each with the number of every QP."""
        shown = [column for column in self.transport.columns if column.line == line]
        return [(column, [flow.counters[column.key] for flow in self.flows]) for column in shown]

    def to_json(self) -> dict[str, Any]:
        """The document that `--format json` prints."""
        return {
            "lab": self.lab,
            "run_id": self.run_id or None,
            "ecmp": self.ecmp,
            "transport": self.transport.to_json(),
            "options": asdict(self.options),
            "ranks": [{"rank": e.rank, "host": e.host, "port": e.port} for e in self.endpoints],
            "propagation": self.propagation.to_json() if self.propagation is not None else None,
            "in_flight": self.in_flight.to_json(),
            "communicators": [list(ranks) for ranks in self.communicators],
            "results": [asdict(row) for row in self.rows],
            "avg_busbw": self.busbw,
            "flows": [flow.to_json() for flow in self.flows],
            "emulated": {"k": self.k, "means": emulated_words(self.k)},
            "nic_loop": self.nic_loop,
            "unreliable": [asdict(cause) for cause in self.machine.unreliable],
            "machine": self.machine.to_json(),
            "icrc_errors": self.icrc_errors,
            "stray": self.stray,
            "queues": self.queues.to_json() if self.queues is not None else None,
            "fabric_state": self.fabric_state.to_json() if self.fabric_state is not None else None,
            "warnings": list(self.warnings),
        }

    def table(self, short: bool = False) -> str:
        """The whole in nccl-tests' text format, with lines of our own behind `#`.

        `short` leaves out the ranks and the in-place columns (which are never measured here), to fit 90 columns.
        """
        head = self._short_head() if short else self._head()
        pattern = find_pattern(self.options.collective, self.options.algorithm)
        kind = f"{pattern.redop:>6s}  {pattern.root:6d}"
        lines = [*head, *(_table_line(row, kind, short) for row in self.rows), *self._foot()]
        if self.run_id and not short:
            lines.insert(-1, f"#run      : {self.run_id}; ./inv runs lists the runs of {self.lab}")
        return "\n".join(lines) + "\n"

    def _head(self) -> list[str]:
        o = self.options
        step = f"{o.sizes[1] / o.sizes[0]:g}(factor)" if len(o.sizes) > 1 else "1(factor)"
        return [
            f"# Collective test starting: {o.collective}",
            f"# nThread 1 nGpus 1 minBytes {o.sizes[0]} maxBytes {o.sizes[-1]} step: {step} "
            f"warmup iters: {o.warmup} iters: {o.iters} agg iters: 1 validation: 1 graph: 0",
            "#",
            f"# {self.lab}: ecmp {self.ecmp}; " + ", ".join(describe(o)),
            *self._state_lines(),
            f"#window   : {self.in_flight.text()}",
            *([f"#delay    : {self.propagation.text()}"] if self.propagation is not None else []),
            *self._split_lines(),
            *_rank_lines(self.endpoints, self.communicators),
            "#",
            f"# {'':58s}{'out-of-place':>24s}{'in-place':>34s}",
            *(left + right for left, right in zip(_COLUMNS, _IN_PLACE, strict=True)),
        ]

    def _short_head(self) -> list[str]:
        columns = (left.rstrip() for left in _COLUMNS)
        o = self.options
        what = f"# {o.collective} ({o.algorithm}) over {len(self.endpoints)} ranks, {o.placement} placement; "
        lines = [f"{what}{o.qps} QPs ({o.qp_mode}), UDP source ports {o.source_ports.mode}"]
        more = [f"#window   : {self.in_flight.text()}"] if self.in_flight.usual else []
        return [*lines, *self._state_lines(), *more, *self._split_lines(), *columns]

    def _state_lines(self) -> list[str]:
        """One line where the fabric was not as its file says; the warnings at the end say more."""
        state = self.fabric_state
        if state is None or state.word == "converged":
            return []
        if state.word == "changed":
            return ["#fabric   : routes or hashing changed during this run: do not compare it"]
        when = "before" if not state.before.converged else "after"
        what = (state.before if when == "before" else state.after).text()
        return [f"#fabric   : degraded {when} this run ({what}): do not compare it with a converged fabric"]

    def _split_lines(self) -> list[str]:
        """One line where several communicators run; as in nccl-tests, bandwidths are then those of each."""
        return [f"#split    : {self.split}; bandwidths are of each"] if self.split else []

    def _foot(self) -> list[str]:
        events = [(sum(values), column.text) for column, values in self.counted("packets")]
        events += [(self.icrc_errors, "with a wrong ICRC"), (self.stray, "stray")]
        lines = [
            *self.machine.lines(),
            f"# Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}",
            f"# Avg bus bandwidth    : {self.busbw:g}",
            f"#emulated : k = {self.k}: {emulated_words(self.k)}",
        ]
        if any(count for count, _ in events):
            lines.append("#packets  : " + ", ".join(f"{count} {text}" for count, text in events))
        lines += self.queues.lines() if self.queues is not None else []
        lines += self._order()
        lines.extend(f"#warning  : {w}" for w in self.warnings)
        lines.append(f"# Collective test concluded: {self.options.collective}")
        return lines

    def _order(self) -> list[str]:
        """What the transport says about the order of arrival."""
        lines = []
        for column, values in self.counted("order"):
            total, qps = sum(values), sum(1 for value in values if value)
            if total:
                packets = f"{total} packet{'' if total == 1 else 's'} {column.text}"
                lines.append(f"#order    : {packets} on {qps} of {len(values)} QPs")
        if lines and not any(mode in self.ecmp for mode in SPREADING):
            lines.append("#order    : each QP uses one path: packets were lost, or routes changed (see ./inv validate)")
        return lines


def size_row(size: int, iters: int, factor: float, seconds: Sequence[float], wrong: int) -> SizeRow:
    """One line from each rank's seconds for `iters` iterations."""
    time_s = sum(seconds) / len(seconds) / iters
    algbw = size / time_s / 1e9
    return SizeRow(size, time_s * 1e6, algbw, algbw * factor, wrong)


def _rank_lines(endpoints: Sequence[Endpoint], communicators: Communicators) -> list[str]:
    """One line a rank up to 16, then only how many there are; its communicator is its group, as in nccl-tests."""
    group = {rank: f" Group {place:2d}" for place, ranks in enumerate(communicators) for rank in ranks}
    shown = [
        f"#  Rank {e.rank:2d}{group[e.rank] if len(communicators) > 1 else ''} on {e.host:>10s} device {e.port} "
        f"[{e.ip}] behind {e.first_hop}"
        for e in endpoints
    ]
    return shown if len(shown) <= 16 else [*shown[:4], f"#  ... {len(shown) - 5} more ranks", shown[-1]]


def _table_line(row: SizeRow, kind: str, short: bool) -> str:
    """kind: the columns redop and root."""
    head = f"{row.size:12d}  {row.size // ELEMENT_BYTES:12d}  {'float':>8s}  {kind}"
    body = f"  {_number(row.time_us, 7)}  {_number(row.algbw, 6)}  {_number(row.busbw, 6)}  {row.wrong:6g}"
    return head + body + ("" if short else f"  {'N/A':>7s}  {'N/A':>6s}  {'N/A':>6s}  {'N/A':>6s}")


def _number(value: float, width: int) -> str:
    """As many decimals as fit, four at most below 1: emulated bandwidths are small, and 0.01 would say nothing.

    What is smaller still is written as 1.4e-5, since 0.0000 would be wrong.
    """
    if 0 < value < 0.001:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".rjust(width)
    for digits in (4, 3, 2, 1, 0) if value < 1 else (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"
