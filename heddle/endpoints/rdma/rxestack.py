"""Soft-RoCE as the stack of the hosts: a device on each NIC of a run, for the duration of the run.

A new device numbers its queue pairs from 17, so a plan knows the numbers, and with them the UDP source ports, before
anything starts. Therefore each run makes its devices again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heddle.endpoints.loops import NicLoop
from heddle.endpoints.rdma.verbsloop import VerbsLoop
from heddle.kernel import rdma
from heddle.switch import stackcounts
from heddle.traffic.plan import Plan


class RxeStack:
    """Implements heddle.endpoints.transports.protocol.HostStack."""

    def before_first(self, nic: str) -> int:
        """16 for every NIC."""
        return rdma.QPS_BEFORE_FIRST

    def require(self) -> None:
        """MachineError when this kernel cannot make soft-RoCE devices in namespaces."""
        rdma.require()

    @contextmanager
    def ready(self, plan: Plan, netns: Mapping[str, Path]) -> Iterator[None]:
        """Counting programs and a device on each NIC of the plan. What an earlier, killed run left is removed."""
        ports = [(netns[each.host], each.port) for each in plan.endpoints]
        names = [rdma.link_name(plan.lab, each.host, each.port) for each in plan.endpoints]
        spaces = list(dict.fromkeys(space for space, _ in ports))
        rdma.remove_links(rdma.prefix_of(plan.lab), spaces)
        try:
            stackcounts.attach(plan.lab, ports, 2 * len(plan.qps))
            rdma.add_links([(space, name, port) for (space, port), name in zip(ports, names, strict=True)])
            yield
        finally:
            rdma.remove_links(rdma.prefix_of(plan.lab), spaces)
            stackcounts.detach(plan.lab, ports)

    def loop(self, plan: Plan) -> NicLoop:
        """A loop over completion queues."""
        return VerbsLoop(plan)
