"""Whole collectives between ranks over a lossy channel: sums are right, or seen to be wrong; a run's barriers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.endpoints import crew
from heddle.endpoints.connections import QpConnection, address_of, announced_by, part_sizes
from heddle.endpoints.elements import Elements
from heddle.endpoints.nic.qpend import Message
from heddle.endpoints.ranks import Rank
from heddle.endpoints.transports import find_transport
from heddle.endpoints.transports.rcstate import RcParams, Requester, Responder, WritePacket
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.columns import Cutting, of_pattern
from heddle.traffic.collectives import find_pattern, patterns
from heddle.traffic.options import QpMode, RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.schedule import Key, build_schedule
from heddle.traffic.workload import Job
from heddle.wire.layout import ACK_NO_LIMIT
from tests import lineworker
from tests.answers import Answers
from tests.machine import patience
from tests.unit.test_rc import packets_of

PARAMS = RcParams(mtu=256, window=8, ack_every=2, timeout_s=1.0, retries=50)


class Wire:
    """One QP: requester, responder, and what is lost between them."""

    def __init__(self, src: int, loss: float, dice: random.Random) -> None:
        self.requester = Requester(PARAMS, dice.randrange(1 << 24))
        self.responder: Responder
        self.src, self.loss, self.dice = src, loss, dice

    def post(self, message: Message) -> None:
        self.requester.post(message)

    def turn(self, now: float) -> None:
        self.requester.expire(now)
        for packet, payload in packets_of(self.requester, now, self.dice.randint(1, 8)):
            if self.dice.random() >= self.loss:
                self.responder.receive(packet, payload, now)
        self.responder.expire(now)
        answer = self.responder.reply or ((self.responder.acked, ACK_NO_LIMIT) if self.responder.ack_due else None)
        if answer:
            self.responder.answered()
        if answer and self.dice.random() >= self.loss:
            self.requester.acknowledge(*answer, now)


def run_all(
    options: RunOptions,
    n: int,
    loss: float = 0.0,
    seed: int = 1,
    kinds: Mapping[int, type[Rank]] = MappingProxyType({}),
) -> list[Rank]:
    """All ranks to their end; every rank's array is checked after every size, as a worker does it.

    kinds: ranks that are not as they should be.
    """
    dice = random.Random(seed)
    pattern = options.pattern
    wires = {(s, d): [Wire(s, loss, dice) for _ in range(options.qps)] for s, d in pattern.peers(n).tolist()}
    keys = {r: 1000 + r for r in range(n)}
    elements = Elements.of(pattern, n)
    totals = {size: elements.total(size // pattern.element_bytes) for size in options.sizes if pattern.redop != "none"}

    def links(r: int) -> dict[int, QpConnection]:
        return {d: QpConnection(qps, options.qp_mode) for (s, d), qps in wires.items() if s == r}

    ranks = [
        kinds.get(r, Rank)(options, pattern, n, r, keys[r], links(r), keys, totals, clock=lambda: 0.0)
        for r in range(n)
    ]  # fmt: skip
    for (_, d), qps in wires.items():
        for wire in qps:
            wire.responder = Responder(PARAMS, wire.requester.una, ranks[d])
    flat = [wire for qps in wires.values() for wire in qps]
    for rank in ranks:
        rank.next_size()
        rank.begin()
    for turn in range(200_000):
        for rank in ranks:
            if rank.size_done and not rank.finished:
                rank.check()
                rank.next_size()
                if not rank.finished:
                    rank.begin()
        if all(r.finished for r in ranks) and all(w.requester.idle for w in flat):
            return ranks
        dice.shuffle(flat)
        for wire in flat:
            wire.turn(turn * 0.1)
            assert not wire.requester.error
    raise AssertionError("never came to an end")


COLLECTIVES = pytest.mark.parametrize("collective", list(dict.fromkeys(collective for collective, _ in patterns())))


@pytest.mark.parametrize("n", [2, 5, 8])
@COLLECTIVES
@pytest.mark.parametrize(("qps", "mode"), [(1, "split"), (3, "split"), (3, "round-robin")])
def test_every_rank_ends_with_its_result(collective: str, n: int, qps: int, mode: QpMode) -> None:
    pattern = find_pattern(collective)
    sizes = tuple(dict.fromkeys(4 * pattern.whole(n, size // 4) or 16 * n for size in (4, 8, 32, 100, 4096, 20_000)))
    options = RunOptions(collective, sizes=sizes, iters=2, warmup=1, qps=qps, qp_mode=mode, chunk=512)
    for rank in run_all(options, n):
        assert [(r.size, r.wrong) for r in rank.results] == [(size, 0) for size in sizes]


def test_with_round_robin_each_qp_has_the_predicted_messages_whatever_arrives_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of two long messages and a short one: short ones run ahead of long ones on other QPs."""
    posted: dict[int, int] = {}  # by the QP's place, in the order of connections
    places: dict[int, int] = {}

    def post(self: Wire, message: Message) -> None:
        place = places[id(self)]
        posted[place] = posted.get(place, 0) + len(message.payload)
        self.requester.post(message)

    def made(self: Wire, *given: Any, whole: Callable[..., None] = Wire.__init__) -> None:
        whole(self, *given)
        places[id(self)] = len(places)

    monkeypatch.setattr(Wire, "post", post)
    monkeypatch.setattr(Wire, "__init__", made)
    # 8 steps of 3 messages an iteration, so turns begin at the first QP again.
    ranks, count, qps, iters = 5, 5 * 300, 3, 3
    options = RunOptions(sizes=(4 * count,), iters=iters, warmup=0, qps=qps, qp_mode="round-robin", chunk=512)
    cut = Cutting(256, 0, qps, "round-robin", 512)
    pairs, kind, volume = of_pattern(find_pattern("all-reduce", "ring"), ranks, count, cut)
    for seed in range(3):
        posted.clear()
        places.clear()
        run_all(options, ranks, loss=0.1, seed=seed)
        rows = np.array([posted[place] for place in range(len(pairs) * qps)]).reshape(-1, qps)
        assert (rows == iters * volume.payload[kind]).all()


