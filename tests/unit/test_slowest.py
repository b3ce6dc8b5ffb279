"""What held a run back: from constructed times of messages and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from heddle.runs.parts.slowest import Flows, Slowest
from heddle.runs.series import COLUMNS, Series
from heddle.runs.timeline import Iterations, Messages, Timeline, covered, read_timeline, stations
from heddle.traffic.flow import Flow
from tests.answers import Answers

RANKS, ITERATIONS = 4, 3
NICS = [f"host{rank + 1}:eth1" for rank in range(RANKS)]
Row = tuple[int, int, float, float, float]  # src, dst, posted, arrived, used; all within an iteration of 1 s


def timeline(rows: Sequence[Row], jitter: float = 0.001) -> Timeline:
    """Three iterations of one second with these messages, whose arrivals differ a little in each."""
    spans = [(rank, 1 << 20, n, float(n), n + 1.0) for n in range(ITERATIONS) for rank in range(RANKS)]
    sent = [
        (src, dst, 0, n, 4096, n + posted, n + arrived + n * jitter, n + used + n * jitter)
        for n in range(ITERATIONS)
        for src, dst, posted, arrived, used in rows
    ]
    return Timeline(
        Iterations(*map(np.array, zip(*spans, strict=True))), Messages(*map(np.array, zip(*sent, strict=True)))
    )


def ring(slow: Mapping[int, float] | None = None, hold: Mapping[int, float] | None = None) -> list[Row]:
    """Each rank sends to the next: 0.4 s under way, or as of `slow` by sender; used at once, or later by `hold`."""
    rows = []
    for rank in range(RANKS):
        arrived, to = (slow or {}).get(rank, 0.4), (rank + 1) % RANKS
        rows.append((rank, to, 0.0, arrived, arrived + 0.001 + (hold or {}).get(to, 0.0)))
    return rows


def queues(**depths: int) -> tuple[dict[str, int], Series, int]:
    """A queue at each port, which holds so many bytes all the time and sends 100 kB in each of 30 buckets."""
    columns = {name: np.zeros((len(depths), 30), np.int64) for name in COLUMNS}
    for row, depth in enumerate(depths.values()):
        columns["depth"][row], columns["peak"][row], columns["out_bytes"][row] = depth, 2 * depth, 100_000
        columns["paused_ns"][row, 0] = 14_000_000 if depth else 0
    ends = np.arange(1, 31) / 10
    series = Series(ends.astype(np.float64), np.arange(len(depths), dtype=np.int32), columns, 0.1, 30, 0.0)
    return {name.replace("_", ":"): row for row, name in enumerate(depths)}, series, 4096


def judged(
    rows: Sequence[Row], seen: tuple[dict[str, int], Series, int], path: Mapping[tuple[int, int], str], **more: bool
) -> Slowest:
    """The verdict; path: the ports of each connection, the same for all others: none."""
    flows: Flows = {}
    paths = {}
    for src, dst, *_ in rows:
        flow = Flow(
            f"host{src + 1}", f"host{dst + 1}", f"10.0.0.{src}", f"10.0.0.{dst}", 50000, 0x100 + src, "rtsw1:e1"
        )
        flows[src, dst] = [(flow,)]
        paths[flow.key] = path.get((src, dst), "").split()
    limited = more.get("limited", False)
    found = Slowest.of_evidence(timeline(rows), NICS, (flows, paths), seen, limited=limited)
    assert found is not None
    return found


def test_a_slow_qp_is_named_with_the_port_of_its_path_where_its_packets_waited(answers: Answers) -> None:
    path = {(2, 3): "rtsw1:eth1 ctsw1:eth2 rtsw2:eth3", (0, 1): "rtsw1:eth9"}
    found = judged(ring({2: 0.95}), queues(rtsw1_eth1=0, ctsw1_eth2=600_000, rtsw2_eth3=20_000, rtsw1_eth9=10**6), path)
    assert [(qp.rank, qp.to_rank, qp.qpns) for qp in found.qps] == [(2, 3, (0x102,))]
    assert (found.equal, found.stations, found.median) == (1, 4, 0.401)
    assert found.waits[0].port == "ctsw1:eth2"
    assert found.waits[0].wait_s == pytest.approx(600_000 * 0.1 / 100_000)  # Little: byte seconds over bytes
    late = judged(ring(hold={2: 0.5}), queues(rtsw1_eth1=0), {})
    assert [(rank.rank, rank.nic) for rank in late.ranks] == [(2, "host3:eth1")]
    limited = judged(ring({2: 0.95}), queues(rtsw1_eth1=0), {}, limited=True)
    assert not limited.cards()
    shown = {"a slow QP": found, "a rank that uses messages late": late, "limited by the machine": limited}
    answers({name: "\n".join(each.lines()) for name, each in shown.items()})


def test_two_qps_whose_hashes_collide_are_equal_and_have_one_port() -> None:
    path = {(0, 1): "rtsw1:eth1", (2, 3): "rtsw1:eth1", (1, 2): "rtsw1:eth2"}
    found = judged(ring({0: 0.9, 2: 0.92}), queues(rtsw1_eth1=500_000, rtsw1_eth2=400), path)
    assert [(qp.rank, qp.to_rank) for qp in found.qps] == [(2, 3), (0, 1)]
    assert found.lines()[0].endswith("QP 0x000102 (rank 2 to 3), QP 0x000100 (rank 0 to 1)")
    assert found.lines()[1].startswith("#slowest  : their packets waited longest at rtsw1:eth1 (500 ms on average")
    assert found.cards()[0][:2] == ("slowest", "2 are equal")


def test_an_incast_names_the_receiver_and_the_last_port_but_no_sender() -> None:
    rows = [(rank, 0, 0.0, 0.9, 0.901) for rank in range(1, RANKS)]
    found = judged(rows, queues(rtsw1_eth3=129_000), {(rank, 0): "rtsw1:eth3" for rank in range(1, RANKS)})
    first, second = found.lines()
    assert first.endswith("3 of 3 QPs are equal within noise, busy 90% of the time, "
                          "all to rank 0 (host1:eth1)")  # fmt: skip
    assert "waited longest at rtsw1:eth3 (" in second


def test_where_messages_are_split_connections_are_counted() -> None:
    found = replace(judged(ring(), queues(rtsw1_eth3=0), {}), split=True)
    assert "4 of 4 connections are equal within noise" in found.lines()[0] and not found.waits


def test_equal_ports_are_all_named() -> None:
    path = {(2, 3): "rtsw1:eth1 ctsw1:eth2"}
    found = judged(ring({2: 0.95}), queues(rtsw1_eth1=600_000, ctsw1_eth2=590_000), path)
    assert found.lines()[1].endswith("equal within noise: ctsw1:eth2")


def test_noise_between_iterations_makes_qps_equal() -> None:
    steady, noisy = ring({2: 0.6}), ring({2: 0.6})
    found = [stations(timeline(rows, jitter)) for rows, jitter in ((steady, 0.0), (noisy, 0.25))]
    assert [each[0].spread > 0.1 for each in found] == [False, True]


def test_overlapping_messages_count_once() -> None:
    assert covered(np.array([0.0, 0.1, 0.5]), np.array([0.3, 0.2, 0.6])) == pytest.approx(0.4)


def test_a_timeline_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = timeline(ring())
    written.write(tmp_path)
    again = read_timeline(tmp_path, RANKS)
    for table, other in ((written.iterations, again.iterations), (written.messages, again.messages)):
        for each in fields(table):
            np.testing.assert_allclose(getattr(table, each.name), getattr(other, each.name))
    assert again.to_json()[0] == {"rank": 0, "size": 1 << 20, "iteration_us": 1e6}
