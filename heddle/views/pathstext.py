"""Paths for people: verdict, how the links were used, and the QPs. Plain text of at most 100 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from heddle.predict.spread import spreads
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.proof.linkuse import LinkUse
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle.runs.moved import Now

_BAR: Final = 30
_BARS: Final = "share of the busiest, by time"
_HEADING: Final = f"{{:<15}} {'flows':>6} {'packets':>10} {'bytes':>15} {'seconds':>9} {'use':>5}  {_BARS}"
_PORTS: Final = 8  # of each other direction
_ROWS: Final = 16
_WHO: Final = {
    "kernel": "by the kernels of the switches",
    "program": "by the programs of the switches",
    "packet": "by packets through a router of the same hash",
    "route": "spread over all next hops of the route",
    "arithmetic": "by arithmetic that the prediction shares",
}
_MOVED: Final = 8


def paths_text(result: PathsResult, rows: int = _ROWS) -> str:
    """Verdict, bars of links, then QPs: at most `rows` that are proven and as many that are not, these first."""
    return "\n".join(
        [
            *_verdict(result),
            "",
            *uplinks(result),
            *_other_levels(result),
            "",
            *_entropy(result),
            "",
            *_flows(result, rows),
        ]
    )


def now_text(now: Now) -> str:
    """How many QPs of the last run moved, where to, and the paths as they are now."""
    rows = [
        f"  {proof.flow.src} to {proof.flow.dst}, QP {proof.flow.qpn}: {' '.join(was)} -> "
        + (" ".join(proof.foretold) or "nowhere")
        for proof, was in zip(now.result.flows, now.was, strict=True)
        if not proof.spread and not spreads(was) and proof.foretold != was
    ]
    more = [f"  and {len(rows) - _MOVED} more: --format json lists all"] if len(rows) > _MOVED else []
    return "\n".join([now.moved.text(), *rows[:_MOVED], *more, "", paths_text(now.result)])


def _verdict(result: PathsResult) -> list[str]:
    total = len(result.flows)
    wrong = sum(1 for proof in result.flows if proof.why)
    if result.agree:
        lines = [f"{result.said} agree on the paths of all {total} QPs"]
    elif wrong:
        lines = [f"NOT PROVEN: {result.said} do not agree on {wrong} of {total} QPs"]
    else:  # the notes say why
        lines = [f"NOT PROVEN: the paths of {total} QPs"]
    return lines + [
        line for note in (*_delivery(result), *_choices(result), *result.notes) for line in _wrapped(f"  {note}")
    ]


def _delivery(result: PathsResult) -> list[str]:
    """What the NICs took beside what the last ports counted."""
    found = result.delivery
    if found is None or not found.qps:
        return []
    if found.received is None:
        return [f"the last ports counted {found.counted:,} packets; what the receiving NICs took is not known"]
    return [f"the receiving NICs took {found.received:,} of the {found.counted:,} packets that the last ports counted"]


def _choices(result: PathsResult) -> list[str]:
    """Who made the oracle's choices: what rests on the prediction's own arithmetic is named."""
    said = [f"{result.choices[who]:,} {words}" for who, words in _WHO.items() if result.choices.get(who)]
    return [f"the oracle's choices: {', '.join(said)}"] if said else []


def uplinks(result: PathsResult) -> list[str]:
    """A bar for each uplink of a leaf: the time of its bytes, or flows where nothing was sent yet; then the MMR."""
    links = [link for link in result.links if link.uplink]
    if not links:
        return ["no switch has uplinks: a path is one port"]
    over = result.uplinks
    count, title = len(over.switches), links[0].direction.partition(" to ")[0] or "switch"
    ranks = f"of {count} {title}{'' if count == 1 else 's'} with ranks" + (
        f"; {over.left_out} without ranks are left out" if over.left_out else ""
    )
    return [
        _HEADING.format("uplink"), *_bars(links, _most(result.links)),
        *_wrapped(
            f"MMR (max/mean over {len(over.links)} uplinks {ranks}): "
            f"flows {_ratio(result.mmr.flows)}, bytes {_ratio(result.mmr.bytes)}"
        ),
    ]  # fmt: skip


def _other_levels(result: PathsResult) -> list[str]:
    """The busiest links of every other direction between two levels, by the same measure."""
    most = _most(result.links)
    directions: dict[str, list[LinkUse]] = {}
    for link in result.links:
        if not link.uplink:
            directions.setdefault(link.direction, []).append(link)
    lines = []
    for direction, links in directions.items():
        used = sorted((link for link in links if _measure(link)), key=lambda link: -_measure(link))
        if used:
            more = f", the busiest {_PORTS} of {len(used)} used" if len(used) > _PORTS else f", {len(used)} used"
            lines += ["", _HEADING.format(direction)[: -len(_BARS)] + f"{len(links)} links{more}"]
            lines += _bars(used[:_PORTS], most)
    return lines


def _measure(link: LinkUse) -> float:
    """What bars compare: the time of its bytes, or flows where nothing was sent yet."""
    return link.seconds or (0.0 if link.bytes else float(link.flows))


def _most(links: Sequence[LinkUse]) -> float:
    timed = max((link.seconds for link in links), default=0.0)
    return timed or float(max((link.flows for link in links), default=0))


def _bars(links: Sequence[LinkUse], most: float) -> list[str]:
    timed = any(link.bytes for link in links)
    lines = []
    for link in links:
        amount = link.seconds if timed else float(link.flows)
        bar = "█" * round(_BAR * amount / most) if most else ""
        used = "-" if link.utilisation is None else f"{link.utilisation:.0%}"
        counts = f"{link.flows:>6} {link.packets:>10,} {link.bytes:>15,}"
        lines.append(f"{link.port:<15} {counts} {link.seconds:>9.3f} {used:>5}  {bar}".rstrip())
    return lines


def _entropy(result: PathsResult) -> list[str]:
    """How many of the QPs a hash of 5-tuples can tell apart."""
    found = result.entropy
    if not found.flows:
        return []
    most = math.log2(found.flows)
    return [f"5-tuples: {found.distinct:,} distinct of {found.flows:,}, entropy {found.bits:.2f} of {most:.2f} bits"]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _flows(result: PathsResult, rows: int) -> list[str]:
    wrong = [proof for proof in result.flows if proof.why]
    right = sorted((p for p in result.flows if not p.why), key=lambda p: -len(p.foretold))  # far ones first
    lines = [f"{'from':<9} {'to':<9} {'QPN':>8} {'sport':>5} {'packets':>9}  path"] if result.flows else []
    for proof in wrong[:rows]:
        lines += _disagreement(proof)
    for proof in right[:rows]:
        lines += _wrapped(_row(proof, " ".join(proof.measured or proof.foretold)))
    hidden = len(wrong[rows:]) + len(right[rows:])
    if hidden:
        lines.append(f"and {hidden} more: --format json lists all")
    return lines


def _row(proof: FlowProof, rest: str) -> str:
    f = proof.flow
    return f"{f.src:<9} {f.dst:<9} {f.qpn:>8} {f.sport:>5} {proof.sent.packets:>9,}  {rest}".rstrip()


def _disagreement(proof: FlowProof) -> list[str]:
    paths = [("oracle", proof.oracle), ("measured", proof.measured)]
    if proof.predicted is not None:
        paths.insert(0, ("predicted", proof.predicted))
    taken = [] if proof.seen.received is None else [f"NIC {proof.seen.received}"]
    counts = ", ".join([*(str(n) for n in proof.counted), *taken])
    counted = f" ({counts} packets)" if proof.counted else ""
    return [
        *_wrapped(_row(proof, proof.why), "  "),
        *(
            line
            for name, path in paths
            for line in _wrapped(f"  {name:<9} {' '.join(path) or '-'}{counted if name == 'measured' else ''}")
        ),
    ]


def _wrapped(line: str, indent: str = "    ") -> list[str]:
    lines: list[str] = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", len(indent) + 1, WIDTH)
        cut = cut if cut > len(indent) else WIDTH
        lines.append(line[:cut])
        line = indent + line[cut:].lstrip()
    return [*lines, line]
