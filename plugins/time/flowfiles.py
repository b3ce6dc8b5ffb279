"""Flows and their completion times in the files of other tools: HPCC's `flow.txt` and `fct.txt`, and htsim's output.

In:  FlowColumns. Out: text, one line for each flow.
Sources: ReadFlowInput, qp_finish and node_id_to_ip of alibaba-edu/High-Precision-Congestion-Control
(simulation/scratch/third.cc), and UecSrc of ultraethernet/uet-htsim (sim/uec.cpp). htsim's line has only what a
forecast knows: nothing is behind `total bytes`, where htsim counts what its congestion control did.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from heddle.base.arrays import I64
from heddle.base.problems import InputError, Problem

_FIRST_ADDRESS: Final = 0x0B000001  # 11.0.0.1, of HPCC's node 0
_MOST_NODES: Final = 1 << 16  # HPCC's addresses have 16 bits of a node's number
_LOSSLESS: Final = 3  # priority group
_FIRST_FLOW: Final = 10**9 + 1  # of htsim's flows that have no id
Numbers = NDArray[np.integer[Any]]
Times = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class FlowColumns:
    """Flows as arrays of one length. src, dst: node numbers, from 0. sport, dport: UDP. size: bytes of payload.

    start_s: when a flow starts. fct_s: how long it takes. standalone_s: how long it would take alone. Seconds of
    hardware. InputError for arrays of several lengths, and times below 0 or without a value.
    """

    src: Numbers
    dst: Numbers
    sport: Numbers
    dport: Numbers
    size: Numbers
    start_s: Times
    fct_s: Times
    standalone_s: Times

    def __post_init__(self) -> None:
        lengths = {each.name: len(getattr(self, each.name)) for each in fields(self)}
        if len({*lengths.values()}) > 1:
            text = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(Problem("", "the columns of flows", f"have several lengths: {text}"))
        for name in ("start_s", "fct_s", "standalone_s"):
            times = getattr(self, name)
            if (bad := np.flatnonzero(~(np.isfinite(times) & (times >= 0)))).size:
                raise InputError(Problem("", f"flow {bad[0]}", f"has {name} {times[bad[0]]:g}, which is no time"))


def _lines(template: str, *columns: NDArray[Any]) -> str:
    return "".join(template.format(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _ns(seconds: Times) -> I64:
    found: I64 = np.rint(seconds * 1e9).astype(np.int64)
    return found


def _address(nodes: Numbers) -> Numbers:
    if (bad := np.flatnonzero((nodes < 0) | (nodes >= _MOST_NODES))).size:
        why = f"is beyond HPCC's addresses, which have nodes 0 to {_MOST_NODES - 1}"
        raise InputError(Problem("", f"node {nodes[bad[0]]} of fct.txt", why, "write htsim's lines instead"))
    number = nodes.astype(np.int64)
    return _FIRST_ADDRESS + (number // 256 << 16) + (number % 256 << 8)


def flow_text(flows: FlowColumns) -> str:
    """`flow.txt`: the number of flows, then `src dst pg dport bytes start_s`, by start, as HPCC reads it."""
    order = np.argsort(flows.start_s, kind="stable")
    columns = (flows.src, flows.dst, flows.dport, flows.size, flows.start_s)
    rows = _lines(f"{{}} {{}} {_LOSSLESS} {{}} {{}} {{:.9f}}\n", *(column[order] for column in columns))
    return f"{order.size}\n{rows}"


def fct_text(flows: FlowColumns) -> str:
    """`fct.txt`: `sip dip sport dport bytes start_ns fct_ns standalone_ns`, in the order in which flows end.

    InputError for nodes that HPCC's addresses do not have.
    """
    order = np.argsort(flows.start_s + flows.fct_s, kind="stable")
    times = (_ns(flows.start_s), _ns(flows.fct_s), np.maximum(1, _ns(flows.standalone_s)))  # by which scripts divide
    columns = (_address(flows.src), _address(flows.dst), flows.sport, flows.dport, flows.size, *times)
    return _lines("{:08x} {:08x} {} {} {} {} {} {}\n", *(column[order] for column in columns))


def htsim_text(flows: FlowColumns, mtu: int) -> str:
    """htsim's `Flow ... finished at` lines, in the order in which flows end; times in us. mtu: bytes of a packet."""
    end_us = (flows.start_s + flows.fct_s) * 1e6
    order = np.argsort(end_us, kind="stable")
    packets = -(-flows.size // mtu)
    columns = (
        flows.src,
        flows.dst,
        np.arange(_FIRST_FLOW, _FIRST_FLOW + order.size),
        flows.src,
        end_us,
        packets,
        flows.size,
    )
    template = (
        "Flow Uec_{}_{} flowId {} uecSrc {} finished at {:.4f} total messages 1 total packets {} RTS 0 total bytes {}\n"
    )
    return _lines(template, *(column[order] for column in columns))
