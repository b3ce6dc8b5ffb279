"""Checks of routing, queues, links and IP against each other, on the built fabric.

In:  a Fabric; to check names in a fabric file, also its FabricSpec.
Out: Complaints: the dotted path of the wrong key, the reason, and a hint. `KeyPlaces` adds the file's lines.
This module names no level itself: a complaint takes the word from `Fabric.levels`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.problems import Problem
from heddle.fabric import bufferchecks
from heddle.fabric.complaint import Complaint
from heddle.fabric.linkrates import unknown
from heddle.fabric.policy import DEFAULT_BUCKETS, FIELDS

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.spec.schema import FabricSpec
    from heddle.spec.yamlfile import Document


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """The places of keys in a fabric file. spoilt: paths already reported as wrong. counts: the shape's own keys."""

    document: Document
    spoilt: Collection[str] = ()
    counts: Set[str] = frozenset()

    def problems(self, complaints: Iterable[Complaint]) -> Iterator[Problem]:
        """Complaints as problems, one per path; a complaint that depends on a wrong key is skipped."""
        wrong = set(self.spoilt)
        for each in complaints:
            given = {*each.given, *(self.counts if each.counts else ())}
            if each.path in wrong or given & wrong:
                continue
            wrong.add(each.path)
            trail = tuple(each.path.split("."))
            text = self.document.text(trail) if each.valued else ""
            what = f"{each.path}: {text}" if text else each.path
            yield Problem(self.document.where(trail), what, each.why, each.hint)


def complaints_about(fabric: Fabric) -> Iterator[Complaint]:
    """Parts of the policy that the fabric's ports and links cannot provide."""
    yield from _hashing(fabric)
    yield from _packets(fabric)
    yield from _links(fabric)
    yield from bufferchecks.complaints(fabric)


def complaints_of_names(spec: FabricSpec, fabric: Fabric) -> Iterator[Complaint]:
    """Names in the file that do not exist in the fabric."""
    for name in spec.link.exceptions:
        wrong = unknown(name, fabric)
        if wrong is not None:
            yield Complaint(f"link.exceptions.{name}", *wrong, counts=True)
    yield from bufferchecks.unknown_words(spec.queues.buffer.words, fabric, spec.synonyms)


def _hashing(fabric: Fabric) -> Iterator[Complaint]:
    policy, options = fabric.policy, fabric.policy.routing.hash
    if options.fields & FIELDS["flowlabel"] and policy.ip_version == 4:
        why = "has flowlabel, but IPv4 has no flow label"
        yield Complaint("routing.hash.fields", why, "remove it", ("family",))
    if not options.resilient:
        return
    most = max((fabric.uplinks_of(node) for node in fabric.switches), default=0)
    if options.buckets < most:
        why = f"is less than {most}, the next hops that share the buckets"
        hint = f"try {max(DEFAULT_BUCKETS, 2 * most)}"
        yield Complaint("routing.hash.buckets", why, hint, ("routing.resilient",), counts=True)


def _links(fabric: Fabric) -> Iterator[Complaint]:
    """Values of a link that do not fit together, where the delay may be that of the shape."""
    for level, fault in enumerate(fabric.policy.link_faults):
        key, why, hint = fault.complaint()
        if key:
            yield Complaint(f"link.{key}.{'fabric' if level else 'host'}", why, hint, ("link.delay", "link.length"))


def _packets(fabric: Fabric) -> Iterator[Complaint]:
    policy = fabric.policy
    need = policy.ib_mtu + policy.ip.overhead
    if policy.mtu < need:
        why = f"is below {need}: IB MTU {policy.ib_mtu} and {policy.ip.overhead} bytes of headers"
        hint = f"try mtu: {max(need, 4200)}, or a smaller roce.ib_mtu"
        yield Complaint("link.mtu", why, hint, ("roce.ib_mtu", "family"))
