"""Checks of routing, queues, buffers, links and IP against each other, on the built fabric.

In:  a Fabric; to check names in a fabric file, also its FabricSpec.
Out: Complaints: the dotted path of the wrong key, the reason, and a hint. `KeyPlaces` adds the file's lines.
This module names no level itself: a complaint takes the word from `Fabric.levels`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import HEADER, LARGEST_PFC_MTU, QUANTUM_BITS
from heddle.base.plugins import function
from heddle.base.problems import Problem, nearest
from heddle.base.units import format_duration, format_rate, round_down, round_up
from heddle.fabric.policy import buffer_bytes, too_small
from heddle.fabric.wiring import BACKEND
from heddle.spec.key import Complaint
from heddle.spec.routingpolicy import DEFAULT_BUCKETS, FIELDS

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.spec.schema import FabricSpec
    from heddle.spec.yamlfile import Document


Ports = tuple[tuple[int, int], ...]  # rate in bit/s and MTU of each
_HOST: Final = "host"
_ORDINALS: Final = ("no", "first", "second", "third", "fourth", "fifth")
_LINKS: Final = ("link.host", "link.fabric", "link.exceptions")
# The shortest pause that the agent repeats in time, at its half: measured on two busy cores at 100 Mb/s (queues.md).
_SHORTEST_PAUSE_NS: Final = 10**6
_SHARES: Final = ("queues.lossless", "queues.weights", "queues.reserve", "queues.pfc")
_NAME: Final = re.compile(r"([a-z]+)([1-9][0-9]*)(?::eth([1-9][0-9]*))?")


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
    yield from _buffers(fabric)


def complaints_of_names(spec: FabricSpec, fabric: Fabric) -> Iterator[Complaint]:
    """Names in the file that do not exist in the fabric."""
    for name in spec.link.exceptions:
        wrong = _unknown(name, fabric)
        if wrong is not None:
            yield Complaint(f"link.exceptions.{name}", *wrong, counts=True)
    yield from unknown_words(spec.queues.buffer.words, fabric, spec.synonyms)
    if spec.frontend is not None:
        yield from function("frontend-check", "frontend")(spec, spec.frontend, fabric)


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
            yield Complaint(
                f"link.{key}.{'host' if fabric.levels[level] is fabric.host_level else 'fabric'}",
                why,
                hint,
                ("link.delay", "link.length"),
            )


def _packets(fabric: Fabric) -> Iterator[Complaint]:
    policy = fabric.policy
    need = policy.ib_mtu + policy.ip.overhead
    if policy.mtu < need:
        why = f"is below {need}: IB MTU {policy.ib_mtu} and {policy.ip.overhead} bytes of headers"
        hint = f"try mtu: {max(need, 4200)}, or a smaller roce.ib_mtu"
        yield Complaint("link.mtu", why, hint, ("roce.ib_mtu", "family"))


def _unknown(name: str, fabric: Fabric) -> tuple[str, str] | None:
    """The reason that `name` is not a node or port of the fabric, and a hint; None when it is one."""
    node, _, port = name.partition(":")
    found = fabric.by_name.get(node)
    if found is not None and (port in {each.name for each in found.ports} or name == node):
        return None
    words = {level.word: level.title for level in fabric.levels}
    parts = _NAME.fullmatch(name)
    if parts is None or parts[1] not in words:
        low, *above = [*words][1:]
        return "is neither a node nor a port", f"write a node as {above[0] if above else low}2, a port as {low}1:eth3"
    word = parts[1]
    level = [*words].index(word)
    title = word if fabric.levels[level] is fabric.host_level else words[word]
    count = sum(each.level == level for each in fabric.nodes)
    if not count:
        return f"is not a node: the fabric has no {title}", ""
    if found is None:
        return "is not a node of this fabric", f"use {word}1 to {word}{count}"
    return f"is not a port: a {title} has {len(found.ports)} ports", f"use eth1 to eth{len(found.ports)}"


def _buffers(fabric: Fabric) -> Iterator[Complaint]:
    """Check queues against the rates and MTUs of links."""
    queues, backend = fabric.policy.queues, fabric.ports_of(BACKEND)
    mtu = max((port.mtu for port in backend), default=fabric.policy.mtu)
    if queues.buffer.host < 2 * (mtu + HEADER):
        why = f"is below two frames of {mtu + HEADER} bytes"
        yield Complaint("queues.buffer.host", why, "try 1MB", ("link.mtu", "queues.buffer"))
    yield from _absent(fabric)
    if queues.paused:
        yield from _pfc(fabric, mtu, max((port.rate_bps for port in backend), default=fabric.slowest_bps))
    kinds: dict[int, dict[Ports, str]] = {}  # level -> ports -> the first switch that has such
    for node in fabric.switches:
        ports = tuple((port.rate_bps, port.mtu) for port in node.ports)
        if ports:
            kinds.setdefault(node.level, {}).setdefault(ports, node.name)
    for level, switches in kinds.items():
        for ports, name in switches.items():
            yield from _budget(fabric, level, ports, name if len(switches) > 1 else fabric.levels[level].word)


def unknown_words(
    words: Iterable[str], fabric: Fabric, synonyms: Mapping[str, str] | None = None, network: str = BACKEND
) -> Iterator[Complaint]:
    """Keys of `queues.buffer` that are not a level of the network. synonyms: words of other tools for its levels."""
    legal = [*(level.word for level in fabric.switch_levels if level.network == network), _HOST]
    within = "" if network == BACKEND else f"{network}."
    for word in words:
        if word in legal:
            continue
        meant = (synonyms or {}).get(word.lower(), "")
        near = meant if meant in legal else nearest(word, legal)
        hint = f"did you mean {near}?" if near else f"allowed keys: {', '.join(legal)}"
        yield Complaint(f"{within}queues.buffer.{word}", "is not a key", hint, valued=False)


def _absent(fabric: Fabric) -> Iterator[Complaint]:
    """Sizes of levels without a node. One size for all switches is not an error."""
    buffer, there = fabric.policy.queues.buffer, {node.level for node in fabric.nodes}
    for number, level in enumerate(fabric.switch_levels, 1):
        if number not in there and buffer.at_level(number) not in ("auto", buffer.at_level(1)):
            why = f"has no effect without a {_ORDINALS[number]} tier"
            yield Complaint(f"queues.buffer.{level.word}", why, f"remove it, or set {level.word}", counts=True)


def _pfc(fabric: Fabric, mtu: int, fastest: int) -> Iterator[Complaint]:
    pfc, frame, slowest = fabric.policy.queues.pfc, mtu + HEADER, fabric.slowest_bps
    if mtu > LARGEST_PFC_MTU:
        why = f"is above {LARGEST_PFC_MTU}, the largest MTU that a closed gate can hold back"
        hint = f"try {LARGEST_PFC_MTU}, or queues.pfc.enabled: false"
        yield Complaint("link.mtu", why, hint, ("queues.pfc.enabled", "queues.lossless"))
    if pfc.xoff < frame:
        why = f"is below one frame of {frame} bytes: every frame would pause its sender"
        yield Complaint("queues.pfc.xoff", why, f"try {round_up(4 * frame)}", ("link.mtu", "queues.pfc.xon"))
    if pfc.headroom != "auto" and pfc.headroom < frame:
        why = f"is below one frame of {frame} bytes: a frame above Xoff is dropped, so its sender is never paused"
        yield Complaint("queues.pfc.headroom", why, f"try auto, or {round_up(2 * frame)}", ("link.mtu",))
    lasts = pfc.quanta_at(fastest) * QUANTUM_BITS * 10**9 // fastest
    if lasts < _SHORTEST_PAUSE_NS:
        last = f"of {QUANTUM_BITS} bits last {lasts / 10**6:g} ms on the fastest link ({format_rate(fastest)})"
        why = f"{last}: pauses below {_SHORTEST_PAUSE_NS / 10**6:g} ms end before they can be repeated"
        fit = -(-_SHORTEST_PAUSE_NS * fastest // (QUANTUM_BITS * 10**9))
        yield Complaint("queues.pfc.quanta", why, f"try {fit}, or auto", _LINKS, counts=True)
    lasts = pfc.quanta_at(slowest) * QUANTUM_BITS * 10**9 // slowest
    if pfc.watchdog.enabled and lasts >= pfc.watchdog.detect:
        detect = format_duration(pfc.watchdog.detect)
        last = f"of {QUANTUM_BITS} bits last {lasts / 10**6:g} ms on the slowest link ({format_rate(slowest)})"
        why = f"{last}, but the watchdog treats a pause of {detect} as a storm"
        fit = pfc.watchdog.detect * slowest // (4 * QUANTUM_BITS * 10**9)
        longer = format_duration(-(-2 * lasts // 10**8) * 10**8)
        hint = f"try {max(1, fit)}, auto, or watchdog.detect: {longer}"
        yield Complaint("queues.pfc.quanta", why, hint, ("queues.pfc.watchdog.detect", *_LINKS), counts=True)


def _budget(fabric: Fabric, number: int, ports: Ports, name: str) -> Iterator[Complaint]:
    """Check the shared part of a switch's buffer. name: the switch's, or its level's if all there have such ports."""
    level = fabric.levels[number]
    queues, within = fabric.policy.of(level.network).queues, "" if level.network == BACKEND else f"{level.network}."
    found, mtu = buffer_bytes(queues, number, ports, is_edge=level.is_edge), max(mtu for _, mtu in ports)
    if found.shared >= mtu + HEADER:
        return
    given = ("link.mtu", *_LINKS, *(within + path for path in _SHARES))
    same = len(set(queues.buffer.switches)) == 1
    path = f"{within}queues.buffer" if same else f"{within}queues.buffer.{level.word}"
    if queues.buffer.at_level(number) != "auto":
        why, hint = too_small(queues, name, len(ports), found, mtu)
        yield Complaint(path, why, hint, given, counts=True)
        return
    alike = Counter(map(queues.reserve_of, queues.numbers))
    size, count = max(alike.items(), key=lambda each: each[0] * each[1])
    bytes_of = size * count * len(ports)
    left = found.buffer - found.headroom - found.reserved + bytes_of
    each = f"x {count} classes x {len(ports)} ports of {name} = {bytes_of} bytes"
    why = f"{each} leaves less than one frame of {mtu + HEADER}: auto gives {left} in all"
    hint = f"try {round_down(left // 2 // count // len(ports))}, or set queues.buffer"
    key = "queues.reserve" if size == queues.reserve else "queues.pfc.reserve"
    yield Complaint(within + key, why, hint, (*given, path), counts=True)
