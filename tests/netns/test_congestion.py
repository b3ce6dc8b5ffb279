"""Congestion control, admission and pauses on a live fabric: rates fall, receivers grant, and nothing is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

from heddle.base.arrays import I64
from heddle.base.ethernet import pfc_frame
from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.endpoints import crew
from heddle.lab import thresholds
from heddle.lab.lab import Lab
from heddle.lab.thresholds import own_settings, wrong_thresholds
from heddle.runs.parts.admission import AdmissionUse
from heddle.runs.parts.congestion import CongestionUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import load
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import TRANSPORT, RunOptions
from tests import silentreceiver
from tests.conftest import Borrow
from tests.machine import bps, links, patience
from tests.marks import deep
from tests.netns.collectives import proven, ran, run_and, total
from tests.netns.pfc_lab import LOSSLESS
from tests.readings import series_of

BOTTLENECK = "rtsw1:eth3"  # to host1, which has rank 0
RATE = 25_000_000  # bit/s
SENDERS = 3
NONE_AND_DCQCN: tuple[str, ...] = ("none", "dcqcn")


@pytest.fixture(scope="module")
def net(borrow: Borrow) -> Lab:
    """Slow links: the processors have time to spare. Headroom: an emulated processor sends pauses later."""
    return borrow("tiny", *links(RATE), f"queues.pfc.reaction={round(1000 * patience(0.05))}ms")


@dataclass(frozen=True)
class Settled:
    """The later part of a run, from 40 to 95 % of its time: depths of the bottleneck in bytes, and counts."""

    depths: I64
    pauses: int
    marks: int
    kmin: int
    kmax: int


def settled(lab: Lab) -> Settled:
    recorded = series_of(lab)
    series = recorded.series
    row = [(label.port, label.traffic_class) for label in recorded.labels].index((BOTTLENECK, LOSSLESS))
    end = float(series.ends_s[-1])
    part = (series.ends_s > 0.4 * end) & (series.ends_s < 0.95 * end)
    label = recorded.labels[row]
    return Settled(
        series.columns["depth"][row][part], int(series.columns["pfc_sent"][:, part].sum()),
        int(series.columns["marks"][row][part].sum()), label.kmin, label.kmax,
    )  # fmt: skip


def incast(
    lab: Lab,
    congestion: str,
    transport: str = TRANSPORT,
    entropy: int = 1,
) -> RunRecord:
    options = RunOptions(
        "incast", sizes=(12 << 20,), iters=1, warmup=0,
        congestion=congestion, transport=transport, own={"entropy": entropy},
    )  # fmt: skip
    result = run(lab, options, Silent())
    assert result.wrong == result.icrc_errors == result.stray == 0
    again = sum(flow.counters.get("retransmitted", 0) for flow in result.flows)
    assert again == 0, (
        f"{again} sent again; drops: {result[QueueUse].drops if result.part(QueueUse) is not None else None}"
    )
    proven(lab)
    return result


@pytest.fixture(scope="module")
def without(net: Lab) -> Settled:
    """The same incast with pauses only."""
    result = incast(net, "none")
    assert result.part(CongestionUse) is None and load(net).rates.value is None
    assert "cnps_sent" not in result.flows[0].counters
    return settled(net)


@pytest.mark.parametrize("name", ["dcqcn", deep("swift")])
def test_the_queue_settles_below_kmax_and_pauses_fall(net: Lab, without: Settled, name: str) -> None:
    assert without.pauses > 50 and np.median(without.depths) > without.kmax, "PFC alone: the queue stays above Kmax"
    result = incast(net, name)
    found = settled(net)
    assert found.pauses < without.pauses / 2
    assert np.median(found.depths) < found.kmax
    assert found.depths.max() > found.kmin, "the queue returns to the range in which packets are marked"
    assert 0 < found.marks < without.marks / 2

    use, rates = result[CongestionUse], load(net).rates.value
    assert use is not None and rates is not None
    # Each CNP arrives, in the class of control; a delayed one may leave when the sender has already reported.
    assert 0 < use.cnps_received <= use.cnps_sent <= use.cnps_received + SENDERS
    senders = [each for each in rates.courses if each.qp.dst == "host1"]
    assert len(senders) == SENDERS and use.slowed >= SENDERS
    assert all(each.rates_bps.min() < each.qp.line_bps == bps(RATE) for each in senders)
    marked = {flow.sent.flow.qpn for flow in result.flows if flow.ce}
    assert {flow.sent.flow.qpn for flow in result.flows if flow.counters["cnps_sent"]} <= marked
    assert f"#{name:<9s}: {use.cnps_sent:,} CNPs sent" in result.table()


@pytest.mark.long("10 seconds and more")
def test_the_default_profile_has_a_tenth_of_the_pauses_from_the_first_packet_on(net: Lab) -> None:
    """The switches' own counts of pause frames, of whole short runs. On a busy machine one more attempt is allowed."""
    counts = []
    for _ in range(2):
        results = [
            run(net, RunOptions("incast", sizes=(4 << 20,), iters=2, congestion=name), Silent())
            for name in NONE_AND_DCQCN
        ]
        assert all(each.wrong == 0 for each in results)
        alone, slowed = (each[QueueUse].pauses for each in results if each.part(QueueUse) is not None)
        assert results[1][CongestionUse].profile == "default"
        counts.append((alone, slowed))
        if slowed * 10 <= alone:
            return
    pytest.fail(f"pause frames of PFC alone, and with DCQCN: {counts}")


