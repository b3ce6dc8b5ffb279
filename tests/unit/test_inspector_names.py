"""Runs under the names of NCCL Inspector: labels, buckets, single sends, and all that its dashboard selects by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.dashboard.inspectornames import (
    BANDWIDTH,
    COLLECTIVE_LABELS,
    P2P_BANDWIDTH,
    P2P_LABELS,
    P2P_TIME,
    TIME,
    collective_name,
    inspector_families,
    message_size,
)
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow
from heddle.traffic.options import RunOptions
from tests.unit import run_samples as samples
from tests.unit.kept_runs import with_rows

# NVIDIA/nccl v2.30, plugins/profiler/inspector/grafana: what the queries of its panels select and group by.
OF_PANELS = {"cluster", "slurm_job_id", "n_nodes", "nranks", "message_size"}


def exported(record: RunRecord) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By metric, the labels and the value of each sample."""
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in inspector_families([replace(record, id="0007")])
    }


def test_every_label_that_nvidias_dashboard_selects_by_is_there() -> None:
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


def test_sizes_of_one_bucket_are_one_sample() -> None:
    """Prometheus refuses a scrape with two equal sets of labels. Inspector: geometric mean, and mean of times."""
    rows = [SizeRow(65536, 1000.0, 0.04, 0.04, 0), SizeRow(65600, 3000.0, 0.01, 0.01, 0)]
    found = exported(with_rows(samples.record(), *rows))
    ((labels, value),) = found[BANDWIDTH]
    assert (labels["message_size"], round(value, 9)) == ("64-65KB", 0.02)
    assert [value for _, value in found[TIME]] == [2000.0]


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "sends"),
    [("incast", "direct", 2, True), ("all-to-all", "staggered", 2, True), ("incast", "direct", 3, False),
     ("all-reduce", "ring", 2, False)],
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
    pairs = replace(record, header=replace(record.header, communicators=((0, 1), (2, 3))))
    for labels, _ in exported(pairs)[BANDWIDTH]:
        assert (labels["n_nodes"], labels["nranks"]) == ("2", "2")
    # Message sizes and collectives have the names of nccl inspector.
    buckets = {0: "0B", 1: "1-2B", 1023: "1023-1024B", 1024: "1-2KB", 1 << 20: "1-2MB", (5 << 20) - 1: "4-5MB"}
    assert {count: message_size(count) for count in buckets} == buckets
    names = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
    assert [collective_name(name) for name in names] == ["AllReduce", "ReduceScatter", "AllGather", "AlltoAll"]
