"""The table of runs, word for word; `./inv test golden -- --regen-goldens` writes it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from heddle.host.capacity import Cause
from heddle.runs.parts.machine import MachineUse
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.store import Limits
from heddle.runs.stored import Stored, StoredRun
from heddle.traffic.options import RunOptions
from heddle.views.runstext import runs_json, runs_text
from heddle.views.style import WIDTH
from tests.unit import run_samples as samples

KEEP = Limits(50, 200_000_000)


def kept(number: int, record: RunRecord | None, size: int = 48_123, damage: str = "") -> StoredRun:
    run_id = f"{number:04}"
    run = StoredRun(run_id, "zone", Path("/state/labs/zone/runs", run_id))
    vars(run).update(bytes=size, _record=Stored(record, damage))
    return run


def wrong_sums() -> RunRecord:
    record = samples.record(RunOptions(collective="all-to-all", sizes=(300_000,), qps=1), ecmp="flow")
    rows = (SizeRow(300_000, 1.0, 0.00012, 0.000183, 12),)
    proof = replace(samples.PROOF, agree=False, unproven=3)
    full = Cause("processor", 300_000, 1, sure=False, text="processor 1 was busy for 99% of 2.00 s")
    busy = replace(record[MachineUse], unreliable=(full,))
    return replace(samples.having(record, machine=busy), rows=rows, proof=proof)


def no_proof() -> RunRecord:
    options = RunOptions(collective="incast", sizes=(64, 1 << 20))
    return samples.record(options, None, "e-ecmp, rtsw1: spray, rtsw2: flow")


def test_the_table_of_runs(golden: Callable[[str, str], None]) -> None:
    damage = "run.json has format 7, and this Heddle reads format 1"
    runs = [
        kept(1, samples.record()),
        kept(2, wrong_sums(), 1_234_567),
        kept(3, samples.failed()),
        kept(4, None, 812, damage),
        kept(12, no_proof()),
        kept(13, samples.interrupted()),
    ]
    texts = [
        runs_text({"zone": runs}, KEEP, ()),
        runs_text({"one": [], "zone": runs[:1]}, Limits(1, 1_000_000), ("0007", "0008")),
        runs_text({}, KEEP, ()),
    ]
    text = "\n\n\n".join(texts) + "\n"
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    golden("runs/table.log", text)


def test_rows_have_what_a_program_needs() -> None:
    runs = [
        kept(1, samples.record()),
        kept(3, samples.failed()),
        kept(4, None, damage="run.json is missing"),
        kept(5, samples.interrupted()),
    ]
    rows = runs_json({"zone": runs}, KEEP, ())["runs"]
    first = rows[0]
    assert (first["id"], first["lab"], first["collective"], first["algorithm"]) == (
        "0001",
        "zone",
        "all-reduce",
        "ring",
    )
    assert (first["when"], first["sizes"], first["busbw"]) == ("2026-03-01T14:25:30Z", [65536, 4194304], 0.03)
    assert (first["agree"], first["mmr"], first["emulated"]) == (True, {"flows": 1.25, "bytes": 1.3}, {"k": 4000})
    assert [row["state"] for row in rows] == ["done", "failed", "unreadable", "interrupted"]
    assert [row["last"] for row in rows] == [False, False, True, False], "no verb means an interrupted run by `last`"
    assert [row["size"] for row in rows[3]["measured"]] == [65536]
