"""A worker that only speaks the lines of one (heddle/endpoints/worker.py): it has no NIC, and takes its time.

`python -m tests.lineworker` notes in the file that LINEWORKER_LOG names what it hears and says, with the time, and
whose rank is its first. The worker of rank 0 checks each size for LINEWORKER_CHECK_S seconds, runs it for a
third, and reports LINEWORKER_REPORT_S seconds after the others, which have ended by then. With LINEWORKER_FAILS it
fails in the first size; the others answer the question of what their NICs have dropped.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pydantic import TypeAdapter

from heddle.base.problems import Problem
from heddle.endpoints.reports import SizeResult, WorkerMessage, WorkerReport
from heddle.endpoints.worker import Task, send
from heddle.host.capacity import WorkerUse


def main() -> None:
    task = TypeAdapter(Task).validate_json(sys.stdin.readline())
    first = task.ranks[0]

    def note(word: str) -> None:
        with Path(os.environ["LINEWORKER_LOG"]).open("a", encoding="utf-8") as log:
            log.write(f"{time.monotonic_ns()} {first} {word}\n")

    def results(number: int) -> dict[int, SizeResult]:
        return {rank: SizeResult(sizes[number], 1.0 + rank, 0) for rank in task.ranks} if number >= 0 else {}

    sizes = task.plan.options.sizes * (task.repeat or 1000)
    heard = ""
    for number, _ in enumerate(sizes):
        note(f"ready {number}")
        send(WorkerMessage(ready=True, results=results(number - 1)))
        heard = sys.stdin.readline()
        if "stop" in heard:
            break
        if "go" not in heard:
            return
        note(f"go {number}")
        if first == 0 and "LINEWORKER_FAILS" in os.environ:
            send(WorkerMessage(error=(Problem("", "rank 0:", "no acknowledgement"),)))
            return
        time.sleep(float(os.environ["LINEWORKER_CHECK_S"]) / 3 if first == 0 else 0.0)
        note(f"use {number}")
        send(WorkerMessage(use=WorkerUse(0.001, 0.5, 0.0)))
        heard = sys.stdin.readline()
        if "foreign" in heard:
            send(WorkerMessage(waits=(Problem("", f"rank {first}:", "frames for another MAC"),)))
        if "check" not in heard:
            return
        note(f"check {number}")
        time.sleep(float(os.environ["LINEWORKER_CHECK_S"]) if first == 0 else 0.0)
    if "stop" not in heard:
        note("done")
        send(WorkerMessage(done=True, results=results(len(sizes) - 1)))
        heard = sys.stdin.readline()
    if "stop" in heard:
        time.sleep(float(os.environ.get("LINEWORKER_REPORT_S", "0")) if first == 0 else 0.0)
        send(WorkerMessage(report=WorkerReport((), ())))


if __name__ == "__main__":
    main()
