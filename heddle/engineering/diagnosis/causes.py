"""The causes that a diagnosis knows: one function and one line each.

A new cause is a function of a Case in states.py or symptoms.py, and its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from heddle.engineering.diagnosis import states, symptoms
from heddle.engineering.diagnosis.case import Case, CauseResult, Kind


@dataclass(frozen=True, slots=True)
class CauseCheck:
    """One cause. words: for a list of what was ruled out. judge: its function; or, where facts alone show it, the text
    for a lab without such a fact.

    nika: its name in the benchmark NIKA, or our own where NIKA has none. kind: of the resource that NIKA blames.
    fault: False for what load and hashing cause in a healthy fabric.
    """

    words: str
    judge: Callable[[Case], CauseResult] | str
    nika: str
    kind: Kind
    fault: bool = True

    def result(self, case: Case) -> CauseResult:
        """The findings of its function. What facts show is added by the diagnosis."""
        return states.without_facts(case, self.judge) if isinstance(self.judge, str) else self.judge(case)


# In the order in which they are reported: what explains others comes first.
CAUSES: Final[Mapping[str, CauseCheck]] = {
    "node-down": CauseCheck("node down", states.node_down, "frr_service_down", "node"),
    "link-down": CauseCheck("link down", states.link_down, "link_down", "link"),
    "link-flap": CauseCheck("link flap", states.link_flaps, "link_flap", "link"),
    "control-plane-dead": CauseCheck("control plane dead", "all daemons answer", "frr_service_down", "node"),
    "bgp-session-down": CauseCheck("BGP session down", "every session is established", "bgp_session_down", "interface"),
    "drained": CauseCheck("drained switch", "BGP drains no switch", "bgp_graceful_shutdown", "node"),
    "misrouting": CauseCheck("misrouting", "every route is a shortest path", "host_static_blackhole", "node"),
    "missing-next-hop": CauseCheck("missing next hop", "every prefix has its next hops", "missing_next_hop", "node"),
    "wrong-mtu": CauseCheck("wrong MTU", symptoms.wrong_mtu, "link_mtu_mismatch", "link"),
    "wrong-neighbour": CauseCheck("wrong neighbour", "all MACs are right", "arp_cache_poisoning", "interface"),
    "wrong-class": CauseCheck("wrong class of a DSCP", "every DSCP is in its class", "dscp_misconfiguration", "node"),
    "pause-agent": CauseCheck("PFC agent", "it runs", "pfc_agent_down", "node"),
    "wrong-queues": CauseCheck("wrong queues", "no port has others", "qdisc_misconfiguration", "interface"),
    "pfc-storm": CauseCheck("PFC storm", symptoms.pause_storm, "pfc_storm", "interface"),
    "slow-link": CauseCheck("slow link", symptoms.slow_link, "link_capacity_bottleneck", "link"),
    "slow-host": CauseCheck("slow host or NIC", symptoms.slow_host, "receiver_resource_contention", "node"),
    "bit-errors": CauseCheck("bit errors", symptoms.bit_errors, "link_packet_corruption", "link"),
    "link-lossy": CauseCheck("lossy link", symptoms.lossy_link, "silent_egress_packet_loss", "interface"),
    "wrong-threshold": CauseCheck("wrong threshold", states.wrong_threshold, "ecn_threshold_misconfiguration", "node"),
    "polarisation": CauseCheck("polarisation", states.polarisation, "ecmp_polarisation", "node"),
    "wrong-seed": CauseCheck("wrong hash seed", "every seed is as set last", "ecmp_seed_misconfiguration", "node"),
    "wrong-sysctl": CauseCheck("wrong sysctl", "every sysctl is as set", "sysctl_misconfiguration", "node"),
    "failed-check": CauseCheck("failed check", symptoms.failed_check, "failed_check", "node"),
    "lossy-class": CauseCheck("lossy class of data", states.lossy_class, "lossy_class", "node", fault=False),
    "incast": CauseCheck("incast", symptoms.incast, "incast_traffic_network_limitation", "interface", fault=False),
    "hash-collision": CauseCheck("hash collision", symptoms.collision, "ecmp_collision", "interface", fault=False),
    "host-cpu": CauseCheck("host CPU", symptoms.busy_machine, "host_cpu", "node", fault=False),
}  # fmt: skip