def test_metas_profile_doubles_the_thresholds_for_its_run_only(net: Lab) -> None:
    before = (own_settings(net), net.fabric.policy.queues.ecn.kmin)
    options = RunOptions(
        "incast", sizes=(1 << 18,), iters=1, warmup=0, congestion="dcqcn", own={"congestion_profile": "meta"}
    )
    run(net, options, Silent())
    labels = [each for each in series_of(net).labels if each.port == BOTTLENECK and each.traffic_class == LOSSLESS]
    assert [each.kmin for each in labels] == [2 * before[1]]
    assert (own_settings(net), net.fabric.policy.queues.ecn.kmin) == before
    assert not wrong_thresholds(net)
    # A run that is killed leaves them: the next one, or a repair, restores them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "end_run_ecn", lambda _: [])
        with thresholds.ecn_for_run(net, 2, Silent()):
            pass
    assert own_settings(net)["rtsw1"] == {"ecn.kmin": 2 * before[1], "ecn.kmax": 2 * net.fabric.policy.queues.ecn.kmax}
    assert thresholds.end_run_ecn(net) and own_settings(net) == before[0]


@pytest.mark.deep
@pytest.mark.parametrize(("name", "transport", "entropy"), [deep("dcqcn", "uc", 1), ("swift", "srd", 4)])
def test_it_controls_every_transport(net: Lab, without: Settled, name: str, transport: str, entropy: int) -> None:
    result = incast(net, name, transport, entropy)
    assert result.nic_loop == "python"
    assert settled(net).pauses < without.pauses / 2
    use = result[CongestionUse]
    assert use is not None and use.slowed >= SENDERS
    assert 0 < use.cnps_received <= use.cnps_sent <= use.cnps_received + SENDERS


