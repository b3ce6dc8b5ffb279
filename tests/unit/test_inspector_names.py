"""Runs by their verbs: completion, `runs`, --run, limits; and under the names of NCCL Inspector."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.runs.ncclnames import collective_name
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.store import KEEP_BYTES, KEEP_RUNS, History
from heddle.traffic.options import RunOptions
from heddle_plugins.dashboard.metrics import (
    BANDWIDTH,
    COLLECTIVE_LABELS,
    P2P_BANDWIDTH,
    P2P_LABELS,
    P2P_TIME,
    TIME,
    inspector_families,
    message_size,
)
from tests.answers import Answers
from tests.unit import run_samples as samples
from tests.unit.history_runs import keep
from tests.unit.kept_runs import with_rows
from tests.unit.test_completion import offered

# NVIDIA/nccl v2.30, plugins/profiler/inspector/grafana: what the queries of its panels select and group by.
OF_PANELS = {"cluster", "slurm_job_id", "n_nodes", "nranks", "message_size"}


def exported(record: RunRecord) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By metric, the labels and the value of each sample."""
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in inspector_families([replace(record, id="0007")])
    }


def test_labels_are_those_of_nvidias_dashboard_and_one_bucket_is_one_sample() -> None:
    assert {*COLLECTIVE_LABELS} >= OF_PANELS | {"collective"}
    assert {*P2P_LABELS} >= OF_PANELS | {"p2p_operation"}
    found = exported(samples.record())
    assert set(found) == {BANDWIDTH, TIME}
    for labels, _ in (*found[BANDWIDTH], *found[TIME]):
        about = {name: labels[name] for name in ("cluster", "slurm_job_id", "n_nodes", "nranks", "collective")}
        assert about == {
            "cluster": "zone", "slurm_job_id": "zone-0007", "n_nodes": "4", "nranks": "4", "collective": "AllReduce",
        }  # fmt: skip
    assert [labels["message_size"] for labels, _ in found[TIME]] == ["64-65KB", "4-5MB"]
    # Sizes of one bucket are one sample: Prometheus refuses a scrape with two equal sets of labels. Inspector:
    # geometric mean, and mean of times.
    rows = [SizeRow(65536, 1000.0, 0.04, 0.04, 0), SizeRow(65600, 3000.0, 0.01, 0.01, 0)]
    found = exported(with_rows(samples.record(), *rows))
    ((labels, value),) = found[BANDWIDTH]
    assert (labels["message_size"], round(value, 9)) == ("64-65KB", 0.02)
    assert [value for _, value in found[TIME]] == [2000.0]


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "sends"),
    [("incast", "direct", 2, True), ("all-to-all", "staggered", 2, True), ("incast", "direct", 3, False),
     ("gather", "direct", 2, True), ("scatter", "direct", 2, True), ("all-reduce", "ring", 2, False)],
)  # fmt: skip
def test_a_send_is_measured_alone_between_two_ranks_only(
    collective: str, algorithm: str, ranks: int, sends: bool
) -> None:
    options = RunOptions(collective=collective, algorithm=algorithm, ranks=ranks, sizes=(1 << 20,))
    found = exported(with_rows(samples.record(options), SizeRow(1 << 20, 1000.0, 1.0, 0.5, 0)))
    assert (P2P_BANDWIDTH in found, P2P_TIME in found) == (sends, sends)
    if sends:  # 512 KiB from each sender
        assert [(labels["p2p_operation"], labels["message_size"], value) for labels, value in found[P2P_BANDWIDTH]] == [
            ("Send", "512-513KB", 0.5), ("Recv", "512-513KB", 0.5),
        ]  # fmt: skip
        assert [value for _, value in found[P2P_TIME]] == [1000.0, 1000.0]


def test_nodes_are_those_of_one_communicator_and_names_those_of_nccl_inspector() -> None:
    record = samples.record()
    pairs = replace(record, communicators=((0, 1), (2, 3)))
    for labels, _ in exported(pairs)[BANDWIDTH]:
        assert (labels["n_nodes"], labels["nranks"]) == ("2", "2")
    # Message sizes and collectives have the names of nccl inspector.
    buckets = {0: "0B", 1: "1-2B", 1023: "1023-1024B", 1024: "1-2KB", 1 << 20: "1-2MB", (5 << 20) - 1: "4-5MB"}
    assert {count: message_size(count) for count in buckets} == buckets
    names = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
    assert [collective_name(name) for name in names] == ["AllReduce", "ReduceScatter", "AllGather", "AlltoAll"]


ROOT = Path(__file__).resolve().parents[2]


def test_shells_complete_runs_of_the_lab_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    for lab, count in (("one", 2), ("two", 3)):
        (tmp_path / "labs" / lab).mkdir(parents=True)
        (tmp_path / "labs" / lab / "lab.json").write_text("{}")
        for _ in range(count):
            keep(History.named(lab))
    both, one = ["0001", "0002", "0003", "last"], ["0001", "0002", "last"]
    assert offered("paths", "--run", "") == both
    assert offered("paths", "--lab", "one", "--run", "") == one
    assert offered("paths", "--lab=one", "--run", "") == one
    assert offered("graph", "one", "--run", "") == one
    assert offered("plot", "queues", "--lab", "one", "--run", "00") == one
    assert offered("hashing", "--explain", "266718", "--lab", "one", "--run", "") == one
    assert offered("runs", "one", "--remove", "") == one
    assert offered("runs", "") == ["one", "two"]


def test_the_verb_lists_and_removes_without_a_running_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks
    from heddle.cli.program import main

    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))

    def inv(*typed: str) -> tuple[int, dict[str, Any]]:
        code = main(vars(tasks), ["inv", "runs", *typed, "--format", "json"])
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, said

    assert inv() == (0, {"runs": [], "keep": {"runs": 50, "bytes": 200_000_000}, "removed": []})
    for lab in ("one", "two"):
        (tmp_path / "labs" / lab).mkdir(parents=True)
        (tmp_path / "labs" / lab / "lab.json").write_text("{}")
        for _ in range(2):
            keep(History.named(lab))
    code, said = inv()
    assert [(row["lab"], row["id"], row["last"]) for row in said["runs"]] == [
        ("one", "0001", False), ("one", "0002", True), ("two", "0001", False), ("two", "0002", True),
    ]  # fmt: skip
    code, said = inv("--remove", "1")
    assert (code, said["error"]["problems"][0]["why"]) == (2, "needs a LAB, because there are one, two")
    code, said = inv("one", "--remove", "1,last")
    assert (code, said["removed"], said["runs"]) == (0, ["0001", "0002"], [])
    assert History.named("two").ids() == ["0001", "0002"], "no file of another lab is touched"
    code, said = inv("oen")
    assert (code, said["error"]["problems"][0]["hint"]) == (2, "did you mean one?")


def test_run_has_no_use_without_a_lab(capsys: pytest.CaptureFixture[str], answers: Answers) -> None:
    import tasks
    from heddle.cli.program import main

    answers(lambda line: f"exit code {main(vars(tasks), ['inv', *line.split()])}\n{capsys.readouterr().err}")


def test_the_limits_go_along_through_sudo() -> None:
    from heddle.cli.verbs import KEPT

    assert {KEEP_RUNS, KEEP_BYTES} <= set(KEPT)
