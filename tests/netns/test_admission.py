"""Admission on a live fabric: nothing is sent without a CTS, no port pauses, a slow receiver holds its senders back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.endpoints import crew
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests import silentreceiver
from tests.machine import bps, links
from tests.netns.during import run_and

pytestmark = pytest.mark.root

SIZE = 1 << 20
RATE = 25_000_000  # bit/s
FAILED = r"rank \d on host\d:eth1: QP 0x\w+ (to|from) rank \d on host\d:eth1: "
SENDERS = 3
MESSAGES = -(-SIZE // 4 // 6144)  # of each sender, a slot each
CLEARS = SENDERS  # rank 0 clears each sender for the next iteration by a message of four bytes

PROCESSING_S = 8 * SIZE * SENDERS / 4 / (0.25 * bps(RATE))  # of one iteration, at 25 % of the NIC's rate


@pytest.fixture(scope="module")
def net(lab_name: Callable[[], str]) -> Iterator[Lab]:
    """Slow links: the processors have time to spare."""
    name = lab_name()
    try:
        yield life.up(load_fabric("tiny", name=name, overrides=links(RATE))).lab
    finally:
        life.down(name)


def admitted(lab: Lab, collective: str = "incast", **more: object) -> RunResult:
    defaults: dict[str, object] = {"sizes": (SIZE,), "iters": 2, "warmup": 0, "admission": True}
    result = run(lab, RunOptions(collective, **{**defaults, **more}), Silent())  # type: ignore[arg-type]
    assert result.wrong == result.icrc_errors == result.stray == 0
    assert sum(flow.counters["retransmitted"] for flow in result.flows) == 0
    paths = paths_of(lab)
    assert paths.agree, paths_text(paths)
    return result


@pytest.fixture(scope="module")
def free(net: Lab) -> RunResult:
    """The same without admission, to a slow receiver. RDMA WRITEs go to memory, whatever the rank does."""
    result = run(net, RunOptions("incast", sizes=(SIZE,), iters=2, warmup=0, slow=(("host1", 0.25),)), Silent())
    assert result.wrong == 0 and result.nic_loop == "compiled"
    assert result.rows[0].time_us / 1e6 > 0.9 * PROCESSING_S
    assert result.queues is not None and result.queues.pauses > 0
    assert result.admission is not None and not result.admission.on
    assert "no admission, so this holds no sender back" in result.table()
    return result


@pytest.mark.parametrize("cts_class", ["control", "data"])
def test_an_incast_has_one_cts_per_message_and_no_pauses(net: Lab, free: RunResult, cts_class: str) -> None:
    result = admitted(net, cts_class=cts_class)
    use, queues = result.admission, result.queues
    assert result.nic_loop == "python"
    assert use is not None and use.waits is not None and queues is not None
    assert use.cts_sent == use.cts_received == use.waits.messages == 2 * (SENDERS * MESSAGES + CLEARS)
    assert use.cts_resent == 0 and use.cts_class == cts_class
    assert queues.pauses == queues.dropped == 0
    # The budget, and the headers of its packets.
    assert 0 < queues.deepest <= use.budget_bytes * 1.02
    assert free.queues is not None and queues.deepest < free.queues.deepest
    assert 0 <= use.waits.p50_s <= use.waits.p90_s <= use.waits.longest_s
    for text in (f"{use.cts_sent} CTS sent", f"in the {cts_class} class", "wait for CTS: P50", "8 slots of 6 KiB"):
        assert text in result.table()


@pytest.mark.parametrize(
    "more",
    [
        {"qps": 2, "transport": "srd", "entropy": 2},
        {"transport": "uc"},
        {"congestion": "dcqcn", "admission_set": (("channels", 3.0), ("steps", 2.0))},
    ],
    ids=["srd", "uc", "dcqcn"],
)
def test_it_wraps_every_transport(net: Lab, more: dict[str, object]) -> None:
    result = run(net, RunOptions(sizes=(SIZE // 4,), iters=2, warmup=1, admission=True, **more), Silent())  # type: ignore[arg-type]
    assert result.wrong == result.icrc_errors == result.stray == 0
    paths = paths_of(net)
    assert paths.agree, paths_text(paths)
    use = result.admission
    assert use is not None and use.cts_sent == use.cts_received > 0


def test_a_slow_receiver_holds_its_senders_back(net: Lab) -> None:
    quick = admitted(net)
    slow = admitted(net, slow=(("host1", 0.25),))
    assert slow.rows[0].time_us / 1e6 > 0.9 * PROCESSING_S
    assert slow.queues is not None and slow.queues.pauses == slow.queues.dropped == 0
    assert slow.admission is not None and slow.admission.waits is not None and quick.admission is not None
    assert quick.admission.waits is not None and slow.admission.waits.p50_s > quick.admission.waits.p50_s
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
