"""Answers to the page's questions about one lab: a port's queues and history, the QPs of its last run.

In:  an open lab of a watch. Out: plain data. A port's rows are those of `./inv queues`, of the last reading; the QPs'
paths are those of `./inv paths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError, Problem
from heddle.lab.queuestatus import rows_of_port
from heddle.predict.spread import ports_of
from heddle.runs import lookup
from heddle.runs.store import History

if TYPE_CHECKING:
    from heddle.dashboard.labwatch import OpenedLab
    from heddle.lab.lab import Lab
    from heddle.proof.verdict import FlowProof, PathsResult


def port_answer(opened: OpenedLab, ref: str) -> dict[str, Any]:
    """Rows and history of a port. InputError when the lab has no such port, or was not read yet."""
    number = next((at for at, port in enumerate(opened.source.ports, 1) if port.ref == ref), None)
    last = opened.last
    if number is None or last is None:
        why = "is not a port of this lab" if number is None else "was not read yet"
        raise InputError(Problem("", ref, why))
    port = opened.source.ports[number - 1]
    rows = rows_of_port(last.queues, number, port, opened.source.policies)
    sessions = last.slow.sessions.get(port.node) or {}
    return {
        "port": ref,
        "peer": port.peer_ref,
        "rate_bps": port.rate_bps,
        "mtu": port.mtu,
        "bgp": sessions.get(port.name),
        "down": bool(port.ref in last.slow.down or port.peer_ref in last.slow.down),
        "rows": [row.to_json() for row in rows],
        "history": opened.history.of(number),
    }


class PathsOfRuns:
    """The paths of the last run of each lab, computed once a run: the proof of many QPs takes a moment."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, str], dict[str, Any]]] = {}

    def of(self, lab: Lab, mark: object) -> dict[str, Any]:
        """The QPs of the last run. mark: changes when the lab is another one. InputError when there was no run."""
        run = History.of(lab).find()
        key = mark, run
        known = self._known.get(lab.name)
        if known is None or known[0] != key:
            known = key, paths_json(run, lookup.paths_of(lab, run))
            self._known[lab.name] = known
        return known[1]


def paths_json(run: str, found: PathsResult) -> dict[str, Any]:
    """The verdict and a row a QP: its ends, its path, or why it is not proven.

    counted: False for a QP that sent no packet; its path is then the one that it would take.
    """
    return {
        "run": run,
        "agree": found.agree,
        "mmr": found.mmr.bytes,
        "notes": list(found.notes),
        "qps": [_qp(found, proof) for proof in found.flows],
    }


def _qp(found: PathsResult, proof: FlowProof) -> dict[str, Any]:
    src, dst = found.nics_of(proof)
    flow = proof.flow
    return {
        "src": src, "dst": dst, "qpn": flow.qpn, "sport": flow.sport, "packets": proof.sent.packets,
        "path": list(proof.measured or proof.expected), "counted": bool(proof.measured), "why": proof.why,
        "ports": sorted({port for step in (proof.measured or proof.expected) for port in ports_of(step)}),
    }  # fmt: skip
