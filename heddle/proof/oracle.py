"""The oracle: kernel lookups hop by hop, without sending a packet over the fabric.

In:  a fabric, the handles of its switches, and flows.
Out: Answers: for each flow the ordered egress ports, from its source's leaf to the port of its destination host; where
     packets of one flow are spread, all ports of that step in one word (walk.py). For a route to a bridge with an
     address, the port that the kernel's neighbour table and the bridge's table name (netlink.py). And the source of the
     choices:

`kernel`: if the kernel hashes, RTM_GETROUTE for the flow's 5-tuple and ingress port (`ip route get ... iif`). If the
    BPF program sets a hash, it is run on the flow's header (BPF_PROG_TEST_RUN, on the switch's own maps). Then
    RTM_GETROUTE is called for 5-tuples with nearly the same hash (standin.py).
`program`: the program steers. The same run; in it the program looks up the port in the kernel (bpf_fib_lookup).
`packet`: IPv6 with policy 3. Packets through a router that is made for this lookup (selftest.py).
`route`: packets are spread. All live next hops of the kernel's route (RTM_F_FIB_MATCH); there is no choice.
`arithmetic`: the program sets a hash, but the kernel's own seed is not known, or no 5-tuple is near enough. Thresholds
    over the next hops of the kernel's route: the same formula as in the prediction.

Shared with the prediction: the links of the fabric, the mode and policy read from each switch (SwitchHashing: they
decide which lookup is used, not its result), names of ports, the word of a step (walk.py), the number of buckets of a
resilient next-hop group (fib.py), and `kernel_hash`, with which standin.py finds 5-tuples. The prediction uses
`kernel_hash` only where no program sets a hash; there the oracle does not use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.kernel.handle import NodeHandle
from heddle.lab.spread import spread, union
from heddle.predict.walk import MAX_HOPS, element
from heddle.proof.lookups import Chooser, FlowArrival, Ports, SwitchLookups
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """paths: of each flow, in their order. choices: source of the choice -> number of hops over all flows."""

    paths: tuple[Path, ...]
    choices: Mapping[str, int]


class OracleLab(Protocol):
    """The part of a lab that lookups need."""

    @property
    def fabric(self) -> Fabric:
        """The lab's fabric."""

    def handles(self) -> Mapping[str, NodeHandle]:
        """The handle of every node."""


def ask(lab: OracleLab, hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]) -> Answers:
    """The path of every flow; one batch of lookups per switch and tier.

    A path ends early where a kernel has no route. CheckError for an unknown mode.
    """
    fabric = lab.fabric
    peers: dict[str, Port] = {port.ref: port for node in fabric.nodes for port in node.ports}
    paths: list[list[str]] = [[] for _ in flows]
    choices: Counter[str] = Counter()
    here: dict[str, dict[int, FlowArrival]] = {}
    for row, flow in enumerate(flows):
        switch, _, port = flow.first_hop.partition(":")
        here.setdefault(switch, {})[row] = FlowArrival(row, port, 0)
    for hops in range(1, MAX_HOPS + 1):
        there: dict[str, dict[int, FlowArrival]] = {}
        taken: dict[int, list[str]] = {}
        asked = {switch: (hashing[switch], list(found.values())) for switch, found in here.items()}
        answers = at_switches(lab, asked, {row: flows[row] for found in here.values() for row in found})
        for switch, found in here.items():
            for arrival, (ports, chooser) in zip(found.values(), answers[switch], strict=True):
                choices[chooser] += 1
                for out in ports:
                    taken.setdefault(arrival.row, []).append(f"{switch}:{out}")
                    link = peers.get(f"{switch}:{out}")
                    if link is not None and fabric.by_name[link.peer_node].role is Role.SWITCH:
                        on = there.setdefault(link.peer_node, {})
                        on.setdefault(arrival.row, FlowArrival(arrival.row, link.peer_port, hops))
        for row, refs in taken.items():
            paths[row].append(element(_in_order(fabric, refs)))
        here = there
    return Answers(tuple(tuple(path) for path in paths), dict(choices))


@spread(union, nodes=lambda asked, _: asked)
def at_switches(
    lab: OracleLab, asked: Mapping[str, tuple[SwitchHashing, Sequence[FlowArrival]]], flows: Mapping[int, Flow]
) -> dict[str, list[tuple[Ports, Chooser]]]:
    """Switch -> the egress ports of each arrival there, and the source of the choice. flows: by the arrivals' rows."""
    fabric, handles = lab.fabric, lab.handles()
    return {
        switch: SwitchLookups(fabric, handles[switch], rule, flows).ask(arrivals)
        for switch, (rule, arrivals) in asked.items()
        if switch in handles
    }


def ask_one(lab: OracleLab, switch: str, hashing: SwitchHashing, flow: Flow, arrives: str, hops: int = 0) -> Ports:
    """The egress ports of a flow at one switch. arrives: the ingress port; hops: the number of switches before."""
    return at_switches(lab, {switch: (hashing, [FlowArrival(0, arrives, hops)])}, {0: flow})[switch][0][0]


def _in_order(fabric: Fabric, refs: Sequence[str]) -> list[str]:
    """Ports in the order of the fabric's switches; ports of one switch in its kernel's order."""
    if len(refs) == 1:
        return list(refs)
    places = {switch.name: at for at, switch in enumerate(fabric.switches)}
    return sorted(refs, key=lambda ref: places[ref.partition(":")[0]])
