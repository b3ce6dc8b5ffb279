"""BGP sessions that are not established: both ends, their states, and the cause as kernels and daemons report it.

In:  the sessions that are missing (Blueprint.missing_sessions), and readings that may explain them.
Out: MissingSession. A cause is stated only where a reading shows it; otherwise it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from heddle.lab.daemons import ESTABLISHED, BgpPeer

NO_ANSWER: Final = "no answer"
NOT_CONFIGURED: Final = "not configured"
NOT_ASKED: Final = "not asked"  # a host that speaks BGP

# Switch -> its BGP neighbours; None when its bgpd does not answer.
AskPeers = Callable[[str], Mapping[str, BgpPeer] | None]


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """One end. port: empty for a session whose addresses belong to no port. peer: the other end as named by bgpd.

    state: of its BGP state machine (RFC 4271, 8.2.2), `no answer`, `not configured` or `not asked`.
    """

    node: str
    port: str
    peer: str
    state: str

    @property
    def ref(self) -> str:
        """`rtsw1:eth1`; the node alone where the session has no port."""
        return f"{self.node}:{self.port}" if self.port else self.node

    def text(self) -> str:
        """`rtsw1:eth1 (Active)`."""
        return f"{self.ref} ({self.state})"


@dataclass(frozen=True, slots=True)
class MissingSession:
    """A session that is not established at both ends. why: empty where the cause is not known."""

    a: SessionEnd
    b: SessionEnd
    why: str = ""

    def text(self) -> str:
        """`rtsw1:eth1 (Active) - ctsw1:eth1 (Idle): rtsw1:eth1 is down`."""
        return f"{self.a.text()} - {self.b.text()}: {self.why or 'the cause is not known'}"

    def to_json(self) -> dict[str, Any]:
        """`missing_sessions` of `status`."""
        ends = [{"port": end.ref, "peer": end.peer, "state": end.state} for end in (self.a, self.b)]
        return {"a": ends[0], "b": ends[1], "why": self.why}


@dataclass(frozen=True, slots=True)
class SessionCauses:
    """Readings that may explain a missing session. stopped: nodes that are not running; down: ports without carrier ->
    True if taken down at this end; silent: switch -> daemons that do not answer.
    """

    stopped: Collection[str]
    down: Mapping[str, bool]
    silent: Mapping[str, Collection[str]]


def explained(missing: Iterable[MissingSession], seen: SessionCauses, ask: AskPeers) -> tuple[MissingSession, ...]:
    """Add the causes. Each daemon is asked at most once, and only where kernels show no cause."""
    answers: dict[str, Mapping[str, BgpPeer]] = {}

    def peer_of(end: SessionEnd) -> BgpPeer | None:
        if end.node not in answers:
            answers[end.node] = ask(end.node) or {}
        return answers[end.node].get(end.peer)

    return tuple(replace(each, why=_simple(each, seen) or _by_bgp(each, peer_of)) for each in missing)


def _simple(each: MissingSession, seen: SessionCauses) -> str:
    """A cause found without asking bgpd: a node, a daemon or a link that is down."""
    ends = (each.a, each.b)
    for end in ends:
        if end.node in seen.stopped:
            return f"{end.node} is not running"
    dead = [f"{daemon} of {end.node}" for end in ends for daemon in sorted(seen.silent.get(end.node, ()))]
    if dead:
        return f"{' and '.join(dead)} {'does' if len(dead) == 1 else 'do'} not answer"
    down = [end.ref for end in ends if end.ref in seen.down]
    taken = [ref for ref in down if seen.down[ref]]
    if down:
        return f"{' and '.join(taken or down)} {'is' if len(taken or down) == 1 else 'are'} down"
    return ""


def _by_bgp(each: MissingSession, peer_of: Callable[[SessionEnd], BgpPeer | None]) -> str:
    """A cause reported by the two bgpds."""
    ends = (each.a, each.b)
    for end, other in ((each.a, each.b), (each.b, each.a)):
        if end.state == NOT_CONFIGURED:
            return f"bgpd of {end.node} has no neighbour for {other.ref}"
    peers = [peer_of(end) for end in ends]
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.shut:
            return f"it is shut down at {end.node} (neighbor {end.peer} shutdown)"
    mine, theirs = peers
    if mine is not None and theirs is not None:
        for end, near, far, there in ((each.a, mine, theirs, each.b), (each.b, theirs, mine, each.a)):
            if near.remote_as and far.local_as and near.remote_as != far.local_as:
                return f"AS mismatch: {end.node} expects AS {near.remote_as}, {there.node} has AS {far.local_as}"
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.notification:
            return f"last NOTIFICATION at {end.node}: {peer.notification}"
    for end, peer in zip(ends, peers, strict=True):
        if peer is not None and peer.reset:
            return f"last reset at {end.node}: {peer.reset}"
    return ""


def missing_of(pairs: Iterable[tuple[SessionEnd, SessionEnd]]) -> list[MissingSession]:
    """Sessions that an end reports as not established, without causes. An end that is not asked does not count."""
    return [MissingSession(*pair) for pair in pairs if {end.state for end in pair} - {ESTABLISHED, NOT_ASKED}]
