"""Run a program on ranks of a lab, or watch what programs of others do, and store the flows that came of it as a run.

In:  a running lab, and what happens meanwhile. Out: ProgramResult, with the run that `paths` and `report` read.
No program reports what it sent: the flows are those that the switches have counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.tables import many
from heddle.endpoints.programruns import ProgramEnd, ProgramOptions, Seat, Show, check_command, run_ranks, seats
from heddle.kernel import rdma
from heddle.lab import attached
from heddle.lab.fabricstate import FabricReading, FabricState, state_parts
from heddle.lab.lab import Lab
from heddle.proof.collect import collect_program
from heddle.runs.parts.part import RunPart
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import made_ready, read_before
from heddle.runs.runrecord import RunRecord
from heddle.runs.watching import recording
from heddle.runs.writer import begun, writing
from heddle.traffic.options import RunOptions


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A program that ended. faults: what went wrong, a sentence each."""

    end: ProgramEnd
    record: RunRecord
    faults: tuple[str, ...]

    def lines(self) -> list[str]:
        """What became of it, for the end of its output."""
        proof = self.record.proof
        said = "its paths cannot be judged; ./inv paths says why"
        if proof is not None:
            flows = many(proof.qps, "flow")
            found = f"the paths of {flows} are proven" if proof.agree else f"{proof.unproven} of {flows} are not proven"
            said = f"{found}; ./inv paths shows them"
        if proof is not None and not proof.qps:
            said = "no packet passed a switch"
        return [f"run {self.record.id}: {self.end.seconds:.3g} s; {said}"]

    def to_json(self) -> dict[str, Any]:
        """Plain data, without what the ranks printed."""
        proof, verb = self.record.proof, "record" if self.record.recorded else "launch"
        return {
            "lab": self.record.lab, "run_id": self.record.id, verb: list(self.record.launch),
            "exit_code": self.end.code, "exit_codes": list(self.end.codes), "seconds": round(self.end.seconds, 3),
            "faults": list(self.faults), "flows": proof.qps if proof else None,
            "agree": proof.agree if proof and proof.qps else None,
        }  # fmt: skip


def run_program(
    lab: Lab, options: ProgramOptions, argv: Sequence[str], observer: Observer, show: Show
) -> ProgramResult:
    """Run it. InputError before anything starts for ranks that have no place, and for a command that is not there.

    A program that fails is a result. The lab is locked meanwhile. After Ctrl-C nothing is stored.
    """
    why = "launch runs programs of this machine, with its files, in the networks of hosts"
    lab.require_here(why, "./inv exec HOST COMMAND runs a program where the host is")
    check_command(argv)
    if options.rdma:
        rdma.require()
    every = seats(lab.fabric, options)
    attached.check_free(lab, "launch", {seat.end.host for seat in every})
    head = _head(lab, options, every, argv)
    return watched(
        lab, head, f"launch ({head.work} on {many(len(every), 'rank')})", observer,
        lambda: run_ranks(lab, every, argv, show, options.limit_s, rdma=options.rdma),
        lambda end: end.sentences(argv[0], options.limit_s),
    )  # fmt: skip


def watched(
    lab: Lab,
    head: RunRecord,
    work: str,
    observer: Observer,
    act: Callable[[], ProgramEnd],
    faults_of: Callable[[ProgramEnd], Sequence[str]],
) -> ProgramResult:
    """Store what the switches count while `act` goes on. work: what others read who wait for the lab.

    faults_of: what went wrong, a sentence each: warnings of the run.
    """
    with owners.lock(lab.name, work=work):
        made_ready(lab, observer)
        with writing(lab, head) as writer:
            before, fabric_before = read_before(lab, observer)
            bucket_ns, began_ns = writer.record.options.bucket_ns, time.monotonic_ns()
            with recording(lab, bucket_ns, work, [writer.path]) as queues:
                with queues.during(lambda: began_ns):
                    end = act()
                evidence = collect_program(lab, before, end.seconds, state_parts(lab))
                recorded = queues.finish(began_ns)
            moved = tuple(dict.fromkeys([*evidence.changed, *evidence.switched]))
            fabric = FabricState(fabric_before, FabricReading.of(lab, evidence.after), moved)
            faults = tuple(faults_of(end))
            lost = evidence.backlog_drops
            busy = f"UNRELIABLE: this machine dropped {many(lost, 'packet')} before a switch received them"
            faults = (*faults, busy) if lost else faults
            warnings = (*faults, *fabric.warnings(), *recorded.remarks)
            parts: dict[str, RunPart] = {"queues": QueueUse.of(lab.fabric, recorded)} if head.recorded else {}
            record = writer.finish_program(
                evidence, exit_code=end.code, fabric_state=fabric, warnings=warnings, parts=parts
            )
    return ProgramResult(end, record, (*faults, *fabric.warnings()))


def _head(lab: Lab, options: ProgramOptions, every: Sequence[Seat], argv: Sequence[str]) -> RunRecord:
    words = ["--ranks", str(options.ranks)]
    words += [] if options.per_host is None else ["--per-host", str(options.per_host)]
    words += [] if options.placement == "block" else ["--placement", options.placement]
    words += ["--rdma"] * options.rdma
    words += [] if options.limit_s is None else ["--time-limit", f"{options.limit_s:g}s"]
    return begun(
        lab,
        options=RunOptions(ranks=options.ranks, placement=options.placement, sizes=()),
        ranks=tuple(seat.end for seat in every),
        qps=0,
        launch=(*words, "--", *argv),
    )
