"""Admission and slow hosts in a run: CTS packets, and how long messages waited for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.tables import Table, value_text
from heddle.runs.parts.part import RunPart
from heddle.traffic.admission import ADMISSION_TUNABLES, WaitCounts, merged, percentile
from heddle.traffic.tunables import described

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """How long messages waited for their CTS, in seconds of the emulation.

    at_once: messages of `messages` whose CTS was there before them; they count as 0. Percentiles are the ends of
    buckets, at most 12 % too high. longest: the end of the last bucket.
    """

    messages: int
    at_once: int
    p50_s: float
    p90_s: float
    longest_s: float

    @classmethod
    def of(cls, counts: WaitCounts) -> WaitFigures:
        """From the waits of all senders."""
        at_once = dict(counts).get(0, 0)
        return cls(
            sum(count for _, count in counts), at_once,
            percentile(counts, 0.5), percentile(counts, 0.9), percentile(counts, 1.0),
        )  # fmt: skip

    def text(self) -> str:
        """`wait for CTS: P50 1.2 ms, P90 3 ms, longest 9 ms; 12 of 960 messages did not wait`."""
        p50, p90, longest = (_time(each) for each in (self.p50_s, self.p90_s, self.longest_s))
        free = f"{self.at_once:,} of {self.messages:,} messages did not wait"
        return f"wait for CTS: P50 {p50}, P90 {p90}, longest {longest}; {free}"


def _time(seconds: float) -> str:
    return "0" if not seconds else f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True)
class AdmissionUse(RunPart):
    """Admission in one run. parameters: all of them; settings: those that were set. budget_bytes: in flight to a
    receiver, at most. cts_acks: ACKs of CTS packets, which switches count with the data of the same queue pair.

    on: False for a run that has slow hosts only. cts_path: why the paths of CTS packets are not part of the proof.
    slow: host -> share of its NIC's rate at which its ranks process data.
    """

    on: bool
    parameters: Mapping[str, float]
    settings: str
    cts_class: str
    budget_bytes: int
    text: str
    cts_sent: int
    cts_received: int
    cts_resent: int
    waits: WaitFigures | None
    slow: Mapping[str, float]
    cts_path: str = ""
    cts_acks: int = 0

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> AdmissionUse | None:
        """From the end of a run; None without admission and slow hosts."""
        options, counted = measured.plan.options, measured.counters
        slow = dict(options.slow)
        admission = measured.plan.admission
        if admission is None:
            return cls(False, {}, "", "", 0, "", 0, 0, 0, None, slow) if slow else None
        values = admission.values
        waits = WaitFigures.of(merged(end.waits for report in measured.reports for end in report.qps))
        return cls(
            True, values, described(values, ADMISSION_TUNABLES), admission.cts_class, admission.budget_bytes,
            admission.text(), counted["cts_sent"], counted["cts_received"], counted["cts_resent"], waits, slow,
            _NO_PROOF, counted["cts_acks"],
        )  # fmt: skip

    def lines(self) -> list[str]:
        lines = []
        if self.on and self.waits is not None:
            again = f", {self.cts_resent:,} of them retransmitted" if self.cts_resent else ""
            cts = f"{self.cts_sent:,} CTS sent{again}, {self.cts_received:,} received, in the {self.cts_class} class"
            acks = f"{self.cts_acks:,} ACKs of CTS are counted with the data, and not predicted"
            lines += [self.text, f"{cts}; their paths are not proven", acks, self.waits.text()]
            if self.settings:
                lines.append(f"set: {self.settings}")
        lines = [f"#admission: {line}" for line in lines]
        if self.slow:
            hosts = ", ".join(f"{host} at {share:.3g}" for host, share in self.slow.items())
            why = "senders wait for its CTS" if self.on else "no admission, so this holds no sender back"
            lines.append(f"#slow     : processes data at this share of its NIC's rate: {hosts}; {why}")
        return lines

    def table(self) -> Table:
        """Parameters, CTS packets and waits; a share for each slow host."""
        rows = [(name, value_text(value)) for name, value in self.parameters.items()]
        if (waits := self.waits) is not None:
            sent = f"{self.cts_sent:,} sent, {self.cts_resent:,} of them retransmitted, {self.cts_received:,} received"
            rows += [
                ("class of CTS packets", self.cts_class),
                ("CTS packets", sent),
                ("messages", f"{waits.messages:,}, of which {waits.at_once:,} did not wait for their CTS"),
                ("wait for CTS", f"P50 {waits.p50_s * 1e3:.3g} ms, P90 {waits.p90_s * 1e3:.3g} ms"),
            ]
        rows += [(f"{host} processes data at", f"{share:.3g} of its NIC's rate") for host, share in self.slow.items()]
        note = f"{self.text}. {self.cts_path}" if self.on else "admission is off: slow hosts hold no sender back"
        return Table("Admission and slow hosts", ("what", "value"), tuple(rows), note)


_NO_PROOF: Final = (
    "CTS packets share the counters of acknowledgements, in the reverse direction of the first queue pair of a "
    "connection, so their paths are not proven"
)
