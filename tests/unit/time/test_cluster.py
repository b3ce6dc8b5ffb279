"""Simulations of clusters against arithmetic, against `predict --time`, and against themselves."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tasks
from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.endpoints.workloadfile import load_workload
from heddle.offline import loads
from heddle.offline.forecast import Ask
from heddle.offline.loads import traffic_at
from heddle_plugins.time import clustertext, forecast
from heddle_plugins.time.cluster import ClusterResult, ClusterSimulation, UseCurve
from heddle_plugins.time.clusterfile import _Trace, load_cluster
from heddle_plugins.time.clusterpicture import draw
from heddle_plugins.time.clusterplaces import PLACERS
from heddle_plugins.time.forecast import time_forecast

ERRORS = Path(__file__).parent / "errors"
# Two racks of four hosts and one spine: each rack has one uplink, as fast as a NIC.
RACKS = "fabric: {use: zone, set: {racks: 2, ctsw: 1, hosts_per_rack: 4}}\n"
PAIR = "workload: {collective: all-reduce, size: 8M, qps: 4, chunk: 1M}\n"


def simulated(tmp_path: Path, text: str, seed: int | None = None) -> ClusterResult:
    file = tmp_path / "cluster.yml"
    file.write_text(text)
    return ClusterSimulation(load_cluster(file, "cluster.yml", seed), Silent()).run()


def column(result: ClusterResult, name: str) -> list[float]:
    values: list[float] = result.jobs.column(name)[result.jobs.in_order()].tolist()
    return values


def bits_on_nics(result: ClusterResult) -> tuple[float, float]:
    """On all links from NICs, and on all links to NICs."""
    k = result.cluster.fabric.policy.k
    bits = result.use * result.wires.rate * k * result.seconds
    down = np.array([result.wires.id_of[end.first_hop] for end in result.cluster.slots])
    return float(bits[result.wires.other[down]].sum()), float(bits[down].sum())


def alone(result: ClusterResult) -> float:
    """Bits of one rank in one iteration, of the first job; all ranks of these jobs send as many."""
    cluster = result.cluster
    kind, ranks = cluster.sizes[0]
    return traffic_at(cluster.fabric, kind.job, cluster.slots[:ranks]).bytes * 8 / ranks


@pytest.mark.parametrize(
    "work",
    [
        "collective: all-reduce, size: 1M",
        "collective: all-reduce, size: 512M, qps: 2",
        "matrix: all-to-all, size: 256K",
        "steps: [{compute: 1ms}, {collective: all-reduce, size: 1M}]",
        "collective: all-gather, size: 4M, qps: 16",
        "collective: all-reduce, algorithm: tree, size: 1M",
    ],
)
def test_one_job_alone_takes_the_time_of_predict(tmp_path: Path, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MOST_PACKETS", 0)  # a cluster has flows, no packets
    text = f"fabric: zone\nworkload: {{{work}}}\njobs: [{{name: a, ranks: 16, iterations: 10}}]\n"
    result = simulated(tmp_path, text)
    (tmp_path / "work.yml").write_text("{" + work + "}")
    workload = load_workload(str(tmp_path / "work.yml")).workload
    predicted = time_forecast(result.cluster.fabric, workload, Ask(), Silent()).jobs[0].sizes[0]
    assert column(result, "ran_s") == pytest.approx([10 * predicted.seconds / 8000], rel=1e-12)
    assert column(result, "slowdown") == pytest.approx([1], rel=1e-12)


def test_bits_of_jobs_are_the_bits_of_their_nics(tmp_path: Path) -> None:
    jobs = "jobs: [{name: a, ranks: 6, iterations: 700}, {name: b, ranks: 9, arrives: 10ms, iterations: 333}]\n"
    result = simulated(tmp_path, "fabric: zone\nplacement: random\n" + PAIR + jobs)
    kind = result.cluster.sizes[0][0]
    slots = result.cluster.slots
    sent = sum(traffic_at(result.cluster.fabric, kind.job, slots[:n]).bytes * 8 * m for n, m in ((6, 700), (9, 333)))
    assert result.sent == pytest.approx(sent, rel=1e-12)
    assert bits_on_nics(result) == pytest.approx((sent, sent), rel=1e-11)


def test_jobs_that_share_an_uplink_take_what_arithmetic_says(tmp_path: Path) -> None:
    jobs = "jobs: [{name: a, ranks: 2, iterations: 32000}, {name: b, ranks: 2, arrives: 5s, iterations: 32000}]\n"
    text = RACKS + PAIR + "placement: spread\ncompute: 100us\n" + jobs
    result = simulated(tmp_path, text)
    rate = result.wires.rate[0] * result.cluster.fabric.policy.k
    only = simulated(
        tmp_path, RACKS + PAIR + "placement: spread\ncompute: 100us\njobs: [{name: a, ranks: 2, iterations: 1}]"
    )
    each = column(only, "ran_s")[0]  # time alone, computation included
    need = alone(result) / each / rate  # share of the uplink that one job needs
    assert 0.5 < need < 1
    slow = 2 * need  # how much longer an iteration takes beside the other job
    first = 5 + (32000 - 5 / each) * each * slow  # a, until its end; then b is alone
    second = first + (32000 - (first - 5) / (each * slow)) * each
    assert column(result, "ended_s") == pytest.approx([first, second], rel=1e-9)
    assert column(result, "slowdown") == pytest.approx([first / 32000 / each, (second - 5) / 32000 / each], rel=1e-9)
    ports = [at for at, name in enumerate(result.wires.ports) if name.startswith("ctsw1:")]
    carried = 64000 * alone(result) / (rate * second)
    assert result.use[ports] == pytest.approx([carried] * len(ports), rel=1e-9)


def test_packed_jobs_do_not_slow_each_other_where_spread_ones_do(tmp_path: Path) -> None:
    jobs = "jobs: [{name: a, ranks: 4, iterations: 100}, {name: b, ranks: 4, iterations: 100}]\n"
    packed, spread = (simulated(tmp_path, f"{RACKS}{PAIR}placement: {word}\n{jobs}") for word in ("packed", "spread"))
    assert column(packed, "slowdown") == pytest.approx([1, 1], rel=1e-12)
    assert min(column(spread, "slowdown")) > 1.9
    assert packed.seconds < spread.seconds / 1.9
    assert (packed.spread, spread.spread) == (0, 0.5)
    assert packed.nic_use == spread.nic_use == 1


def test_jobs_wait_in_order_and_backfill_lets_smaller_ones_pass(tmp_path: Path) -> None:
    jobs = (
        "jobs: [{name: a, ranks: 6, lasts: 100s}, {name: b, ranks: 8, lasts: 10s, arrives: 1s},"
        " {name: c, ranks: 2, lasts: 50s, arrives: 2s}]\n"
    )
    ordered = simulated(tmp_path, RACKS + PAIR + jobs)
    assert column(ordered, "started_s") == pytest.approx([0, 100, 110])
    assert ordered.stranded == pytest.approx((99 * 2 / 8) / (99 + 10))  # 2 of 8 free for 99 s; none for 10 s more
    passed = simulated(tmp_path, RACKS + PAIR + "backfill: true\n" + jobs)
    slow = column(passed, "slowdown")[2]
    assert column(passed, "started_s") == pytest.approx([0, 100, 2])
    assert column(passed, "ran_s")[2] == pytest.approx(50 * slow)


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_failure_ends_a_job_which_begins_again_at_its_checkpoint(tmp_path: Path, ranks: int) -> None:
    jobs = f"checkpoint: 100\njobs: [{{name: a, ranks: {ranks}, iterations: 20000}}]\n"
    each = simulated(tmp_path, RACKS + PAIR + jobs).seconds / 20000
    result = simulated(tmp_path, RACKS + PAIR + jobs + "failures: [{at: 5s, for: 7s, down: host2}]\n")
    done = 5 / each
    kept = done // 100 * 100
    assert 0 < kept < done < 20000
    begin = 5 if ranks == 4 else 12  # the other rack is free, or the host has to be repaired
    assert column(result, "ended_s") == pytest.approx([begin + (20000 - kept) * each], rel=1e-9)
    assert column(result, "waited_s") == pytest.approx([begin - 5])
    assert column(result, "lost") == pytest.approx([done - kept], rel=1e-9)
    assert [each.what for each in result.events] == ["host2 down", "host2 is repaired"][: 1 if ranks == 4 else 2]
    nothing = simulated(tmp_path, RACKS + PAIR + jobs[16:] + "failures: [{at: 5s, for: 7s, down: host2}]\n")
    assert column(nothing, "ended_s") == pytest.approx([begin + 20000 * each], rel=1e-9)  # without a checkpoint


def test_after_a_link_fails_paths_are_routed_again_and_without_one_a_job_stands(tmp_path: Path) -> None:
    jobs = "placement: spread\njobs: [{name: a, ranks: 2, iterations: 200000}]\n"
    whole = simulated(tmp_path, RACKS + PAIR + jobs).seconds
    down = "failures: [{at: 5s, for: 7s, down: 'ctsw1:eth1'}]\n"
    assert simulated(tmp_path, RACKS + PAIR + jobs + down).seconds == pytest.approx(whole + 7, rel=1e-9)
    two = RACKS.replace("ctsw: 1", "ctsw: 2")
    result = simulated(tmp_path, two + PAIR + jobs + down.replace(", for: 7s", ""))
    at = {name: result.use[result.wires.id_of[name]] for name in ("rtsw1:eth1", "rtsw1:eth2")}
    healthy = simulated(tmp_path, two + PAIR + jobs)
    before = {name: healthy.use[healthy.wires.id_of[name]] for name in at}
    assert at["rtsw1:eth1"] < before["rtsw1:eth1"] and at["rtsw1:eth2"] > before["rtsw1:eth2"]
    sent = 200000 * 2 * alone(result)
    assert (result.sent, *bits_on_nics(result)) == pytest.approx((sent, sent, sent), rel=1e-11)
    assert result.seconds >= healthy.seconds and column(result, "state") == [0]


def test_what_has_not_ended_is_named(tmp_path: Path) -> None:
    jobs = (
        "jobs: [{name: a, ranks: 8, lasts: 1h}, {name: b, ranks: 8, lasts: 1s},"
        " {name: c, ranks: 2, arrives: 2h, lasts: 1s}]\n"
    )
    result = simulated(tmp_path, RACKS + PAIR + "duration: 60s\n" + jobs)
    assert [each["state"] for each in clustertext.to_json(result)["jobs"]] == ["running", "waiting", "not arrived"]
    assert column(result, "waited_s") == [0, 60, 0]
    assert "1 running, 1 waiting, 1 not arrived" in clustertext.render(result)
    forever = simulated(tmp_path, RACKS + PAIR + "backfill: true\n" + jobs + "failures: [{at: 1s, down: rtsw1}]\n")
    assert column(forever, "state") == [2, 2, 0]  # without a duration it ends when nothing more can happen


def test_a_job_that_starts_while_a_link_is_down_has_the_work_and_the_slowdown_of_a_whole_fabric(tmp_path: Path) -> None:
    jobs = "placement: spread\ncheckpoint: 10\njobs: [{name: a, ranks: 2, lasts: 9s, arrives: 1s}]\n"
    whole = column(simulated(tmp_path, RACKS + PAIR + jobs), "iterations")[0]
    down = "failures: [{at: 0s, for: 6s, down: 'ctsw1:eth1'}, {at: 8s, for: 1s, down: host1}]\n"
    result = simulated(tmp_path, RACKS + PAIR + jobs + down)  # no path until 6 s; from 6 to 8 s; the rest on host2
    kept = 2 * whole / 9 // 10 * 10
    assert column(result, "iterations") == pytest.approx([whole], rel=1e-9)
    assert column(result, "ended_s") == pytest.approx([8 + (1 - kept / whole) * 9], rel=1e-9)
    ran, done = column(result, "ran_s")[0], column(result, "lost")[0] + whole
    assert column(result, "slowdown") == pytest.approx([ran / (done / whole * 9)], rel=1e-9)


def test_a_job_that_ends_with_the_duration_has_ended(tmp_path: Path) -> None:
    for number in range(1, 20):
        text = f"duration: {number / 7:.9f}\njobs: [{{name: a, ranks: 4, lasts: {number / 7:.9f}}}]\n"
        result = simulated(tmp_path, RACKS + PAIR + text)
        assert column(result, "state") == [0] and result.curve.points[-1][1:] == (0, 0)


def test_pictures_end_with_the_last_state_when_points_are_left_out() -> None:
    curve = UseCurve()
    for at in range(9001):
        curve.add(float(at), at % 7 + 1, 0)
    curve.add(9001.0, 0, 0, last=True)
    assert curve.points[-1] == (9001.0, 0, 0) and len(curve.points) <= 4096


DRAWN = """
placement: random
duration: 3h
checkpoint: 10
generate: {count: 40, every: exponential 200s, ranks: [2, 3, 5], iterations: uniform 8000 7200000, seed: 3}
mtbf: {link: 9h, host: 20h, nic: 50h, switch: 99h, repair: exponential 5min, seed: 3}
"""


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two, other = (simulated(tmp_path, RACKS + PAIR + DRAWN, seed) for seed in (None, None, 4))
    assert one.events and sum(column(one, "restarts")) > 0
    for made in (clustertext.to_csv, clustertext.to_perfetto, lambda result: draw("svg", result)):
        assert made(one) == made(two) != made(other)
    assert bits_on_nics(one) == pytest.approx((one.sent, one.sent), rel=1e-11)


def test_what_is_written_has_every_job(tmp_path: Path) -> None:
    result = simulated(tmp_path, RACKS + PAIR + DRAWN)
    lines = clustertext.to_csv(result).decode().splitlines()
    assert len(lines) == 41 and lines[0].startswith("name,ranks,state,arrived_s")
    first = clustertext.to_json(result)["jobs"][0]
    assert lines[1].split(",")[:3] == ["g1", str(first["ranks"]), first["state"]]
    assert float(lines[1].split(",")[-1]) == first["completion_s"]
    assert max(map(len, clustertext.render(result).splitlines())) <= 100
    whole = json.loads(clustertext.to_perfetto(result))
    trace, more = whole["traceEvents"], replace(result, more_spans=True)
    left = json.loads(clustertext.to_perfetto(more))["otherData"]["left out"]
    assert "left out" not in whole["otherData"] and f"after the first {len(result.spans)}" in left
    runs = [each for each in trace if each.get("name") in ("runs", "ends by a failure")]
    ran = sum(each["dur"] * each["args"]["ranks"] for each in runs) / 1e6
    assert ran == pytest.approx(result.nic_use * 8 * result.seconds, rel=1e-6)
    assert b"cluster cluster: jobs by rack" in draw("svg", result)


def test_a_trace_is_read_line_by_line(tmp_path: Path) -> None:
    lines = [f"{number},{2 + number % 3},{50 + number % 7}\n" for number in range(60)]
    (tmp_path / "jobs.csv").write_text("arrival_s,ranks,duration_s\n" + "".join(lines))
    file = tmp_path / "cluster.yml"
    file.write_text(RACKS + PAIR + "trace: jobs.csv\n")
    result = ClusterSimulation(load_cluster(file, str(file)), Silent()).run()
    assert column(result, "arrived_s") == list(range(60)) and column(result, "state") == [0] * 60
    assert column(result, "ran_s") == pytest.approx(
        [(50 + number % 7) * slow for number, slow in enumerate(column(result, "slowdown"))], rel=1e-9
    )
    table = '\ufeff"name",arrival_s,ranks,duration_s\r\n"a, b",0,"4",5\r\n'  # as spreadsheets write it
    (tmp_path / "jobs.csv").write_text(table, newline="")
    again = ClusterSimulation(load_cluster(file, str(file)), Silent()).run()
    assert (again.jobs.names, column(again, "ranks")) == (["a, b"], [4])
    many = tmp_path / "many.csv"
    with many.open("w") as out:
        out.write("arrival_s,ranks,iterations\n")
        out.writelines(f"{number},{2 + number % 3},5\n" for number in range(50_000))
    kind = result.cluster.kinds["trace"]
    tracemalloc.start()
    try:
        assert _Trace(str(many), kind, 8).checked(1_000_000) == (50_000, [2, 3, 4])
        assert tracemalloc.get_traced_memory()[1] < 200_000  # of a file of 600 KB
    finally:
        tracemalloc.stop()


def test_a_day_that_is_shipped_is_read() -> None:
    from heddle_plugins.time.clusterfile import clusters_shipped, find_cluster

    cluster = load_cluster(*find_cluster("day"))
    assert (len(cluster.slots), cluster.jobs, len(list(cluster.arrivals()))) == (4032, 200, 200)
    assert clusters_shipped() == ["day", "shared-uplinks"]
    result = ClusterSimulation(load_cluster(*find_cluster("shared-uplinks")), Silent()).run()
    assert min(column(result, "slowdown")) > 1.05 and column(result, "restarts") == [1, 0]


def test_a_job_that_needs_more_memory_than_there_is_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "free_bytes", lambda: 4000)
    with pytest.raises(InputError, match=r"makes 240 connections of 16 ranks, which need .* are free"):
        simulated(tmp_path, "fabric: zone\njobs: [{name: a, ranks: 16, iterations: 5, matrix: all-to-all}]\n")


def test_whole_numbers_are_drawn_with_equal_chances(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(RACKS + PAIR + "generate: {count: 3000, every: 1h, ranks: uniform 2 5, lasts: 1s}\n")
    counts = np.bincount([each.ranks for each in load_cluster(file, "cluster.yml").arrivals()])[2:]
    assert counts.sum() == 3000 and abs(counts / 3000 - 0.25).max() < 0.03


def test_a_scheduler_of_a_plugin_places_jobs_on_free_nics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = "placement: last\njobs: [{name: a, ranks: 3, iterations: 5}]\n"
    monkeypatch.setitem(PLACERS.core, "last", lambda ground, free, ranks, random: free[-ranks:])
    assert simulated(tmp_path, RACKS + PAIR + jobs).spans[0].slots.tolist() == [5, 6, 7]
    for wrong in (lambda ground, free, ranks, random: free[:1], lambda ground, free, ranks, random: [0, 0, 1]):
        monkeypatch.setitem(PLACERS.core, "last", wrong)
        with pytest.raises(InputError, match="placement: last did not return 3 of the 8 free NICs, each once"):
            simulated(tmp_path, RACKS + PAIR + jobs)


def test_files_that_are_written_are_different_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = RACKS + PAIR + "jobs: [{name: a, ranks: 4, lasts: 1s}]\n"
    (tmp_path / "mine.yml").write_text(text)
    for words, said in (
        ("--csv mine.yml", "--csv mine.yml is the file of mine.yml, too"),
        ("--csv a.svg --svg ./a.svg", "--svg ./a.svg is the file of --csv, too"),
    ):
        assert main(vars(tasks), ["inv", "simulate", "mine.yml", *words.split()]) == 2
        assert said in capsys.readouterr().err
    assert (tmp_path / "mine.yml").read_text() == text and [each.name for each in tmp_path.iterdir()] == ["mine.yml"]


@pytest.mark.parametrize("case", sorted(ERRORS.glob("*.yml")), ids=lambda path: path.stem)
def test_a_wrong_file_is_explained_in_exactly_these_words(
    case: Path, regen_goldens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ERRORS)
    with pytest.raises(InputError) as caught:
        ClusterSimulation(load_cluster(Path(case.name), case.name), Silent()).run()
    text = case.with_suffix(".txt")
    if regen_goldens:
        text.write_text(f"{caught.value}\n")
    assert f"{caught.value}\n" == text.read_text()
