"""Soft-RoCE as the stack of the hosts: a device on each NIC of a run, for the duration of the run.

A new device numbers its queue pairs from 17, so a plan knows the numbers, and with them the UDP source ports, before
anything starts. Therefore each run makes its devices again.
Help loads every transport, and this module with rxe. So only a run loads the loop and the counting programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.endpoints.hoststack import HostStack
from heddle.kernel import rdma
from heddle.traffic.plan import Plan

if TYPE_CHECKING:
    from heddle.endpoints.loops import NicLoop


@contextmanager
def rxe_devices(lab: str, ports: Sequence[tuple[str, str]], netns: Mapping[str, Path], rows: int) -> Iterator[None]:
    """Counting programs and a device on each NIC, for a with block. What an earlier, killed run left is removed.

    ports: (host, port), of the named lab. netns: by host. rows: flows to count at each NIC.
    """
    from heddle.switch import counters

    places = [(netns[host], port) for host, port in ports]
    spaces = list(dict.fromkeys(space for space, _ in places))
    rdma.remove_links(rdma.prefix_of(lab), spaces)
    try:
        counters.attach(lab, places, rows)
        rdma.add_links([(netns[host], rdma.link_name(lab, host, port), port) for host, port in ports])
        yield
    finally:
        rdma.remove_links(rdma.prefix_of(lab), spaces)
        counters.detach(lab, places)


class RxeStack(HostStack):
    """The RDMA stack of the hosts."""

    only_here = "soft-RoCE is made on this machine, not in the kernels of shards"
    shared = False

    def require(self) -> None:
        rdma.require()

    def ready(self, plan: Plan, netns: Mapping[str, Path]) -> AbstractContextManager[None]:
        return rxe_devices(plan.lab, [(each.host, each.port) for each in plan.endpoints], netns, 2 * len(plan.qps))

    def loop(self, plan: Plan, params: Any) -> NicLoop:
        from heddle.endpoints.rdma.verbsloop import VerbsLoop

        return VerbsLoop(plan)
