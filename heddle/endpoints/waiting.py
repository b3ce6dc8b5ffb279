"""Detect that a run has stopped, and describe what a rank waits for: the peer, the QPs, the last good PSNs.

In:  a plan, a rank, its Waits, and how far each receiving end has come (QpEnd.standing).
Out: text, and problems for the report of a run.
With a transport that never sends again, ranks may wait for ever, and a rank alone cannot tell a lost message from one
that waits for other ranks. So each worker reports when none of its NICs has sent or received a packet for a while, and
when they move again. The run has lost data when all workers are still at the same time (crew.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from heddle.base.problems import Problem
from heddle.endpoints.ranks import Waits
from heddle.traffic.plan import Plan

_NAMED: Final = 2  # QPs that the text names
_LOOKS: Final = 8  # in the time after which NICs count as still
NOT_SENT_AGAIN: Final = "use --transport rc, or ./inv queues to find what was dropped"


def qp_text(plan: Plan, rank: int, qpn: int) -> str:
    """`QP 0x12 to rank 2 on host3:eth1`: a queue pair of a rank, and its peer. `from` if the peer sends the data."""
    for q in plan.qps:
        for mine, number, word, peer in (
            (q.flow.src_rank, q.src_qpn, "to", q.flow.dst_rank),
            (q.flow.dst_rank, q.flow.qpn, "from", q.flow.src_rank),
        ):
            if (mine, number) == (rank, qpn):
                return f"QP {qpn:#x} {word} rank {peer} on {plan.endpoints[peer].nic}"
    return f"QP {qpn:#x}"


def waiting_text(plan: Plan, rank: int, waits: Waits, ends: Mapping[tuple[int, int], str]) -> str:
    """`waits for 2 of 6 messages, the first (step 4, message 1) from rank 0 on host1:eth1 (QP 0x1: last good PSN 0x2)`.

    ends: by (rank, QPN).
    """
    members = next(each for each in plan.communicators if rank in each)
    peer = plan.endpoints[members[waits.peer]]
    numbers = [q.flow.qpn for q in plan.qps if (q.flow.src_rank, q.flow.dst_rank) == (peer.rank, rank)]
    which = ", ".join(f"QP {number:#x}: {ends.get((rank, number), '')}" for number in numbers[:_NAMED])
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return (
        f"waits for {waits.missing} of {waits.messages} messages, the first (step {waits.key[0]}, message"
        f" {waits.key[1]}) from rank {peer.rank} on {peer.nic} ({which or 'inside the host'}{more})"
    )


def waiting_problem(plan: Plan, rank: int, waits: Waits, ends: Mapping[tuple[int, int], str], still: bool) -> Problem:
    """What a rank waits for. still: no packet moves any more, and the transport does not send packets again."""
    what, why = f"rank {rank} on {plan.endpoints[rank].nic}:", waiting_text(plan, rank, waits, ends)
    if not still:
        return Problem("", what, why)
    lost = f"packets were lost, and {plan.options.transport} does not send them again"
    return Problem("", what, f"{why}, but no packet moves any more: {lost}", NOT_SENT_AGAIN)


class Stillness:
    """Whether a number of packets stays the same for `patience_s` seconds."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._count = -1
        self._since = self._next = 0.0
        self.still = False

    def changed(self, now: float, count: Callable[[], int]) -> bool:
        """Look again, if it is time; True when `still` has changed. count: packets so far."""
        if now < self._next:
            return False
        self._next = now + self._patience_s / _LOOKS
        before, found = self.still, count()
        if found != self._count:
            self._count, self._since = found, now
        self.still = now - self._since >= self._patience_s
        return self.still != before
