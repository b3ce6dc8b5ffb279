"""What is asked of a run, what it plans, and how its results are printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.cli.demo import ACTS, OPTIONS, Act
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.host import capacity as machine
from heddle.runs.run import payload_bytes, plan_run, total_packets
from heddle.runs.runtable import SizeRow, figures
from heddle.switch.queues.classes import deepest_queue
from heddle.traffic.collectives import find_pattern, patterns
from heddle.traffic.collectives.pattern import chunk_range
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan, smallest_size
from heddle.traffic.readers import SourcePorts, parse_sizes, parse_source_ports
from heddle.traffic.sequence import Part, parts_text
from heddle.wire.layout import LAYOUTS
from heddle.wire.sport import sport_for_qps, sport_of_own_qpn, sport_of_rxe
from tests.answers import Answers
from tests.unit import run_samples as samples


@pytest.fixture(scope="module")
def demo() -> Fabric:
    return load_fabric("demo").fabric


def test_sizes_are_written_as_for_nccl_tests(answers: Answers) -> None:
    answers(parse_sizes)


def test_sizes_that_make_no_sense_are_refused(answers: Answers) -> None:
    answers(parse_sizes)


def test_placement_and_options_of_a_plan(demo: Fabric) -> None:
    plan = build_plan(demo, run_options(chunk="64K", window=3, local_ack_timeout=8))
    assert plan.options.chunk == 65536
    assert plan.window == 3
    assert plan.timeout_s == pytest.approx(4.096e-6 * 2**8)
    # Cyclic placement makes every ring hop leave its rack.
    plan = build_plan(demo, RunOptions(placement="cyclic"))
    racks = [demo.by_name[e.host].group("rack") for e in plan.endpoints]
    assert all(racks[flow.src_rank] != racks[flow.dst_rank] for flow in plan.flows())
    block = build_plan(demo, RunOptions())
    assert [e.host for e in block.endpoints] == [f"host{i}" for i in range(1, 17)]
    # A series of sizes is rounded size by size.
    plan = build_plan(demo, run_options(size="10:20:3"))
    assert plan.options.sizes == (8, 12, 16, 16)  # nccl-tests prints a row twice then, too


def test_source_ports() -> None:
    assert parse_source_ports("qpn") == SourcePorts("qpn")
    assert parse_source_ports("fixed") == SourcePorts("fixed", (49152,))
    assert parse_source_ports("list:1,2") == SourcePorts("list", (1, 2))
    assert parse_source_ports("own-qpn") == SourcePorts("own-qpn")
    assert parse_source_ports("rxe") == SourcePorts("rxe")
    for text in ("", "fixed:0x1", "list:", "list:1,,2", "random", "qpn:1", "own-qpn:1", "rxe:", "own_qpn"):
        with pytest.raises(ValueError, match=r"\w"):
            parse_source_ports(text)


@pytest.mark.parametrize(("mode", "rule"), [("own-qpn", sport_of_own_qpn), ("rxe", sport_of_rxe)])
def test_each_end_may_choose_its_source_port_by_its_own_number(
    demo: Fabric, mode: str, rule: Callable[[int], int]
) -> None:
    plan = build_plan(demo, RunOptions(qps=4, source_ports=parse_source_ports(mode)))
    assert all(qp.flow.sport == rule(qp.src_qpn) for qp in plan.qps)
    assert all(qp.answer_sport == rule(qp.flow.qpn) for qp in plan.qps)
    assert any(qp.flow.sport != qp.answer_sport for qp in plan.qps)


def test_a_plan_is_a_function_of_fabric_and_options(demo: Fabric) -> None:
    options = RunOptions(qps=4)
    plan = build_plan(demo, options)
    assert plan == build_plan(load_fabric("demo").fabric, options)
    assert len(plan.qps) == 16 * 4
    for qp in plan.qps:
        flow = qp.flow
        assert flow.dst_rank == (flow.src_rank + 1) % 16
        assert flow.sport == qp.answer_sport == sport_for_qps(qp.src_qpn, flow.qpn)
        src, dst = plan.endpoints[flow.src_rank], plan.endpoints[flow.dst_rank]
        assert (flow.src, flow.src_ip, flow.first_hop) == (src.host, src.ip, src.first_hop)
        assert (flow.dst, flow.dst_ip, flow.dport) == (dst.host, dst.ip, 4791)
        assert 2 <= qp.src_qpn < 1 << 24
        assert 0 <= qp.psn < 1 << 24
    by_nic = [(q.flow.src_rank, q.src_qpn) for q in plan.qps] + [(q.flow.dst_rank, q.flow.qpn) for q in plan.qps]
    assert len(set(by_nic)) == len(by_nic)


@pytest.mark.parametrize(
    ("collective", "ranks", "typed", "sent"),
    [
        ("all-reduce", 16, 300001, 300000),  # whole elements of float32
        ("all-reduce", 16, 7, 4),
        ("all-reduce", 3, 1 << 20, 1 << 20),
        ("all-to-all", 16, 1 << 20, 1 << 20),
        ("all-to-all", 16, 300001, 16 * 18736),  # 300001/4/16 = 4687 elements, and 4684 are whole 16 bytes
        ("all-to-all", 3, 1 << 20, 3 * 349520),
        ("incast", 5, 1000, 5 * 192),
        ("incast", 16, 511, 256),
    ],
)
def test_sizes_are_rounded_down_as_nccl_tests_does(
    demo: Fabric, collective: str, ranks: int, typed: int, sent: int
) -> None:
    plan = build_plan(demo, run_options(collective=collective, ranks=ranks, size=str(typed)))
    assert plan.options.sizes == (sent,)
    chunks = {chunk_range(rank, ranks, sent // 4) for rank in range(ranks)}
    if collective != "all-reduce":
        assert {(hi - lo) * 4 for lo, hi in chunks} == {sent // ranks}
        assert sent // ranks % 16 == 0


@pytest.mark.parametrize("ranks", [2, 3, 16, 1000])
def test_the_least_size_is_the_one_below_which_nothing_is_sent(ranks: int) -> None:
    for pattern in patterns().values():
        if pattern.whole(ranks, 0):
            continue  # its size is that of its cells
        least = smallest_size(pattern, ranks) // 4
        assert pattern.whole(ranks, least) == least
        assert pattern.whole(ranks, least - 1) == 0


def test_a_fabric_of_one_host_is_reported_without_flags_that_were_not_typed() -> None:
    lonely = load_fabric("tiny", name="one", overrides=["racks=1", "hosts_per_rack=1"]).fabric
    with pytest.raises(InputError, match=r"^one gives 1 of the two ranks"):
        build_plan(lonely, run_options())


def test_queueing_and_pauses_alone_never_look_like_loss(demo: Fabric) -> None:
    dropping = load_fabric("demo", name="demo", overrides=["queues.pfc.enabled=false"]).fabric
    deepest = deepest_queue(dropping, 3)
    assert build_plan(dropping, RunOptions()).timeout_s > 3 * 8 * deepest / dropping.slowest_bps
    assert build_plan(demo, RunOptions(timeout=14)).timeout_s == pytest.approx(0.0671, rel=1e-3)
    # Pauses alone never look like loss.
    detect = demo.policy.queues.pfc.watchdog.detect * 1e-9
    drain = 3 * 8 * deepest_queue(demo, 3) / demo.slowest_bps
    assert build_plan(demo, RunOptions()).timeout_s > detect + drain
    way_in = 8 * 15 * 64 * (4096 + 58) / demo.hosts[0].ports[0].rate_bps  # what 15 windows take on the link to rank 0
    assert build_plan(demo, RunOptions(collective="incast")).timeout_s > detect + drain + way_in


def test_bandwidths_by_the_formulas_of_nccl_tests() -> None:
    factor = find_pattern("all-reduce", "ring").busbw_factor(4)
    assert factor == 1.5
    row = figures(4_000_000, 2, factor, [1.0, 1.2, 1.0, 0.8], wrong=0)
    assert row.time_us == pytest.approx(500_000)
    assert row.algbw == pytest.approx(0.008)
    assert row.busbw == pytest.approx(0.012)
    # -a: rank 0, the mean, the fastest rank, the slowest; its iterations have that mean.
    seconds, each = [1.0, 1.2, 1.1, 0.8], [[0.4, 0.6], [0.6, 0.6], [0.5, 0.6], [0.3, 0.5]]
    found = [figures(4_000_000, 2, factor, seconds, 0, each, average) for average in range(4)]
    assert [round(one.time_us) for one in found] == [500_000, 512_500, 400_000, 600_000]
    assert [round(sum(one.iteration_us) / 2) for one in found] == [500_000, 512_500, 400_000, 600_000]
    assert {one.rank_us for one in found} == {tuple(tuple(1e6 * time for time in times) for times in each)}


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("all-to-all", "staggered"), ("incast", "direct"), ("gather", "direct"), ("scatter", "direct")],
)
def test_each_collective_has_its_algorithm_and_the_factor_of_nccl_tests(collective: str, algorithm: str) -> None:
    assert run_options(collective=collective).algorithm == RunOptions(collective=collective).algorithm == algorithm
    assert find_pattern(collective, algorithm).busbw_factor(16) == 15 / 16


def test_order_counts_queue_pairs_and_blames_no_path_where_one_of_them_used_several_ports() -> None:
    result = samples.result()
    assert "#order    : each QP uses one path: packets were lost, or routes changed" in result.table()
    trimmed = samples.having(result, queues=replace(samples.USE, trims=1)).table()
    assert "#order    : each QP uses one path: packets were trimmed (see ./inv queues)" in trimmed
    first = result.flows[0]
    other = replace(first.sent, flow=replace(first.sent.flow, sport=5), planned=False)
    more = replace(first, sent=other, counters=dict.fromkeys(first.counters, 0))
    text = replace(result, flows=(first, more, *result.flows[1:])).table()
    assert "#order    : 6 packets out of order on 2 of 2 QPs" in text and "each QP uses one path" not in text


def test_a_pattern_without_reduction_shows_none_in_the_table() -> None:
    rows = (SizeRow(64, 1.0, 1.0, 1.0, 0),)
    for collective, words in (("all-to-all", ["none", "-1"]), ("incast", ["none", "0"]), ("all-reduce", ["sum", "-1"])):
        text = replace(samples.result(), rows=rows, options=RunOptions(collective=collective)).table()
        (line,) = (line.split() for line in text.splitlines() if not line.startswith("#"))
        assert line[3:5] == words
        assert line[1] == ("16" if collective == "all-reduce" else "4"), "elements, or those of one of four chunks"


def test_a_row_says_how_many_ranks_a_maximum_of_few_elements_does_not_show() -> None:
    def below(options: RunOptions | None = None, **parameters: str) -> list[str]:
        head = samples.header(options or RunOptions(sizes=(8,), parameters=tuple(parameters.items())))
        return head.row(SizeRow(8, 10.0, 0.1, 0.2, 0)).split("\n")[1:]

    def said(many: int) -> list[str]:
        return [f"#unseen   : {many} of 4 ranks change no element of a part at this size: #wrong shows no such loss"]

    assert below(operation="max") == below(operation="min") == below(operation="max", dtype="bfloat16") == said(3)
    assert below() == below(operation="avg") == []
    for size, many in ((8, 2), (16, 2), (36, 0), (48, 0)):  # of a part of three, whatever the bytes of the row
        parts = parts_text([Part("", (3, 1, 2), find_pattern("all-reduce", operation="max"), size)])
        assert below(RunOptions("steps", "list", steps=parts)) == (said(many) if many else [])


def test_the_step_of_a_series_is_printed_as_nccl_tests_does(answers: Answers) -> None:
    def printed(size: str) -> str:
        text = replace(samples.result(), options=run_options(size=size)).table()
        return next(line for line in text.splitlines() if " step: " in line)

    answers(printed)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.title)
def test_the_demo_leaves_a_third_of_two_cores_to_spare(demo: Fabric, act: Act) -> None:
    """Two cores that were measured carry about 37,600 data packets/s with compiled NICs (`./inv doctor`)."""
    plan = build_plan(demo, replace(OPTIONS, qps=act.qps))
    overhead = LAYOUTS[plan.ip_version].overhead_bytes
    wanted = machine.wanted_pps([e.rate_bps for e in plan.endpoints], payload_bytes(plan), overhead)
    assert 20_000 < wanted < 37_600 * 2 // 3


def test_packets_of_a_run_count_in_the_budget_of_the_machine(demo: Fabric) -> None:
    packets = {c: total_packets(build_plan(demo, RunOptions(collective=c))) for c in ("incast", "all-to-all")}
    assert packets["all-to-all"] == pytest.approx(16 * packets["incast"], rel=0.01)
    each = (1 << 20) * 6 * 15 / 16 / 4096
    assert packets["incast"] == pytest.approx(each, rel=0.1)
    # Small packets count in the budget.
    plan = build_plan(demo, RunOptions(qps=128))
    assert payload_bytes(plan) == 512
    assert payload_bytes(build_plan(demo, RunOptions(qps=128, qp_mode="round-robin"))) == 4096
    assert payload_bytes(build_plan(demo, RunOptions(sizes=(4,)))) == 4
    # Memory is reckoned before it is taken.
    needed = machine.memory_bytes((1 << 20, 1 << 24), ranks=16, workers=2)
    assert 3 * 16 * (1 << 24) < needed < 4 * 16 * (1 << 24)
    assert machine.free_bytes() > 1 << 20


def test_free_memory_is_what_every_cgroup_has_left(tmp_path: Path) -> None:
    """Version 2 has `max` for no limit, and no limit at its root; in a container the root is its own cgroup."""

    def group(path: str, **files: object) -> None:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / path / f"memory.{name}").write_text(f"{text}\n")

    def rooms(text: str, mount: str) -> list[int]:
        (tmp_path / "cgroup").write_text(text)
        return list(machine.cgroup_rooms(tmp_path / "cgroup", tmp_path / mount))

    group("v2", stat="anon 1")
    group("v2/a", max=1000, current=700, stat="anon 5\ninactive_file 50\nactive_file 60")
    group("v2/a/b", max="max", current=300)
    group("v2/a/c", max=100, current=300)
    assert rooms("0::/a/b\n", "v2") == [350] and rooms("0::/a/c\n", "v2") == [0, 350] and rooms("0::/\n", "v2") == []
    group("v2/a/c", max=100, current=300)
    group("pod", max=500, current=100)
    assert rooms("0::/kubepods/x\n", "pod") == [400] and rooms("0::/../../x\n", "pod") == [400]
    stat = "inactive_file 1\ntotal_inactive_file 10"
    group("v1/memory", limit_in_bytes=1 << 62, usage_in_bytes=9, stat=stat)
    group("v1/memory/x", limit_in_bytes=200, usage_in_bytes=150, stat=stat)
    assert rooms("9:name=systemd:/\n4:cpu,memory:/x\n0::/y\n", "v1") == [60, (1 << 62) + 1]
    assert rooms("", "v1") == [] and list(machine.cgroup_rooms(tmp_path / "none", tmp_path)) == []


def test_processes_that_were_ended_for_memory_are_counted_in_a_container_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    def kills(*texts: str | None) -> object:
        files = tmp_path / "counts", tmp_path / "limit"
        for path, text in zip(files, texts, strict=True):
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        monkeypatch.setattr(machine, "_LIMITS", (files,))
        return machine.memory_kills()

    answers(kills)


def test_data_and_retransmissions_keep_clear_of_the_dscps_of_trimmed_packets() -> None:
    fabric = load_fabric("tiny", overrides=["queues.lossless=[]", "queues.trimming.queue=5"]).fabric
    plain = load_fabric("tiny").fabric
    data, again = RunOptions(dscp=12), RunOptions(transport="srd", own={"retransmission_dscp": 16})
    for options, typed in ((data, "--dscp 12"), (again, "--retransmission-dscp 16")):
        plan_run(plain, options)
        with pytest.raises(InputError, match=f"{typed}.*is the DSCP of trimmed packets"):
            plan_run(fabric, options)
