"""A run of what attached devices did: for a time, or while a command runs.

In:  a running lab with attached ports. Out: a stored run with the flows that the switches have counted, and lines with
what each device sent and received, and what was dropped at its edge. Devices are held while the counters are read: a
packet in flight would be counted at some of its switches only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, first_lines
from heddle.base.process import attached as run_attached
from heddle.base.units import format_bytes
from heddle.endpoints.programruns import ProgramEnd, check_command
from heddle.lab.attached import Attachment, read
from heddle.lab.lab import Lab
from heddle.runs.programs import ProgramResult, watched
from heddle.runs.runtable import FOREIGN
from heddle.runs.writer import begun
from heddle.switch.queues.classes import port_ids
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import endpoint_at
from heddle_plugins.attach.holding import held
from heddle_plugins.attach.state import faults
from heddle_plugins.attach.wires import WireCounts, WireMaps


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The run, and what each device did meanwhile."""

    result: ProgramResult
    counts: Mapping[str, WireCounts]

    def lines(self) -> list[str]:
        """For the end of the output."""
        found = self.result.lines()
        for ref, each in self.counts.items():
            sent = f"{each.in_packets:,} frames ({format_bytes(each.in_bytes)}) from the device"
            came = f"{each.out_packets:,} ({format_bytes(each.out_bytes)}) to it, {each.marked:,} of these marked"
            found.append(f"{ref}: {sent}, {came}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**self.result.to_json(), "devices": {ref: each.to_json() for ref, each in self.counts.items()}}


def record(lab: Lab, seconds: float | None, argv: Sequence[str], observer: Observer) -> RecordedRun:
    """Record for a time, or while the command runs. Ctrl-C ends the time early, and the run is kept.

    InputError without an attached port, or for a command that is not there.
    """
    rows = read(lab.dir)
    if not rows:
        hint = "./inv attach HOST --netns NAME gives a port to a device of yours"
        raise InputError(Problem("", f"record of {lab.name}", "has no endpoint: no port is attached", hint))
    if argv:
        check_command(argv)
    known = {row.ref: row for row in rows if row.host in lab.fabric.by_name}
    ports = [lab.fabric.by_name[row.host].port(row.port) for row in known.values()]
    words = (*([] if seconds is None else ["--for", f"{seconds:g}s"]), "--", *(argv or [FOREIGN]))
    head = begun(
        lab, options=RunOptions(ranks=len(ports), sizes=()), qps=0, launch=words,
        ranks=tuple(endpoint_at(lab.fabric, number, port) for number, port in enumerate(ports)),
        recorded=tuple(f"{row.ref} {row.target}" for row in known.values()),
    )  # fmt: skip
    before, after = dict[str, WireCounts](), dict[str, WireCounts]()

    def act() -> ProgramEnd:
        before.update(counts_of(lab, known.values()))
        holds.open()
        began = time.monotonic()
        code = run_attached(argv) if argv else _wait(seconds or 0)
        took = time.monotonic() - began
        holds.close()
        return ProgramEnd(code, (code,), None, (), {}, took)

    def faults_of(end: ProgramEnd) -> list[str]:
        now = counts_of(lab, known.values())
        after.update({ref: each.since(before.get(ref)) for ref, each in now.items()})
        found = [f"{argv[0]} ended with exit code {end.code}"] if argv and end.code else []
        found += [f"{ref}: at its edge were dropped {text}" for ref, each in after.items()
                  if (text := each.apart_text())]  # fmt: skip
        return [*found, *first_lines([*faults(lab, known.values())])]

    what = f"record ({argv[0] if argv else f'{seconds:g} s'})"
    with held(known.values()) as holds:
        return RecordedRun(watched(lab, head, what, observer, act, faults_of), after)


def counts_of(lab: Lab, rows: Iterable[Attachment]) -> dict[str, WireCounts]:
    """Port -> what its wire has counted, of those that have one."""
    numbers, found = port_ids(lab.fabric), dict[str, WireCounts]()
    with WireMaps(lab.name) as wires:
        for row in rows:
            if (counts := wires.counts(numbers[row.host, row.port])) is not None:
                found[row.ref] = counts
    return found


def _wait(seconds: float) -> int:
    with suppress(KeyboardInterrupt):
        threading.Event().wait(seconds)
    return 0
