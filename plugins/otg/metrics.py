"""Answers to get_metrics: rows of ports, flows, queue pairs and peers, in the columns of Open Traffic Generator.

In:  counters of queues (ports) and of Heddle's senders and receivers (flows). Out: JSON values.
Counters are those of Heddle, without a factor. Rates are those of the modelled fabric: the emulation's times k. A
column that nothing measures is absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.ethernet import CLASSES
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart
from heddle.switch.queues.cells import CAUSES
from heddle.switch.queues.classes import numbered_ports
from heddle_plugins.otg.activeflows import FlowState
from heddle_plugins.otg.flows import OtgPort, RawFlow, RoceFlow

_LONG_S: Final = 60.0  # an average over a longer time says nothing about now


@dataclass(frozen=True, slots=True)
class PortCounts:
    """Frames and bytes of a NIC since its lab came up; whether its link is up."""

    frames_rx: int = 0
    frames_tx: int = 0
    bytes_rx: int = 0
    bytes_tx: int = 0
    up: bool = False


def read_ports(lab: Lab, ports: Collection[OtgPort]) -> dict[str, PortCounts]:
    """Port -> its counters now: what left its own queues, and what left those of the switch and passed the link.

    Copies that a fault of the link makes count as frames, and not as bytes. MachineError for a lab without queues.
    """
    fabric, leaves = lab.fabric, {port.end.first_hop.partition(":")[0] for port in ports}
    queues, down = lab.snapshot(LabPart.QUEUES).queues, lab.snapshot(LabPart.CARRIER, nodes=leaves).down
    cells = queues.cells.reshape(-1, CLASSES)
    ids = {port.ref: number for number, port in numbered_ports(fabric)}
    found = dict[str, PortCounts]()
    for port in ports:
        leaf = fabric.by_name[port.end.host].port(port.end.port).peer_ref
        out, into = cells[ids[port.end.nic]], cells[ids[leaf]]
        lost = into["drops"][:, CAUSES.index("fault")].sum()
        found[port.name] = PortCounts(
            int(into["out_packets"].sum() - lost + into["copies"].sum()), int(out["out_packets"].sum()),
            int(into["out_bytes"].sum() - into["fault_bytes"].sum()), int(out["out_bytes"].sum()), leaf not in down,
        )  # fmt: skip
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
