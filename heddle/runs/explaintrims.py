"""Where switches trimmed packets of a stored run, for the explanation of one of its flows."""

from __future__ import annotations

from collections.abc import Mapping

from heddle.base.tables import many
from heddle.fabric.model import Fabric
from heddle.proof.measure import passages, peers_of
from heddle.proof.verdict import PathsResult
from heddle.traffic.flow import Flow


def trims_of(fabric: Fabric, run: str, paths: PathsResult, flow: Flow) -> Mapping[str, str]:
    """`rtsw1:eth3` -> a sentence on its trims in a run: packets of all flows, and the bytes that this flow lost there.

    A port counts trims by class. What a flow lost is known between two switches, whose counters have its bytes.
    """
    peers, own = peers_of(fabric), dict[str, int]()
    for proof in paths.flows:
        if proof.sent.flow.key == flow.key:
            known = (each for each in passages(proof.sent, proof.seen, peers) if each.bytes_out is not None)
            own |= {each.ports[0]: each.cut for each in known if len(each.ports) == 1}
    return {
        port: f"run {run}: {port} trimmed {many(count, 'packet')}"
        + (f", {own[port]:,} bytes of this flow" if port in own else " of all flows")
        for port, count in paths.trimmed.items()
    }
