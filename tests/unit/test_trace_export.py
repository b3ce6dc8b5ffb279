"""Runs as a Perfetto trace and as OTG's rows, read by strict readers of their own."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.fabric.model import NicNames
from heddle.runs.exports import otg, perfetto
from heddle.runs.exports.asked import Asked
from heddle.runs.measured import FlowRow
from heddle.runs.parts.faults import FaultSpan, FaultTimes
from heddle.runs.rates import PacedQp, RateCourse, Rates
from heddle.runs.series import SERIES
from heddle.runs.stored import StoredRun
from heddle.traffic.flow import Sent
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep
from tests.unit.test_slowest import ring, timeline

NS: Final = 10**9
FAULT = FaultSpan("rtsw1:eth1", "rtsw1:eth1 down", "from=1s,to=2s", 11 * NS, 12 * NS, down=True)
# Names and types of models/result/rocev2flow.yaml (Rocev2Flow.Metric.PerQP).
OTG: Final = {
    "flow_name": str, "port_tx": str, "port_rx": str, "src_qp": int, "dest_qp": int, "src_ipv4": str, "dest_ipv4": str,
    "data_frames_tx": int, "data_frames_rx": int, "frame_delta": int, "data_frames_retransmitted": int,
    "frame_sequence_error": int, "tx_bytes": int, "rx_bytes": int, "data_tx_rate": float, "data_rx_rate": float,
    "message_tx": int, "message_complete_rx": int, "message_fail": int, "flow_completion_time": int, "avg_latency": int,
    "min_latency": int, "max_latency": int, "ecn_ce_rx": int, "cnp_tx": int, "cnp_rx": int, "ack_tx": int,
    "ack_rx": int, "nak_tx": int, "nak_rx": int, "first_timestamp": str, "last_timestamp": str,
}  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> StoredRun:
    """A run with iterations, messages, queues, rates, and a fault."""
    faults = FaultTimes(10 * NS, 3.0, (FAULT,))
    record = samples.record()
    run = keep(tmp_path, record=samples.having(record, faults=faults))
    timeline(ring()).write(run.path)
    course = RateCourse(PacedQp("host1", "host3", 7, 10**8), np.array([0.0, 0.5]), np.array([1e8, 5e7]))
    Rates("dcqcn", 3.0, (course,)).write(run.path)
    return run


def events_of(content: bytes) -> list[dict[str, Any]]:
    """Read a trace as its format demands: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""
    events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    times = [each["ts"] for each in events if each["ph"] != "M"]
    assert times == sorted(times) and min(times) >= 0
    assert {each["ph"] for each in events[: len(events) - len(times)]} == {"M"}, "names come first"
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    begun: dict[tuple[int, str, int], float] = {}
    for each in events:
        assert isinstance(each["pid"], int) and isinstance(each["tid"], int) and each["name"]
        if each["ph"] == "X":
            stack = stacks[each["pid"], each["tid"]]
            begin, length = round(1000 * each["ts"]), round(1000 * each["dur"])  # ns, as readers have them
            while stack and stack[-1] <= begin:
                stack.pop()
            assert length >= 0 and (not stack or begin + length <= stack[-1]), "slices nest"
            stack.append(begin + length)
        elif each["ph"] in "be":
            key = each["pid"], each["cat"], each["id"]
            if each["ph"] == "b":
                assert key not in begun, "an ID is used once"
                begun[key] = each["ts"]
            else:
                assert begun[key] <= each["ts"]
                begun[key] = -1.0
        elif each["ph"] == "C":
            assert all(isinstance(value, float) for value in each["args"].values())
    assert set(begun.values()) <= {-1.0}, "every message ends"
    return events


def test_a_trace_has_iterations_messages_counters_rates_and_faults(kept: StoredRun) -> None:
    events = events_of(perfetto.written(kept, Asked()))
    slices = [each for each in events if each["ph"] == "X"]
    assert len(slices) == 12 and slices[0]["name"] == "1 MiB, iteration 1"
    assert all(each["dur"] == pytest.approx(1e6) for each in slices)
    messages = [each for each in events if each["ph"] == "b"]
    assert len(messages) == 12 and messages[0]["args"]["bytes"] == 4096
    assert messages[0]["args"]["waited at the receiver (us)"] == pytest.approx(1000)
    named = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert {"ranks", "messages", "queues of ports", "sending rates", "rank 0 host1:eth1"} <= named
    counters = defaultdict(list)
    for each in (each for each in events if each["ph"] == "C"):
        counters[each["name"]].append((each["ts"], *each["args"].items()))
    assert counters["rtsw1:eth3 class 3: marked"] == [(0.0, ("packets", 0.0)), (40_000.0, ("packets", 3.0))]
    assert (50_000.0, ("% of the time", 40.0)) in counters["rtsw1:eth3 class 3: gate closed"]
    assert counters["host1 to host3, QP 7"] == [(0.0, ("Mb/s", 100.0)), (500_000.0, ("Mb/s", 50.0))]
    assert not any("dropped" in name for name in counters), "a counter that is always 0 is left out"
    assert [(each["ts"], each["name"]) for each in events if each["ph"] == "i"] == [
        (1e6, "fault begins: rtsw1:eth1 down"), (2e6, "fault ends: rtsw1:eth1 down"),
    ]  # fmt: skip


def test_an_iteration_ends_where_the_next_one_begins(kept: StoredRun) -> None:
    its = timeline(ring()).iterations
    odd = np.cumsum(np.full(len(its.rank), 0.1234567896))
    rows = replace(its, rank=np.zeros(len(odd), np.int64), begin_s=odd, end_s=odd + 0.1234567896)
    replace(timeline(ring()), iterations=rows).write(kept.path)
    assert len([each for each in events_of(perfetto.written(kept, Asked())) if each["ph"] == "X"]) == len(odd)


def test_a_trace_states_its_time_and_what_is_missing(kept: StoredRun, tmp_path: Path) -> None:
    about = json.loads(perfetto.written(kept, Asked()))["otherData"]
    assert about["k"] == 4000 and "wall time" in about["time"] and about["missing"] == []
    old = keep(tmp_path, 2)
    assert "timeline.npz is missing" in json.loads(perfetto.written(old, Asked()))["otherData"]["missing"][0]
    (old.path / SERIES).unlink()
    with pytest.raises(InputError, match=r"series\.npz is missing"):
        perfetto.written(StoredRun(old.id, old.lab, old.path), Asked())


def test_rows_of_otg_have_its_names_and_types_and_no_invented_value(kept: StoredRun) -> None:
    data = json.loads(otg.written(kept, Asked()))
    rows = data[data["choice"]]
    assert len(rows) == 2
    for row in rows:
        assert row.keys() <= OTG.keys() and all(type(value) is OTG[name] for name, value in row.items())
        assert not {"ack_tx", "avg_latency", "cnp_tx", "data_frames_rx", "frame_delta"} & row.keys()
    assert rows[0]["port_tx"] == "host1:eth1" and rows[0]["dest_qp"] == 266718
    assert rows[0]["data_frames_retransmitted"] == 0 and rows[0]["nak_rx"] == 1


def test_source_ports_of_a_qp_are_one_row() -> None:
    one = samples.sent()
    other = Sent(replace(one.flow, sport=50001), 3, 300)
    (row,) = otg.otg_rows([FlowRow(one, 5, {}, 7), FlowRow(other, 1, {}, 2)], NicNames())
    assert (row["data_frames_tx"], row["data_frames_rx"], row["frame_delta"]) == (10, 9, 1)
    assert (row["tx_bytes"], row["ecn_ce_rx"]) == (1200, 6)
