"""The barriers of a run: no worker begins a size before every other is ready, or checks it before all have finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints import crew
from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from tests import lineworker
from tests.machine import patience

ROOT = Path(__file__).parents[2]
SIZES = (64, 128, 256)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_size_starts_and_is_checked_by_all_workers_together(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(crew, "_WORKER", lineworker.__name__)
    monkeypatch.setenv("LINEWORKER_LOG", str(log))
    monkeypatch.setenv("LINEWORKER_CHECK_S", "0.3")
    plan = build_plan(load_fabric("tiny").fabric, RunOptions(sizes=SIZES, warmup=0, iters=1))
    transport = find_transport("rc").of(plan)
    with crew.crew_of(plan, transport, {}, workers) as running:
        heard: list[tuple[int, int, list[int]]] = []
        reports = running.run(
            Silent(), on_size=lambda size, results: heard.append((time.monotonic_ns(), size, [*results]))
        )
        phases = running.phases
    said: dict[str, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        at, _, word = line.split(" ", 2)
        said[word].append(int(at))
    for number in range(len(SIZES)):
        assert len(said[f"go {number}"]) == len(said[f"ready {number}"]) == workers
        assert min(said[f"go {number}"]) > max(said[f"ready {number}"])
        assert len(said[f"check {number}"]) == workers
        assert min(said[f"check {number}"]) > max(said[f"use {number}"])
    assert running.began_ns > max(said["ready 0"])
    assert len(reports) == workers
    # Each size is reported once, with all ranks, when it is checked and before the next one begins.
    assert [(size, ranks) for _, size, ranks in heard] == [(size, [0, 1, 2, 3]) for size in SIZES]
    for number, (when, _, _) in enumerate(heard):
        assert when > max(said[f"check {number}"])
        assert number == len(SIZES) - 1 or when < min(said[f"go {number + 1}"])
    # What the machine did in a size has nothing of the check after it.
    assert [phase.size for phase in phases] == list(SIZES)
    assert all(len(phase.workers) == workers for phase in phases)
    for number, phase in enumerate(phases[:-1]):
        assert phase.seconds < (max(said[f"ready {number + 1}"]) - max(said[f"ready {number}"])) / 1e9


def test_a_worker_that_ends_after_its_report_does_not_end_the_run_of_one_that_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_WORKER", lineworker.__name__)
    monkeypatch.setenv("LINEWORKER_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LINEWORKER_CHECK_S", "0")
    monkeypatch.setenv("LINEWORKER_REPORT_S", "1")
    plan = build_plan(load_fabric("tiny").fabric, RunOptions(sizes=(64,), warmup=0, iters=1))
    with crew.crew_of(plan, find_transport("rc").of(plan), {}, 4) as running:
        assert len(running.run(Silent())) == 4


def test_a_worker_gives_way_to_the_kernel_threads_that_forward_its_packets() -> None:
    """ksoftirqd has nice 0. The worker waits for its task, which never comes: its input ends."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    worker = subprocess.Popen(
        [sys.executable, "-m", crew._WORKER], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        end = time.monotonic() + patience(60)
        while os.getpriority(os.PRIO_PROCESS, worker.pid) == own and time.monotonic() < end:
            time.sleep(0.02)
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(19, own + 5)
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "w ended early (exit code 3)\n  hint: see its output above"),
        (-signal.SIGSEGV, "w was ended by SIGSEGV\n  hint: run it again"),
        (
            -signal.SIGKILL,
            "w was ended by SIGKILL\n"
            "  hint: use smaller sizes if the kernel ran out of memory (dmesg shows this), or run it again",
        ),
        (-(signal.SIGRTMIN + 1), f"w was ended by signal {signal.SIGRTMIN + 1}\n  hint: run it again"),
    ],
)
def test_the_end_of_a_worker_is_described(code: int, text: str) -> None:
    assert str(crew._ended("w", code)) == text