SIZE = 1 << 20
FAILED = r"rank \d on host\d:eth1: QP 0x\w+ (to|from) rank \d on host\d:eth1: "
MESSAGES = -(-SIZE // 4 // 6144)  # of each sender, a slot each
CLEARS = SENDERS  # rank 0 clears each sender for the next iteration by a message of four bytes

PROCESSING_S = 8 * SIZE * SENDERS / 4 / (0.25 * bps(RATE))  # of one iteration, at 25 % of the NIC's rate


def admitted(lab: Lab, collective: str = "incast", **more: object) -> RunRecord:
    defaults: dict[str, object] = {"sizes": (SIZE,), "iters": 2, "warmup": 0, "admission": True}
    result = run(lab, RunOptions(collective, **{**defaults, **more}), Silent())  # type: ignore[arg-type]
    assert result.wrong == result.icrc_errors == result.stray == 0
    assert total(result, "retransmitted") == 0
    proven(lab)
    return result


@pytest.fixture(scope="module")
def free(net: Lab) -> RunRecord:
    """The same without admission, to a slow receiver. RDMA WRITEs go to memory, whatever the rank does."""
    result = run(net, RunOptions("incast", sizes=(SIZE,), iters=2, warmup=0, slow=(("host1", 0.25),)), Silent())
    assert result.wrong == 0 and result.nic_loop == "compiled"
    assert result.rows[0].time_us / 1e6 > 0.9 * PROCESSING_S
    assert result[QueueUse].pauses > 0
    assert not result[AdmissionUse].on
    assert "no admission, so this holds no sender back" in result.table()
    return result


@pytest.mark.parametrize("cts_class", ["control", deep("data")])
def test_an_incast_has_one_cts_per_message_and_no_pauses(net: Lab, free: RunRecord, cts_class: str) -> None:
    result = admitted(net, cts_class=cts_class)
    use, queues = result[AdmissionUse], result[QueueUse]
    assert result.nic_loop == "python"
    assert use is not None and use.waits is not None and queues is not None
    assert use.cts_sent == use.cts_received == use.waits.messages == 2 * (SENDERS * MESSAGES + CLEARS)
    assert use.cts_resent == 0 and use.cts_class == cts_class
    assert queues.pauses == queues.dropped == 0
    # The budget, and the headers of its packets: 136 bytes for each slot of 6 KiB.
    assert 0 < queues.deepest <= use.budget_bytes * 1.03
    assert queues.deepest < free[QueueUse].deepest
    assert 0 <= use.waits.p50_s <= use.waits.p90_s <= use.waits.longest_s
    for text in (f"{use.cts_sent} CTS sent", f"in the {cts_class} class", "wait for CTS: P50", "8 slots of 6 KiB"):
        assert text in result.table()


@pytest.mark.deep
@pytest.mark.parametrize(
    "more",
    [
        {"qps": 2, "transport": "srd", "own": {"entropy": 2}},
        {"transport": "uc"},
        {"congestion": "dcqcn", "admission_set": (("channels", 3.0), ("steps", 2.0))},
    ],
    ids=["srd", "uc", "dcqcn"],
)
def test_it_wraps_every_transport(net: Lab, more: dict[str, object]) -> None:
    result = run(net, RunOptions(sizes=(SIZE // 4,), iters=2, warmup=1, admission=True, **more), Silent())  # type: ignore[arg-type]
    assert result.wrong == result.icrc_errors == result.stray == 0
    proven(net)
    use = result[AdmissionUse]
    assert use is not None and use.cts_sent == use.cts_received > 0


@pytest.mark.deep
def test_a_slow_receiver_holds_its_senders_back(net: Lab) -> None:
    quick = admitted(net)
    slow = admitted(net, slow=(("host1", 0.25),))
    assert slow.rows[0].time_us / 1e6 > 0.9 * PROCESSING_S
    assert slow[QueueUse].pauses == slow[QueueUse].dropped == 0
    held, free = slow[AdmissionUse].waits, quick[AdmissionUse].waits
    assert held is not None and free is not None and held.p50_s > free.p50_s
    assert "host1 at 0.25; senders wait for its CTS" in slow.table()


def test_a_receiver_that_never_grants_ends_the_run(net: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_WORKER", silentreceiver.__name__)
    why = rf"{FAILED}no clear-to-send \(CTS\) for 2 s.*none has"
    with pytest.raises(CheckError, match=why):
        admitted(net, admission_set=(("cts_timeout", 2.0),))


def test_a_peer_that_disappears_ends_the_run(net: Lab) -> None:
    """Its port goes down in mid-run: CTS packets or data are not acknowledged any more."""
    options = RunOptions("incast", sizes=(16 << 20,), iters=1, warmup=0, admission=True, timeout=14, retries=2)
    try:
        with pytest.raises(
            CheckError,
            match=rf"{FAILED}.*no acknowledgement after 2 retries",
        ):
            run_and(net, options, lambda: net.output("rtsw2", ["ip", "link", "set", "eth3", "down"]))
    finally:
        net.output("rtsw2", ["ip", "link", "set", "eth3", "up"])


PAUSED = 0.9  # seconds
MARKS = ("queues.ecn.kmin=0", "queues.ecn.kmax=0", "queues.pfc.watchdog.enabled=false")


@pytest.fixture(scope="module")
def marking(borrow: Borrow) -> Lab:
    return borrow("tiny", *MARKS, *links(25_000_000))


@pytest.mark.deep
def test_every_data_packet_that_arrives_marked_is_counted(marking: Lab) -> None:
    result = ran(marking, sizes=(64 << 10,), qps=2)
    assert result.icrc_errors == result.stray == 0
    assert total(result, "retransmitted") == 0
    assert all(f.ce == f.sent.packets for f in result.flows) and sum(f.ce for f in result.flows) > 40
    proven(marking)


@pytest.mark.deep
def test_ranks_neither_send_again_nor_die_while_their_own_port_is_paused(marking: Lab) -> None:
    """The switch pauses a host for three times the time-out that is asked for, 0.27 s."""
    host = marking.fabric.hosts[0]
    peer = marking.fabric.by_name[host.ports[0].peer_node].port(host.ports[0].peer_port)
    source, gates = bytes.fromhex(peer.mac.replace(":", "")), Gates(marking.handle(peer.node).netns)

    def pause() -> None:
        end = time.monotonic() + PAUSED
        while time.monotonic() < end:
            gates.send(peer.name, pfc_frame(source, {LOSSLESS: 50_000}))  # 1.02 s
            time.sleep(0.2)
        gates.send(peer.name, pfc_frame(source, {LOSSLESS: 0}))

    with LabQueues.pinned(marking.fabric) as queues:
        paused = queues.agent["paused_ns"][queues.ids[host.name, host.ports[0].name] * 8 + LOSSLESS :]
        before = int(paused[0])
        result = run_and(marking, RunOptions(sizes=(1 << 19,), iters=2, timeout=16), pause)
        assert (int(paused[0]) - before) * 1e-9 > 0.9 * PAUSED
    gates.close_sockets()
    assert result.wrong == 0
    mine = [flow for flow in result.flows if flow.sent.flow.src == host.name]
    assert [(flow.counters["timeouts"], flow.counters["retransmitted"]) for flow in mine] == [(0, 0)]
    # Its acknowledgements are of another class: its senders have them in time.
    assert [flow.counters["timeouts"] for flow in result.flows if flow.sent.flow.dst == host.name] == [0]
