"""Convert a fabric file's keys about routing, queues, scale and IP to the fabric's policy.

In:  a FabricSpec, and the shape's levels. Out: Policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.fabric.linkfault import LinkFault
from heddle.fabric.policy import (
    FIELDS,
    BufferPolicy,
    ClassCurve,
    EcnPolicy,
    HashOptions,
    PfcPolicy,
    Policy,
    QueuePolicy,
    RoutingPolicy,
    Udf,
    WatchdogPolicy,
)
from heddle.spec.linkspec import delay_of_length

if TYPE_CHECKING:
    from heddle.fabric.wiring import Level
    from heddle.spec.queuespec import QueuesSpec
    from heddle.spec.routingspec import RoutingSpec
    from heddle.spec.schema import FabricSpec, LinkSpec


def policy_of(spec: FabricSpec, levels: Sequence[Level]) -> Policy:
    """The policy of a spec. levels: of the shape, hosts first."""
    words = [level.word for level in levels[1:]]
    return Policy(
        ip=spec.ip,
        pool=spec.addressing.network,
        k=spec.k,
        mtu=spec.link.mtu,
        ib_mtu=spec.roce.ib_mtu,
        routing=routing_policy(spec.routing),
        queues=queue_policy(spec.queues, words),
        delays=link_delays(spec.link, levels),
        link_faults=link_faults(spec.link, levels),
    )


def link_delays(link: LinkSpec, levels: Sequence[Level]) -> tuple[int, ...]:
    """`link.delay` or `link.length` of a fabric file, by level; empty if no link has a delay."""
    delay, cable = link.delay, link.length
    host, fabric = delay_of_length(cable.host) or delay.host, delay_of_length(cable.fabric) or delay.fabric
    given = (host, *[fabric] * (len(levels) - 2))
    found = tuple(level.uplink_ns if ns == "shape" else ns for level, ns in zip(levels, given, strict=False))
    return found if any(found) else ()


def link_faults(link: LinkSpec, levels: Sequence[Level]) -> tuple[LinkFault, ...]:
    """What links do to packets, by level; empty if they do nothing. With `delay_at: link` this includes the delay."""
    delays = link_delays(link, levels) if link.delay_at == "link" else ()
    found = []
    for level in range(len(levels) - 1):
        word = "fabric" if level else "host"
        found.append(
            LinkFault(
                delay_ns=delays[level] if level < len(delays) else 0,
                jitter_ns=getattr(link.jitter, word),
                loss=getattr(link.loss, word),
                corrupt=getattr(link.corrupt, word),
                duplicate=getattr(link.duplicate, word),
                reorder=getattr(link.reorder, word),
            )
        )
    return tuple(found) if any(found) else ()


def routing_policy(routing: RoutingSpec) -> RoutingPolicy:
    """`routing` of a fabric file."""
    chosen = routing.hash
    options = HashOptions(
        policy=chosen.policy,
        fields=sum(FIELDS[name] for name in chosen.fields),
        udf=Udf(chosen.udf.base, chosen.udf.offset, chosen.udf.bytes),
        gap_ns=chosen.gap,
        first=chosen.first,
        choice=chosen.choice,
        resilient=routing.resilient,
        buckets=chosen.buckets,
    )
    return RoutingPolicy(routing.ecmp, routing.seed, options, routing.ucmp)


def queue_policy(queues: QueuesSpec, words: Sequence[str]) -> QueuePolicy:
    """`queues` of a fabric file. words: of the levels of switches, from the leaves up."""
    ecn, pfc, watchdog = queues.ecn, queues.pfc, queues.pfc.watchdog
    return QueuePolicy(
        lossless=tuple(queues.lossless),
        control=queues.control,
        best_effort=queues.best_effort,
        weights={int(number): weight for number, weight in queues.weights.items()},
        dscp={int(dscp): number for dscp, number in queues.dscp.items()},
        ecn=EcnPolicy(
            enabled=ecn.enabled,
            kmin=ecn.kmin,
            kmax=ecn.kmax,
            pmax=ecn.pmax,
            at=ecn.at,
            marker=ecn.marker,
            classes={int(number): ClassCurve(own.kmin, own.kmax, own.pmax) for number, own in ecn.classes.items()},
        ),
        pfc=PfcPolicy(
            enabled=pfc.enabled,
            xoff=pfc.xoff,
            xon=pfc.xon,
            quanta=pfc.quanta,
            reaction=pfc.reaction,
            headroom=pfc.headroom,
            watchdog=WatchdogPolicy(watchdog.enabled, watchdog.detect, watchdog.restore, watchdog.action),
        ),
        buffer=BufferPolicy(queues.buffer.host, tuple(queues.buffer.size(word) for word in words)),
        reserve=queues.reserve,
        alpha=queues.alpha,
        scheduler=queues.scheduler,
        burst=queues.burst,
    )
