"""Plans offline: the same queue pairs, number for number, as a run opens, and the same bytes, packet for packet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from heddle.base.families import Version
from heddle.base.problems import InputError
from heddle.endpoints.connections import part_sizes
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.offline.columns import Cutting, flows_of, of_lengths, of_pattern
from heddle.offline.loads import Traffic, traffic_of
from heddle.predict.forwarding import FlowArrays
from heddle.spec.shapes.clos import ClosSpec
from heddle.traffic.collectives import Pattern, patterns
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.matrixrows import NAMED
from heddle.traffic.options import QpMode, RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.readers import SourcePorts
from heddle.traffic.schedule import build_schedule
from heddle.wire.layout import IMM_BYTES, LAYOUTS, RETH_BYTES
from tests.answers import Answers

SPORTS = {
    "qpn": SourcePorts(),
    "own-qpn": SourcePorts("own-qpn"),
    "rxe": SourcePorts("rxe"),
    "fixed:5000": SourcePorts("fixed", (5000,)),
    "list:7,8,9": SourcePorts("list", (7, 8, 9)),
}


def fabric(**keys: object) -> Fabric:
    return build(ClosSpec.model_validate({"name": "small", "racks": 3, "ctsw": 2, "hosts_per_rack": 2, **keys}))


def plan_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def traffic(typed: str, **keys: object) -> Traffic:
    (only,) = traffic_of(fabric(**keys), load_workload(typed).workload)
    return only


@pytest.mark.parametrize(
    "collective", sorted({name for (name, _), pattern in patterns().items() if not pattern.served})
)
def test_a_plan_by_word_is_any_collective_or_the_matrix_of_that_name(collective: str) -> None:
    if collective in (*NAMED, "matrix"):
        (job,) = load_workload("all-reduce,collective=" + collective).workload.jobs
        assert job.options.collective == collective
    else:
        (job,) = load_workload(f"{collective},qps=2").workload.jobs
        assert job.options == run_options(collective=collective, qps=2)


@pytest.mark.parametrize(
    ("placement", "family"), [("block", "ipv4"), ("cyclic", "ipv6"), ("host4,host1,host6,host2", "ipv4")]
)
@pytest.mark.parametrize("sport", SPORTS)
@pytest.mark.parametrize(("qps", "entropy"), [(1, 1), (16, 1), (3, 5)])
def test_an_offline_plan_has_the_queue_pairs_of_a_run(
    placement: str, sport: str, qps: int, family: str, entropy: int, tmp_path: Path
) -> None:
    built = fabric(nics_per_host=2, family=family)
    typed = plan_file(
        tmp_path / "p.yml",
        f"collective: all-reduce\nqps: {qps}\nsport: {sport}\nplacement: {placement}\nranks: 7\n"
        f"transport: {'rc' if entropy == 1 else 'srd'}\nentropy: {entropy}\n",
    )
    (planned,) = traffic_of(built, load_workload(typed).workload)
    options = RunOptions(qps=qps, source_ports=SPORTS[sport], placement=placement, ranks=7)
    plan = build_plan(built, options, spread=entropy)
    assert tuple(planned.endpoints) == plan.endpoints
    wanted = FlowArrays.of(plan.flows())
    batches = planned.connections.batches(limit=2 * qps * entropy)
    parts = [flows_of(planned.connections, part, planned.address) for part in batches]
    assert len(parts) == 4  # of seven connections: as many batches as that takes
    for column in ("src", "dst", "sport", "dport", "qpn"):
        found = np.concatenate([getattr(part, column) for part in parts])
        assert (found == getattr(wanted, column)).all(), column
    ends = [(flow.src_rank, flow.dst_rank) for flow in plan.flows()[:: qps * entropy]]
    assert list(zip(planned.connections.src.tolist(), planned.connections.dst.tolist(), strict=True)) == ends


def dealt(sizes: Sequence[int], qps: int, qp_mode: str) -> list[list[int]]:
    """The payloads of messages of these sizes by queue pair, in order."""
    found: list[list[int]] = [[] for _ in range(qps)]
    for turn, size in enumerate(sizes):
        if qp_mode == "split":
            for index, (_, part) in enumerate(part_sizes(size, qps)):
                found[index].append(part)
        else:
            found[turn % qps].append(size)
    return found


def on_wire(messages: list[list[int]], cut: Cutting) -> list[int]:
    """Bytes by queue pair and source port, packet by packet. messages: payloads of each queue pair, in order."""
    wire = []
    for mine in messages:
        turn, ports = 0, [0] * cut.sports
        for payload in mine:
            for start in range(0, payload, cut.ib_mtu):
                size = min(cut.ib_mtu, payload - start)
                more = RETH_BYTES if cut.addressed or start == 0 else 0
                more += IMM_BYTES if start + size == payload else 0
                ports[turn % cut.sports] += cut.overhead + size + -size % 4 + more
                turn += 1
        wire += ports
    return wire


@pytest.mark.parametrize("pattern", [pytest.param(p, id="-".join(name)) for name, p in patterns().items()])
@pytest.mark.parametrize("qp_mode", ["split", "round-robin"])
@pytest.mark.parametrize(
    ("ranks", "count", "sports"),
    [
        (2, 1000, 0),
        (3, 3, 0),
        (4, 5_001, 0),
        (5, 100_003, 0),
        (5, 3, 1),
        (5, 5_000, 2),
        (5, 5_000, 256),
        (5, 200_005, 7),
    ],
)
def test_bytes_of_a_collective_are_those_of_its_messages(
    pattern: Pattern, qp_mode: QpMode, ranks: int, count: int, sports: int
) -> None:
    """sports: source ports over which each queue pair sprays, with an address in each packet; 0: it does not.

    The pair of each kind that is computed is exact; others of its kind may have their shorter messages elsewhere.
    """
    if pattern.unfit(ranks):
        pytest.skip("this pattern is not for so many ranks")
    qps, chunk = 3, 4096 * 3
    cut = Cutting(4096, LAYOUTS[4].overhead_bytes, qps, qp_mode, chunk, sports > 0, max(1, sports))
    pairs, kind, volume = of_pattern(pattern, ranks, count, cut)
    assert volume.wire.shape[1] == qps * cut.sports
    seen = set()
    for (src, dst), row in zip(pairs.tolist(), kind.tolist(), strict=True):
        sends = [send for send in build_schedule(pattern, ranks, src, count, chunk).sends if send.peer == dst]
        sizes = [send.hi - send.lo for send in sends]
        wanted = on_wire(dealt(sizes, qps, qp_mode), cut)
        assert volume.payload[row].sum() == sum(sizes)
        assert volume.wire[row].sum() == sum(wanted)
        assert row in seen or volume.wire[row].tolist() == wanted
        seen.add(row)


@pytest.mark.parametrize("qp_mode", ["split", "round-robin"])
@pytest.mark.parametrize(("version", "sports"), [(4, 0), (6, 3)])
def test_bytes_of_a_matrix_are_those_of_its_messages(qp_mode: QpMode, version: Version, sports: int) -> None:
    qps, chunk = 3, 8192
    cut = Cutting(1024, LAYOUTS[version].overhead_bytes, qps, qp_mode, chunk, sports > 0, max(1, sports))
    lengths = np.array([1, 130, 8192, 8193, 100_000, 24576])
    volume = of_lengths(lengths, cut)
    for length, wire, payload in zip(lengths.tolist(), volume.wire.tolist(), volume.payload.tolist(), strict=True):
        sizes = [min(chunk, length - start) for start in range(0, length, chunk)]
        assert wire == on_wire(dealt(sizes, qps, qp_mode), cut)
        assert sum(payload) == length


@pytest.mark.parametrize(
    ("collective", "sent"), [("all-reduce", 300_000), ("incast", 299_776), ("all-to-all", 299_776)]
)
def test_an_offline_size_is_rounded_as_in_a_run(collective: str, sent: int, tmp_path: Path) -> None:
    def payload(size: int) -> list[list[int]]:
        plan = plan_file(tmp_path / f"{size}.yml", f"collective: {collective}\nranks: 16\nsize: {size}\n")
        found: list[list[int]] = traffic(plan, hosts_per_rack=4, racks=4).volume.payload.tolist()
        return found

    assert payload(300_001) == payload(sent) != payload(sent - 256)


def test_a_prediction_names_the_bytes_that_are_not_exact(answers: Answers) -> None:
    answers(lambda plan: traffic(plan).volume.doubt)


def test_named_matrices_say_who_sends_to_whom() -> None:
    def pairs(typed: str) -> list[tuple[int, int]]:
        """Those with data; the others have credits, which are as many as pairs without an answer."""
        found = traffic(f"{typed},size=1K")
        ends = list(zip(found.connections.src.tolist(), found.connections.dst.tolist(), strict=True))
        sent = found.volume.payload[found.connections.kind].ravel().tolist()
        data = [pair for pair, size in zip(ends, sent, strict=True) if size == 1024]
        assert sorted([*data, *((b, a) for a, b in data if (b, a) not in data)]) == ends
        assert {*sent} <= {1024, CREDIT_BYTES}
        return data

    assert pairs("shift:2") == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)]
    assert pairs("incast:3") == [(1, 0), (2, 0), (3, 0)]
    assert pairs("all-to-all") == [(a, b) for a in range(6) for b in range(6) if a != b]
    drawn = pairs("permutation")
    assert sorted(b for _, b in drawn) == [a for a, _ in drawn] == list(range(6))
    assert all(a != b for a, b in drawn)
    assert pairs("permutation:7") != drawn
    assert pairs("permutation") == drawn


def test_a_matrix_file_adds_up_rows_and_may_be_the_plan_itself(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("dst, src, bytes\nhost2,0,1K\n\nhost2:eth1,host1,24\n4,host6:eth1,0\n0,host3,7\n")
    found = traffic(plan_file(tmp_path / "p.yml", "matrix: m.csv\n"))
    connections = found.connections
    assert (connections.src.tolist(), connections.dst.tolist()) == ([0, 0, 1, 2], [1, 2, 0, 0])
    sent = found.volume.payload[connections.kind].ravel().tolist()
    assert sent == [1048, CREDIT_BYTES, CREDIT_BYTES, 4], "whole elements, and a credit for each"
    # A matrix file may be the plan itself.
    (tmp_path / "m.csv").write_text("src,dst,bytes\n0,1,1K\n")
    connections = traffic(f"{tmp_path / 'm.csv'},qps=2").connections
    assert (len(connections), connections.flows) == (2, 4)


def test_files_that_a_plan_needs_come_along(tmp_path: Path) -> None:
    typed = plan_file(tmp_path / "p.yml", "matrix: sub/m.csv\n")
    assert files_of(typed) == [typed, str(tmp_path / "sub/m.csv")]
    assert files_of("ring,qps=4") == []
    assert files_of("m.csv,qps=4") == ["m.csv"]
    assert files_of(None) == []
    assert files_of(plan_file(tmp_path / "q.yml", "[broken")) == [str(tmp_path / "q.yml")]


def test_a_matrix_that_memory_cannot_hold_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.offline.loads.free_bytes", lambda: 1000)
    with pytest.raises(
        InputError, match=r"matrix: all-to-all makes 30 connections of 6 ranks, which need .* GB are free"
    ):
        traffic("all-to-all")
    with pytest.raises(InputError, match="makes 6 connections"):
        traffic("ring")