@COLLECTIVES
@pytest.mark.parametrize("seed", range(3))
def test_results_are_right_over_a_lossy_channel(collective: str, seed: int) -> None:
    options = RunOptions(collective, sizes=(3000, 9000), iters=3, warmup=0, qps=2, chunk=512)
    for rank in run_all(options, 4, loss=0.1, seed=seed):
        assert [r.wrong for r in rank.results] == [0, 0]


@COLLECTIVES
def test_a_corrupted_message_shows_as_wrong_elements(monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    original = Responder.receive
    hits = SimpleNamespace(left=1)

    def corrupt(self: Responder, packet: WritePacket, payload: memoryview, now: float) -> None:
        if hits.left and len(payload) == 256:
            hits.left -= 1
            payload = memoryview(np.float32(np.frombuffer(payload, np.float32) + 1).tobytes())
        original(self, packet, payload, now)

    monkeypatch.setattr(Responder, "receive", corrupt)
    ranks = run_all(RunOptions(collective, sizes=(4096,), iters=1, warmup=0, chunk=512), 4)
    assert sum(r.results[0].wrong for r in ranks) >= 64


class SkipsOnce(Rank):
    """In one iteration it takes one message in without using it: the bytes of its array stay as they were."""

    epoch = 0

    def _apply(self, key: Key) -> None:
        receives = self._schedule(self._size_index).receives
        if self._epoch == self.epoch and key == min(receives):
            receive = receives[key]
            own = self._arrays.bytes_of(receive.buffer, self._epoch)[receive.lo : receive.hi]
            self._staged[self._epoch, key].data[:] = 0 if receive.reduce == "sum" else own
        super()._apply(key)


@pytest.mark.parametrize(("warmup", "epoch"), [(1, 0), (0, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize(
    ("collective", "given"),
    [
        ("all-to-all", {}), ("all-gather", {}), ("broadcast", {"dtype": "bfloat16"}), ("reduce-scatter", {}),
        *(("all-reduce", {"dtype": dtype, "operation": operation})
          for dtype in ("float32", "bfloat16", "float16", "int32") for operation in ("sum", "avg", "max", "min")),
    ],
)  # fmt: skip
def test_a_message_that_is_skipped_in_any_iteration_makes_wrong_elements(
    collective: str, given: dict[str, Any], warmup: int, epoch: int
) -> None:
    class Skips(SkipsOnce):
        pass

    Skips.epoch = epoch
    parameters = tuple(given.items())
    options = RunOptions(
        collective, sizes=(4096, 8192), iters=4 - warmup, warmup=warmup, chunk=512, parameters=parameters
    )
    results = [rank.results for rank in run_all(options, 4, kinds={2: Skips})]
    assert sum(of[0].wrong for of in results) > 0
    assert [of[1].wrong for of in results] == [0] * 4  # the size after it was right


def test_a_schedule_waits_for_what_it_forwards_and_parts_are_those_of_nccl() -> None:
    schedule = build_schedule(find_pattern("all-reduce", "ring"), 4, 1, 4000, 1024)
    first = [s for s in schedule.sends if s.key[0] == 0]
    assert all(not s.needs for s in first)
    for send in schedule.sends:
        if send.key[0]:
            step, index = send.key
            # In the all-gather: what came last, and the sum of this rank that it replaces.
            assert set(send.needs) == {(step - 1, index)} | ({(step - 5, index)} if step > 4 else set())
    assert sum(s.hi - s.lo for s in schedule.sends) == 4 * 2 * 3 * 1000
    # Parts of a split message are those of nccl.
    assert part_sizes(65536, 16) == [(i * 4096, 4096) for i in range(16)]
    assert part_sizes(1000, 4) == [(0, 256), (256, 256), (512, 256), (768, 232)]
    assert part_sizes(100, 16) == [(0, 100)]
    for length in (1, 127, 128, 129, 5000, 131072):
        parts = part_sizes(length, 7)
        assert parts[0][0] == 0 and sum(size for _, size in parts) == length
        assert all(a + size == b for (a, size), (b, _) in pairwise(parts))


def test_the_clock_starts_when_a_rank_begins_not_when_its_arrays_are_made() -> None:
    now = [5.0]
    posted: list[Message] = []
    link = SimpleNamespace(post=posted.append)
    options = RunOptions(sizes=(8,), iters=1, warmup=0)
    totals = {8: np.zeros(2, np.float32)}
    rank = Rank(
        options, options.pattern, 2, 0, 7, {1: QpConnection([link], "split")}, {1: 8}, totals, clock=lambda: now[0]
    )
    rank.next_size()
    assert posted == []
    now[0] = 9.0
    rank.begin()
    assert len(posted) == 1
    for step, first in ((0, 4), (1, 0)):  # what rank 1 would write: elements 1, then 0
        now[0] += 1.0
        target = rank.resolve(address_of(0, step, first), 7, 4)
        assert target is not None
        rank.arrived(announced_by(0, (step, 0)))
    assert rank.size_done
    rank.check()
    assert rank.results[0].seconds == 2.0


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
    with crew.crews_of([(Job("", plan.options), plan, transport)], {}, [workers]) as running:
        heard: list[tuple[int, int, list[int]]] = []
        (reports,) = running.run(
            Silent(), on_size=lambda _, size, results: heard.append((time.monotonic_ns(), SIZES[size], [*results]))
        )
        phases = running.crews[0].phases
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
    with crew.crews_of([(Job("", plan.options), plan, find_transport("rc").of(plan))], {}, [4]) as running:
        assert [len(each) for each in running.run(Silent())] == [4]


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


def test_the_end_of_a_worker_is_described(answers: Answers) -> None:
    answers(lambda code: str(crew._ended("w", code)))
