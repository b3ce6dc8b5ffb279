"""A connection has the same data in flight however many QPs share it; where it cannot, the table says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.endpoints.nic.qpend import Message, QpInfo
from heddle.endpoints.transports import find_transport
from heddle.endpoints.transports.rc import Rc, RcSender
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.inflight import MIN_QP_WINDOW, WINDOW_PACKETS, InFlight, shortfall, windows_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from tests.unit import run_samples
from tests.unit.test_transports import HERE

FEW = [*range(1, WINDOW_PACKETS // MIN_QP_WINDOW + 1)]


@pytest.mark.parametrize("qps", FEW)
def test_a_sweep_over_qps_keeps_the_data_in_flight(qps: int) -> None:
    plan = build_plan(run_samples.FABRIC, RunOptions(qps=qps))
    pairs: dict[tuple[int, int], list[int]] = {}
    for qp in plan.qps:
        pairs.setdefault((qp.flow.src_rank, qp.flow.dst_rank), []).append(qp.window)
    for windows in pairs.values():
        assert sum(windows) == WINDOW_PACKETS
        assert max(windows) - min(windows) <= 1


@pytest.mark.parametrize("qps", [33, 48, 64, 100, 128])
def test_many_qps_have_two_packets_each_and_the_header_says_so(qps: int) -> None:
    assert set(windows_of(RunOptions(qps=qps))) == {MIN_QP_WINDOW}
    text = InFlight.of(RunOptions(qps=qps)).text()
    assert text == f"{2 * qps} packets per connection in flight, 2 on each of {qps} QPs; 64 with up to 32 QPs"


def test_the_table_and_json_print_it() -> None:
    def table(short: bool = False, **options: int) -> str:
        return replace(run_samples.result(), options=RunOptions(**options)).table(short)  # type: ignore[arg-type]

    assert "#window   : 64 packets per connection in flight\n" in table()
    assert "#window   : 64 packets per connection in flight, 4 on each of 16 QPs\n" in table(qps=16)
    assert "#window   : 64 packets per connection in flight, 2 or 3 on each of 24 QPs\n" in table(qps=24)
    assert "#window   : 12 packets per connection in flight, 3 on each of 4 QPs\n" in table(qps=4, window=3)
    assert "#window" not in table(short=True, qps=16)
    assert "#window   : 256 packets" in table(short=True, qps=128)
    data = replace(run_samples.result(), options=RunOptions(qps=128)).to_json()["in_flight"]
    assert data == {"connection": 256, "qps": 128, "least": 2, "most": 2, "usual": 64}


def test_a_qp_sends_no_more_than_its_own_window() -> None:
    plan = build_plan(load_fabric("tiny").fabric, RunOptions(qps=24))
    transport = find_transport("rc").of(plan)
    assert isinstance(transport, Rc)
    payload = memoryview(bytes(4096 * 64))
    for window in (2, 3):
        end = transport.sender(replace(HERE, window=window))
        assert isinstance(end, RcSender)
        end.post(Message(payload, 0, 7, 0))
        assert end._requester.ready == window
        assert end._requester.params.ack_every < window
    assert transport.sender(QpInfo(5, HERE.flow, 0)).ready is False
    assert transport.params.window == 3


def test_windows_that_cannot_fill_the_path_are_named_with_the_product() -> None:
    assert shortfall(RunOptions(), 500) == ""
    assert shortfall(RunOptions(window=100, qps=5), 500) == ""
    assert shortfall(RunOptions(window=20, qps=5), 500) == (
        "--window 20 on each of 5 QPs keeps 100 packets in flight, but the bandwidth-delay product of the longest path"
        " is 500 packets: a connection reaches at most 20 % of the line rate; use --window 100 or more, or leave it out"
    )
    assert shortfall(RunOptions(window=1), 73).startswith("--window 1 keeps 1 packet in flight, but")
    assert "reaches at most 0.1 % of the line rate" in shortfall(RunOptions(window=2), 1926)
    assert "reaches at most 99 % of the line rate" in shortfall(RunOptions(window=1925), 1926)
