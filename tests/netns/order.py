"""Whether queue pairs kept their order, by what receivers counted."""

from __future__ import annotations

from heddle.runs.results import RunResult


def late(result: RunResult) -> int:
    """Packets that came out of order."""
    return sum(flow.counters["out_of_order"] for flow in result.flows)


def in_order(result: RunResult) -> RunResult:
    """The run, which must have kept the order of every QP."""
    assert late(result) == 0, f"{late(result)} packets came out of order"
    return result
