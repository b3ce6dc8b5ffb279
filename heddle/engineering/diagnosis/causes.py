"""The causes that a diagnosis knows: one function and one line each.

A new cause is a function of a Case in states.py or symptoms.py, and its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from heddle.engineering.diagnosis import states, symptoms
from heddle.engineering.diagnosis.case import Case
from heddle.engineering.diagnosis.finding import CauseResult, Kind


@dataclass(frozen=True, slots=True)
class CauseCheck:
    """One cause. words: for a list of what was ruled out. judge: its function.

    nika: its name in the benchmark NIKA, or our own where NIKA has none. kind: of the resource that NIKA blames.
    fault: False for what load and hashing cause in a healthy fabric.
    """

    words: str
    judge: Callable[[Case], CauseResult]
    nika: str
    kind: Kind
    fault: bool = True


# In the order in which they are reported: what explains others comes first.
CAUSES: Final[Mapping[str, CauseCheck]] = {
    "node-down": CauseCheck("node down", states.node_down, "frr_service_down", "node"),
    "link-down": CauseCheck("link down", states.link_down, "link_down", "link"),
    "link-flap": CauseCheck("link flap", states.link_flaps, "link_flap", "link"),
    "control-plane-dead": CauseCheck("control plane dead", states.control_plane, "frr_service_down", "node"),
    "bgp-session-down": CauseCheck("BGP session down", states.bgp_session, "bgp_session_down", "interface"),
    "drained": CauseCheck("drained switch", states.drained, "bgp_graceful_shutdown", "node"),
    "misrouting": CauseCheck("misrouting", states.misrouting, "host_static_blackhole", "node"),
    "missing-next-hop": CauseCheck(
        "missing next hop", states.shown_by_facts("every prefix has all next hops that its sessions give"),
        "missing_next_hop", "node",
    ),
    "wrong-mtu": CauseCheck("wrong MTU", symptoms.wrong_mtu, "link_mtu_mismatch", "link"),
    "wrong-neighbour": CauseCheck(
        "wrong neighbour", states.shown_by_facts("every neighbour entry has the MAC of the other end"),
        "arp_cache_poisoning", "interface",
    ),
    "wrong-class": CauseCheck(
        "wrong class of a DSCP", states.shown_by_facts("every DSCP maps to the class of the fabric file"),
        "dscp_misconfiguration", "node",
    ),
    "pause-agent": CauseCheck(
        "PFC agent", states.shown_by_facts("the agent and its keeper run"), "pfc_agent_down", "node",
    ),
    "wrong-queues": CauseCheck(
        "wrong queues or programs", states.shown_by_facts("every port has its queues and programs"),
        "qdisc_misconfiguration", "interface",
    ),
    "pfc-storm": CauseCheck("PFC storm", symptoms.pause_storm, "pfc_storm", "interface"),
    "slow-link": CauseCheck("slow link", symptoms.slow_link, "link_capacity_bottleneck", "link"),
    "slow-host": CauseCheck("slow host or NIC", symptoms.slow_host, "receiver_resource_contention", "node"),
    "bit-errors": CauseCheck("bit errors", symptoms.bit_errors, "link_packet_corruption", "link"),
    "link-lossy": CauseCheck("lossy link", symptoms.lossy_link, "silent_egress_packet_loss", "interface"),
    "wrong-threshold": CauseCheck("wrong threshold", states.wrong_threshold, "ecn_threshold_misconfiguration", "node"),
    "wrong-seed": CauseCheck("wrong hash seed", states.wrong_seed, "ecmp_seed_misconfiguration", "node"),
    "polarisation": CauseCheck("polarisation", states.polarisation, "ecmp_polarisation", "node"),
    "wrong-hashing": CauseCheck(
        "wrong hashing", states.shown_by_facts("every switch hashes as set last"), "ecmp_misconfiguration", "node",
    ),
    "wrong-sysctl": CauseCheck(
        "wrong sysctl", states.shown_by_facts("every sysctl has the value of the topology"),
        "sysctl_misconfiguration", "node",
    ),
    "failed-check": CauseCheck("failed check", symptoms.failed_check, "failed_check", "node"),
    "lossy-class": CauseCheck("lossy class of data", states.lossy_class, "lossy_class", "node", fault=False),
    "incast": CauseCheck("incast", symptoms.incast, "incast_traffic_network_limitation", "interface", fault=False),
    "hash-collision": CauseCheck("hash collision", symptoms.collision, "ecmp_collision", "interface", fault=False),
    "host-cpu": CauseCheck("host CPU", symptoms.busy_machine, "host_cpu", "node", fault=False),
}  # fmt: skip
