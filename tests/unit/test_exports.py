"""Runs in the formats of other tools: nccl-tests' JSON, CSV, Inspector's lines; and what `run` does with figures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.cli.outputs import Outputs
from heddle.cli.program import main
from heddle.runs.exports import EXPORTS
from heddle.runs.exports.asked import Asked
from heddle.runs.exports.sizes import COLUMNS
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow, figures, stats_of
from heddle.runs.stored import StoredRun
from heddle.traffic.collectives.pattern import InPlace
from heddle.traffic.options import RunOptions
from tests.answers import Answers
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep, with_rows

# What nccl-tests 2.19.6 writes (src/util.cu), in its order; of objects, the type of each value.
TOP = (
    "version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds",
    "average_bus_bandwidth", "errors", "end_time",
)  # fmt: skip
CONFIG: Mapping[str, type] = {
    "nthreads": int, "ngpus": int, "minimum_bytes": int, "maximum_bytes": int, "step_factor": int, "warmup_iters": int,
    "iterations": int, "aggregated_iterations": int, "validation": int, "graph": int, "blocking_collectives": str,
    "per_iter_timing": str, "per_iter_skip": int, "parallel_init": str, "devices": list,
}  # fmt: skip
DEVICE: Mapping[str, type] = {
    "rank": int, "group": int, "pid": int, "hostname": str, "device": int, "device_hex": str, "device_info": str,
}  # fmt: skip
RESULT = (
    "size", "count", "type", "redop", "root", "out_of_place", "out_of_place_per_iter", "in_place", "actual_iterations",
    "experiment_name",
)  # fmt: skip
PER_ITER = (
    "skipped_iterations", "min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us", "cv_pct", "times_us",
    "per_process_max_times_us",
)  # fmt: skip


def record(qps: int = 1, in_place: InPlace = "off") -> RunRecord:
    """Four ranks, of which rank 2 is the slowest in every iteration."""
    options = RunOptions(sizes=(1 << 16, 1 << 18), qps=qps, iters=3, in_place=in_place)
    rows = []
    for at, size in enumerate(options.sizes):
        times = [[(10 + rank * (rank < 3) + each + 5 * at) * 1e-3 for each in range(3)] for rank in range(4)]
        rows.append(SizeRow.of(size, figures(size, 3, 1.5, [sum(each) for each in times], at, times)))
    return with_rows(samples.record(options), *rows)


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return keep(tmp_path, 7, record())


def exported(run: StoredRun, name: str, asked: Asked = Asked()) -> str:  # noqa: B008 (frozen)
    return EXPORTS[name].written(run, asked).decode()


def test_the_json_has_the_keys_of_nccl_tests_in_their_order_and_their_types(run: StoredRun) -> None:
    found: dict[str, Any] = json.loads(exported(run, "json"))
    assert tuple(found) == TOP
    assert (found["version"], found["nccl_version"], found["args"][0]) == (3, 0, "all_reduce_perf")
    assert {name: type(value) for name, value in found["config"].items()} == CONFIG
    assert all({name: type(value) for name, value in each.items()} == DEVICE for each in found["config"]["devices"])
    assert [each["hostname"] for each in found["config"]["devices"]] == ["host1", "host2", "host3", "host4"]
    assert "HEDDLE_EMULATED_K=4000" in found["env"], "a reader can see that no hardware was measured"
    small, large = found["results"]
    assert tuple(small) == RESULT and tuple(small["out_of_place_per_iter"]) == PER_ITER
    assert (small["size"], small["count"], small["root"], small["in_place"]) == (65536, 16384, "    -1", None)
    assert (large["out_of_place"]["nwrong"], found["out_of_bounds"]) == (1.0, {"count": 1, "okay": "false"})
    assert found["average_bus_bandwidth"]["okay"] == "unchecked"


def test_what_was_measured_in_place_is_there_as_such(tmp_path: Path) -> None:
    (row, _) = json.loads(exported(keep(tmp_path, 8, record(in_place="auto")), "json"))["results"]
    assert row["out_of_place"] is None and "out_of_place_per_iter" not in row
    assert row["in_place"]["time"] > 0 and len(row["in_place_per_iter"]["per_process_max_times_us"]) == 4
    measured = record(in_place="both")
    rows = [SizeRow.of(each.size, each.first, each.first) for each in measured.rows]
    both = keep(tmp_path, 9, with_rows(measured, *rows))
    (row, _) = json.loads(exported(both, "json"))["results"]
    assert row["in_place"] == row["out_of_place"] and row["in_place_per_iter"] == row["out_of_place_per_iter"]
    small, _ = csv.DictReader(io.StringIO(exported(both, "csv")))
    assert float(small["in_place_time_us"]) == float(small["time_us"])


def test_times_of_iterations_are_those_of_each_rank_and_of_the_slowest(run: StoredRun) -> None:
    for row in json.loads(exported(run, "json"))["results"]:
        figures = row["out_of_place_per_iter"]
        each = figures["per_process_max_times_us"]
        # What analyze_perf_json.py of nccl-tests checks first, and how it finds the straggler.
        assert figures["times_us"] == [max(times) for times in zip(*each, strict=True)]
        assert max(range(4), key=lambda rank: sum(each[rank])) == 2
    skipped = json.loads(exported(run, "json", Asked(skip=2)))["results"][0]["out_of_place_per_iter"]
    assert (skipped["skipped_iterations"], skipped["min_us"], len(skipped["times_us"])) == (2, 14000.0, 3)


def test_figures_of_iterations_are_computed_as_nccl_tests_does() -> None:
    hundred = stats_of([float(each) for each in range(1, 101)])
    assert hundred is not None
    assert (hundred.p50_us, hundred.p95_us, hundred.p99_us, hundred.max_us) == (51.0, 95.0, 99.0, 100.0)
    assert (hundred.avg_us, round(hundred.stdev_us, 6), round(hundred.cv_pct, 3)) == (50.5, 28.86607, 57.161)
    few = stats_of([3.0, 1.0, 2.0, 9.0], skip=1)
    assert few is not None and (few.min_us, few.p50_us, few.p99_us, few.avg_us) == (1.0, 2.0, 9.0, 4.0)
    assert stats_of([1.0], skip=1) is None


def test_a_csv_has_a_row_for_each_size_and_always_the_same_columns(tmp_path: Path, run: StoredRun) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(run, "csv"))))
    assert [(row["size_bytes"], row["p99_us"], row["wrong"], row["k"]) for row in rows] == [
        ("65536", "14000.0", "0", "4000"), ("262144", "19000.0", "1", "4000"),
    ]  # fmt: skip
    older = exported(keep(tmp_path / "older", 1, samples.record()), "csv").splitlines()
    assert older[0] == ",".join(COLUMNS)
    assert {len(line.split(",")) for line in older} == {len(COLUMNS)}


def test_inspector_has_a_line_for_each_operation_of_each_rank(tmp_path: Path, run: StoredRun) -> None:
    lines = [json.loads(line) for line in exported(run, "inspector").splitlines()]
    assert len(lines) == 2 * 3 * 4
    # Its perf_summary_exporter.py skips lines without one of these, and makes one table of their keys.
    assert all(tuple(each) == ("header", "metadata", "coll_perf") for each in lines)
    first = lines[2]
    assert first["header"] == {"id": first["header"]["id"], "comm_name": "zone-0", "rank": 2, "n_ranks": 4, "nnodes": 4}
    assert first["metadata"]["inspector_output_format_version"] == "v4.0"
    perf = first["coll_perf"]
    assert (perf["coll"], perf["coll_sn"], perf["coll_exec_time_us"]) == ("AllReduce", 1, 12000)
    assert perf["coll_busbw_gbs"] == pytest.approx(1.5 * 65536 / 12000 / 1e3, rel=1e-3)
    with pytest.raises(InputError, match="did not record the times of each rank"):
        exported(keep(tmp_path / "older", 1, samples.record()), "inspector")
    split = replace(run.record, communicators=((0, 2), (1, 3)))
    pairs = [json.loads(each) for each in exported(keep(tmp_path / "split", 1, split), "inspector").splitlines()]
    assert {(each["header"]["comm_name"], each["metadata"]["hostname"]) for each in pairs} == {
        ("zone-0", "host1"), ("zone-0", "host3"), ("zone-1", "host2"), ("zone-1", "host4"),
    }  # fmt: skip


def test_a_second_measurement_in_place_has_its_own_columns(tmp_path: Path) -> None:
    rows = [replace(row, in_place=replace(row.first, busbw=row.busbw / 2, wrong=3)) for row in record().rows]
    run = keep(tmp_path, 8, with_rows(record(), *rows))
    found: dict[str, Any] = json.loads(exported(run, "json"))
    first = found["results"][0]
    assert (first["in_place"]["nwrong"], first["in_place"]["bus_bw"]) == (3.0, first["out_of_place"]["bus_bw"] / 2)
    assert first["in_place_per_iter"] == first["out_of_place_per_iter"]
    assert (found["out_of_bounds"]["count"], len(exported(run, "inspector").splitlines())) == (7, 2 * 2 * 3 * 4)
    assert next(csv.DictReader(io.StringIO(exported(run, "csv"))))["in_place_wrong"] == "3"
    assert len(Asked(min_busbw=0.008).below(rows)) == 1, "only the size in place is slower"


def test_sizes_below_the_least_busbw_are_named() -> None:
    rows = record().rows
    assert Asked(min_busbw=0.01).below(rows) == ["busbw of 64 KiB is 0.008366 GB/s, which is below --min-busbw 0.01"]
    assert Asked().below(rows) == [] == Asked(min_busbw=0.001).below(rows)


def test_an_existing_json_stays_and_the_next_free_name_is_taken(tmp_path: Path) -> None:
    name = str(tmp_path / "out.json")
    assert Outputs.of({"json": name}).announced == [f"# Writing JSON output to {name}"]
    for taken in (name, f"{name}.0"):
        Path(taken).write_text("kept")
    assert Outputs.of({"json": name}).files == {"json": f"{name}.1"}


def test_what_cannot_be_written_is_reported_before_anything_runs(answers: Answers) -> None:
    answers(lambda typed: Outputs.of(**typed))


def test_a_stored_run_is_exported_and_its_table_printed(
    tmp_path: Path, run: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks

    def inv(*words: str) -> tuple[int, str]:
        code = main(vars(tasks), ["inv", "export", str(run.path), *words])
        return code, capsys.readouterr().out

    written = tmp_path / "out.csv"
    code, said = inv("--csv", str(written), "--min-busbw", "0.001")
    assert (code, said.splitlines()[-1]) == (1, f"#wrote    : {written}"), "it has a wrong element"
    assert written.read_text() == exported(run, "csv")
    assert "# Out of bounds values : 1 FAILED" in said and said.count("float") == 2
    code, said = inv("--min-busbw", "0.01", "--format", "json")
    assert (code, len(json.loads(said)["below"])) == (1, 1)
    failed = keep(tmp_path / "failed", 8, samples.failed())
    assert main(vars(tasks), ["inv", "export", str(failed.path)]) == 2
    assert "it failed: rank 1 on host2:eth1" in capsys.readouterr().err
