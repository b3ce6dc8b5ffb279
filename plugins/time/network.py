"""The flows of jobs on the links of a fabric: which ports each flow crosses, as the prediction of paths has them.

In:  a fabric's Wires, the Traffic of jobs, the hashing mode, ports and nodes that are down or drained.
Out: Network: an Incidence of flows and ports. The flows of a job are those of its connections, in their order.
A sprayed flow, and one of flowlets, has an even share on every port that it may take: the mean of its packets, not
their bursts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I32, I64, Bools
from heddle.base.problems import InputError, Problem
from heddle.fabric.hashmodes import EXACT_MATCH, SPREADING, TE
from heddle.host.capacity import free_bytes
from heddle.host.preflight import frr_release
from heddle.offline.forecast import engineered
from heddle.offline.loads import FlowBatch, Loads, Nics, Scenario, Traffic, nics_of
from heddle.offline.wires import Trouble, Wires, compared, forwarding_of, rule_of, rules_of, steering_of
from heddle.wire.layout import LAYOUTS
from heddle_plugins.time.maxmin import Incidence

_ROW_BYTES: Final = 48  # of an Incidence, and of sorting it


@dataclass(frozen=True)
class Network:
    """Flows on ports. arrives: (flows,), whether a flow has a path. first: the first flow of each job."""

    wires: Wires
    traffic: tuple[Traffic, ...]
    nics: tuple[Nics, ...]
    paths: Incidence
    arrives: Bools
    mode: str
    dead: frozenset[str] = frozenset()

    @cached_property
    def first(self) -> I64:
        """(jobs + 1,): the number of each job's first flow."""
        return np.cumsum([0, *(each.connections.flows for each in self.traffic)])

    @cached_property
    def capacity(self) -> F64:
        """(ports,): bit/s, 0 for ports that are down."""
        down = [self.wires.id_of[name] for name in self.dead]
        found = self.wires.rate.copy()
        found[down] = 0.0
        return found

    @property
    def packet_bits(self) -> float:
        """Of a full packet on the wire."""
        policy = self.wires.fabric.policy
        return 8.0 * (policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes)

    def doubled(self, ports: I32 | I64) -> F64:
        """(ports,): 2 for these ports and those at the other ends of their links, 1 for others."""
        found = np.ones(len(self.wires.ports))
        found[np.union1d(ports, self.wires.other[ports])] = 2.0
        return found


class Router:
    """Routes of a fabric, for the traffic of any jobs. mode: instead of the fabric's."""

    def __init__(self, wires: Wires, mode: str | None = None, trouble: Trouble | None = None) -> None:
        policy = wires.fabric.policy
        self._wires, self._trouble, self.mode = wires, trouble or Trouble(), mode or policy.routing.ecmp
        release = frr_release() if policy.routing.ucmp else None
        before = forwarding_of(wires, None, release)
        self._after = forwarding_of(wires, self._trouble, release) if self._trouble else before
        self._steering = steering_of(wires, before)

    def network(self, traffic: Sequence[Traffic]) -> Network:
        """Route all flows of some jobs. InputError where their paths need more memory than is free."""
        wires, policy = self._wires, self._wires.fabric.policy
        jobs = [(each, nics_of(wires, each, self._trouble.dead)) for each in traffic]
        steering = self._steering
        if self.mode == TE:
            rule = rule_of(policy, EXACT_MATCH)
            steering = engineered(wires, jobs, self._after, steering)
        else:
            rule = rule_of(policy, self.mode if self.mode in SPREADING else compared(self.mode)[0])
        scenario = Scenario(self.mode, self._after, rules_of(wires, rule, steering, wires.seeds))
        found, arrives, rows = [], [], 0
        for each, nics in jobs:
            for part in each.connections.batches():
                paths, there = _routed(wires, FlowBatch(wires, each, nics, part), nics, scenario)
                found.append(paths)
                arrives.append(there)
                rows += len(paths.flow)
                if rows * _ROW_BYTES > free_bytes():
                    many = sum(each.connections.flows for each in traffic)
                    why = f"take paths that need more than {rows * _ROW_BYTES / 1e9:.1f} GB, which is more than is free"
                    hint = "use fewer QPs or ranks, or a mode in which a flow has one path"
                    raise InputError(Problem("", f"{many:,} flows", why, hint))
        return Network(
            wires, tuple(traffic), tuple(nics for _, nics in jobs), Incidence.joined(found), np.concatenate(arrives),
            self.mode, self._trouble.dead,
        )  # fmt: skip


def _routed(wires: Wires, batch: FlowBatch, nics: Nics, scenario: Scenario) -> tuple[Incidence, Bools]:
    """The rows of a batch: its NIC's port, those of switches, the port to the other NIC."""
    count, ports = len(batch.src), len(wires.ports)
    hops, arrives = batch.go(scenario, Loads(np.zeros(ports), np.zeros(ports), np.zeros(ports)))
    every = np.arange(count, dtype=np.int32)
    flow = np.concatenate([every, *(step.flow for step in hops.steps), every])
    link = np.concatenate([nics.up[batch.src], *(step.port for step in hops.steps), nics.down[batch.dst]])
    share = np.concatenate([np.ones(count), *(step.share for step in hops.steps), np.ones(count)])
    on = arrives[flow]
    found = Incidence.of(flow[on], link[on], share[on], count, ports)
    return replace(found, links=ports), arrives
