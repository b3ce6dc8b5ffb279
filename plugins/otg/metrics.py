"""Answers to get_metrics: rows of ports, flows, queue pairs and peers, in the columns of Open Traffic Generator.

In:  counters of the kernel (ports) and of Heddle's senders and receivers (flows). Out: JSON values.
Counters are those of Heddle, without a factor. Rates are those of the modelled fabric: the emulation's times k. A
column that nothing measures is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.kernel.netlink import RouteSocket, interfaces
from heddle.kernel.uapi import IFF_LOWER_UP
from heddle.lab.lab import Lab
from heddle_plugins.otg.activeflows import FlowState
from heddle_plugins.otg.flows import OtgPort, RawFlow, RoceFlow

_IFLA_STATS64: Final = 23
_LONG_S: Final = 60.0  # an average over a longer time says nothing about now
_STATS = struct.Struct("=4Q")  # packets received, sent, bytes received, sent: the start of rtnl_link_stats64


@dataclass(frozen=True, slots=True)
class PortCounts:
    """Frames and bytes of a NIC since its lab came up, as the kernel counts them; whether its link is up."""

    frames_rx: int = 0
    frames_tx: int = 0
    bytes_rx: int = 0
    bytes_tx: int = 0
    up: bool = False


def read_ports(lab: Lab, ports: Iterable[OtgPort]) -> dict[str, PortCounts]:
    """Port -> its counters now. MachineError for a host that does not run."""
    found, by_host = dict[str, PortCounts](), dict[str, dict[str, str]]()
    for port in ports:
        by_host.setdefault(port.end.host, {})[port.end.port] = port.name
    for host, names in by_host.items():
        with RouteSocket(lab.handle(host).netns) as netlink:
            for each in interfaces(netlink):
                if each.name in names and _IFLA_STATS64 in each.attrs:
                    up = bool(each.flags & IFF_LOWER_UP)
                    rx, tx, rx_bytes, tx_bytes = _STATS.unpack_from(each.attrs[_IFLA_STATS64])
                    found[names[each.name]] = PortCounts(rx, tx, rx_bytes, tx_bytes, up)
        found |= {name: PortCounts() for name in names.values() if name not in found}
    return found


def port_row(port: OtgPort, now: PortCounts, base: PortCounts, k: int) -> dict[str, Any]:
    """One port. base: its counters when the flows were started."""
    return {
        "name": port.name, "location": port.location, "link": "up" if now.up else "down",
        "frames_tx": now.frames_tx - base.frames_tx, "frames_rx": now.frames_rx - base.frames_rx,
        "bytes_tx": now.bytes_tx - base.bytes_tx, "bytes_rx": now.bytes_rx - base.bytes_rx,
        "speed": port.end.rate_bps * k // 8000,
    }  # fmt: skip


def port_rates(now: PortCounts, before: PortCounts | None, seconds: float, k: int) -> dict[str, float]:
    """Rates of one port since the last reading; 0 at the first one."""
    names = ("frames_tx", "frames_rx", "bytes_tx", "bytes_rx")
    if before is None or not 0 < seconds < _LONG_S:
        return {f"{name}_rate": 0.0 for name in names}
    return {f"{name}_rate": k * (getattr(now, name) - getattr(before, name)) / seconds for name in names}


def raw_row(flow: RawFlow, row: FlowState, k: int) -> dict[str, Any]:
    """One raw flow."""
    rates = {name: value * k for name, value in row.rates.items()}
    found: dict[str, Any] = {
        "name": flow.name, "port_tx": flow.tx.name, "port_rx": flow.rx.name if flow.rx is not None else None,
        "transmit": row.state, "frames_tx": 0, "bytes_tx": 0, **row.counts,
        "frames_tx_rate": rates.get("frames_tx", 0.0), "frames_rx_rate": rates.get("frames_rx", 0.0),
    }  # fmt: skip
    if flow.signature is not None:
        found = {"frames_rx": 0, "bytes_rx": 0, **found}
    for side in ("tx", "rx"):
        per_second = rates.get(f"bytes_{side}", 0.0)
        found |= {f"{side}_rate_bytes": per_second, f"{side}_rate_bps": 8 * per_second}
        found |= {f"{side}_rate_kbps": 8e-3 * per_second, f"{side}_rate_mbps": 8e-6 * per_second}
    if flow.loss and flow.signature is not None:
        sent = found["frames_tx"]
        found["loss"] = 100 * (sent - found["frames_rx"]) / sent if sent else 0.0
    return {name: value for name, value in found.items() if value is not None}


_ROCE_COUNTERS: Final = (
    "data_frames_tx", "data_frames_rx", "data_frames_retransmitted", "frame_sequence_error", "tx_bytes", "rx_bytes",
    "message_tx", "message_complete_rx", "ecn_ce_rx", "cnp_tx", "cnp_rx", "ack_tx", "ack_rx", "nak_tx", "nak_rx",
)  # fmt: skip


def roce_row(flow: RoceFlow, row: FlowState, k: int) -> dict[str, Any]:
    """One queue pair."""
    here, there = flow.qp.port, flow.rx
    counts = {name: row.counts.get(name, 0) for name in _ROCE_COUNTERS}
    found: dict[str, Any] = {
        "flow_name": flow.name, "port_tx": here.name, "port_rx": there.name,
        "src_qp": flow.qp.data["source_qp_number"], "dest_qp": flow.responder, **counts,
        "frame_delta": counts["data_frames_tx"] - counts["data_frames_rx"],
        "message_fail": counts["message_tx"] - counts["message_complete_rx"] if row.state == "stopped" else 0,
        "data_tx_rate": row.rates.get("tx_bytes", 0.0) * 8e-9 * k,
        "data_rx_rate": row.rates.get("rx_bytes", 0.0) * 8e-9 * k,
    }  # fmt: skip
    if ":" not in here.end.ip:
        found |= {"src_ipv4": here.end.ip, "dest_ipv4": there.end.ip}
    return found


def peer_row(name: str, qps: int, up: bool) -> dict[str, Any]:
    """One peer: its queue pairs. There is no connection manager, so its messages are absent."""
    return {"name": name, "qp_configured": qps, "qp_up": qps if up else 0, "qp_down": 0 if up else qps}


def answer(kind: str, key: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, Any]:
    """The document. columns: those that the client wants, beside the key; none: all."""
    wanted = {key, *columns}
    kept = [{name: value for name, value in row.items() if not columns or name in wanted} for row in rows]
    return {"choice": kind, kind: kept}
