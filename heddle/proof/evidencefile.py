"""Evidence as plain data and back. Only this module knows its layout in a run's file.

In:  Evidence, or its plain data. Out: the other one. Data of another FORMAT, or damaged data, raise ValueError,
LookupError, TypeError or AttributeError; the caller adds the name of the file.
Parts of a node that are equal in both snapshots are written once, with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heddle.kernel.fib import Fib
from heddle.lab.snapshot import NodeSnapshot, Snapshot
from heddle.proof.evidence import PARTS, Evidence
from heddle.switch.counters import SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow, Sent

FORMAT: Final = 2
_WITHOUT_SPORT: Final = 1  # rows of counters have no UDP source port; it is taken from the QP's flow


def to_json(evidence: Evidence) -> dict[str, Any]:
    """Plain data."""
    return {
        "format": FORMAT,
        "before": _snapshot(evidence.before, {}),
        "after": _snapshot(evidence.after, evidence.before.nodes),
        "sent": [each.to_json() for each in evidence.sent],
        "oracle": [list(path) for path in evidence.oracle],
        "received": list(evidence.received),
        "seconds": evidence.seconds,
        "choices": dict(evidence.choices),
    }


def from_json(data: Mapping[str, Any]) -> Evidence:
    """The evidence from data of `to_json`, in this format or the one before."""
    if data["format"] == _WITHOUT_SPORT:
        data = _with_sports(data)
    elif data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, not {FORMAT}")
    before = _read(data["before"], {})
    return Evidence(
        before,
        _read(data["after"], before.nodes),
        tuple(_sent(row) for row in data["sent"]),
        tuple(tuple(str(port) for port in path) for path in data["oracle"]),
        tuple(int(count) for count in data.get("received", ())),  # older runs have none of these three
        None if data.get("seconds") is None else float(data["seconds"]),
        {str(who): int(count) for who, count in data.get("choices", {}).items()},
    )


def _with_sports(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data of format 1 with a source port in each row; 0 for rows of other flows, which a proof does not use."""
    sports = {(row["src_ip"], row["dst_ip"], row["qpn"]): row["sport"] for row in data["sent"]}

    def filled(counters: Mapping[str, Any]) -> dict[str, Any]:
        rows = []
        for port, src, dst, qpn, packets, size in counters["flows"]:
            rows.append([port, src, dst, sports.get((src, dst, qpn), 0), qpn, packets, size])
        return {**counters, "flows": rows}

    def snapshot(found: Mapping[str, Any]) -> dict[str, Any]:
        return {**found, "nodes": [{**node, "counters": filled(node["counters"])} for node in found["nodes"]]}

    return {**data, "before": snapshot(data["before"]), "after": snapshot(data["after"])}


def _snapshot(found: Snapshot, known: Mapping[str, NodeSnapshot]) -> dict[str, Any]:
    rows = [_node(each, known.get(name)) for name, each in found.nodes.items()]
    return {"lab": found.lab, "backlog": found.backlog_drops, "nodes": rows}


def _node(node: NodeSnapshot, known: NodeSnapshot | None) -> dict[str, Any]:
    """known: the same node in the first snapshot."""
    row: dict[str, Any] = {"node": node.node, "epoch": node.epoch}
    if node.fib is not None and (known is None or node.fib != known.fib):
        row["fib"] = node.fib.to_json()
    if node.hashing is not None and (known is None or node.hashing != known.hashing):
        row["hashing"] = node.hashing.to_json()
    if node.counters is not None:
        row["counters"] = node.counters.to_json()
    if node.class_drops is not None:
        row["class_drops"] = {
            port: {str(number): count for number, count in classes.items()}
            for port, classes in node.class_drops.items()
        }
    return {**row, "statistics": dict(node.statistics or {}), "drops": dict(node.drops or {})}


def _read(data: Mapping[str, Any], known: Mapping[str, NodeSnapshot]) -> Snapshot:
    nodes = {str(row["node"]): _read_node(row, known.get(str(row["node"]))) for row in data["nodes"]}
    return Snapshot(str(data["lab"]), PARTS, nodes, int(data["backlog"]))


def _read_node(row: Mapping[str, Any], known: NodeSnapshot | None) -> NodeSnapshot:
    return NodeSnapshot(
        str(row["node"]),
        fib=known.fib if known is not None and "fib" not in row else Fib.from_json(row["fib"]),
        hashing=known.hashing if known and "hashing" not in row else SwitchHashing.from_json(row["hashing"]),
        epoch=int(row["epoch"]),
        statistics={str(word): int(count) for word, count in row["statistics"].items()},
        counters=SwitchCounters.from_json(row["counters"]),
        drops={str(port): int(count) for port, count in row["drops"].items()},
        class_drops=None
        if "class_drops" not in row
        else {
            str(port): {int(number): int(count) for number, count in classes.items()}
            for port, classes in row["class_drops"].items()
        },
    )


def _sent(row: Mapping[str, Any]) -> Sent:
    src, dst, src_ip, dst_ip, first_hop = (str(row[key]) for key in ("src", "dst", "src_ip", "dst_ip", "first_hop"))
    sport, qpn, dport, *ranks = (int(row[key]) for key in ("sport", "qpn", "dport", "src_rank", "dst_rank"))
    flow = Flow(src, dst, src_ip, dst_ip, sport, qpn, first_hop, dport, *ranks)
    return Sent(flow, int(row["packets"]), int(row["bytes"]))
