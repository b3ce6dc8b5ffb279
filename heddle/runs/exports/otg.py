"""A row for each QP in the columns of Open Traffic Generator, as its API returns metrics of RoCEv2 flows.

Names and units: models/result/rocev2flow.yaml of github.com/open-traffic-generator/models. A column that a run does not
measure is absent, and never 0. Frames are counted with retransmissions. Bytes are those of frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from heddle.fabric.model import NicNames
from heddle.runs.exports.asked import Asked
from heddle.runs.measured import FlowRow
from heddle.runs.stored import StoredRun

METRICS: Final = "rocev2_flow_per_qp_metrics"
_COUNTERS: Final[Mapping[str, str]] = {  # column of OTG -> counter of a transport
    "data_frames_retransmitted": "retransmitted",
    "frame_sequence_error": "out_of_order",
    "cnp_tx": "cnps_sent",
    "cnp_rx": "cnps_received",
    "nak_rx": "naks",
}


def written(run: StoredRun, _asked: Asked) -> bytes:
    """The rows as JSON. InputError for a run without evidence."""
    built = run.fabric.value
    rows = [*otg_rows(run.flows, NicNames() if built is None else NicNames.of(built))]
    return json.dumps({"choice": METRICS, METRICS: rows}, indent=1).encode()


def otg_rows(flows: Iterable[FlowRow], nics: NicNames) -> Iterator[dict[str, Any]]:
    """A row for each QP; source ports of one QP are added up."""
    by_qp: dict[tuple[str, str, int], list[FlowRow]] = {}
    for row in flows:
        by_qp.setdefault((row.sent.flow.src_ip, row.sent.flow.dst_ip, row.sent.flow.qpn), []).append(row)
    for found in by_qp.values():
        yield {key: value for key, value in _row(found, nics) if value is not None}


def _row(found: Sequence[FlowRow], nics: NicNames) -> Iterator[tuple[str, Any]]:
    flow, counters = found[0].sent.flow, found[0].counters
    src, dst = nics.nic(flow.src, flow.src_ip), nics.nic(flow.dst, flow.dst_ip)
    v4 = ":" not in flow.src_ip
    sent = sum(row.sent.packets for row in found)
    taken = [row.received for row in found if row.received is not None]
    received = sum(taken) if len(taken) == len(found) else None
    yield "flow_name", f"{src} to {dst}, QP {flow.qpn:#08x}"
    yield from (("port_tx", src), ("port_rx", dst), ("dest_qp", flow.qpn))
    yield from (("src_ipv4", flow.src_ip if v4 else None), ("dest_ipv4", flow.dst_ip if v4 else None))
    yield from (("data_frames_tx", sent), ("data_frames_rx", received))
    yield "frame_delta", None if received is None else sent - received
    yield "tx_bytes", sum(row.sent.bytes for row in found)
    yield "ecn_ce_rx", sum(row.ce for row in found)
    for column, counter in _COUNTERS.items():
        yield column, sum(row.counters[counter] for row in found) if counter in counters else None
