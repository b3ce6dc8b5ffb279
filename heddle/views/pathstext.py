"""Paths as text of at most 100 columns: verdict, link utilization, QPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.predict.walk import spreads
from heddle.proof.selection import QpSelection
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.proof.linkuse import LinkUse
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle.runs.moved import Now

_BAR: Final = 30
_BARS: Final = "share of the busiest, by time"
_HEADING: Final = f"{{:<15}} {'flows':>6} {'packets':>10} {'bytes':>15} {'seconds':>9} {'util':>5}  {_BARS}"
_PORTS: Final = 8  # rows of each direction other than uplinks
_ROWS: Final = 16
_END: Final = 9  # least width of a host's name
_CHOICES: Final = {
    "kernel": "by the switches' kernels",
    "program": "by the switches' BPF programs",
    "packet": "by packets through a router with the same hash",
    "route": "spread over all next hops of the route",
    "arithmetic": "by the same arithmetic as the prediction",
}
_MOVED: Final = 8


def paths_text(result: PathsResult, chosen: QpSelection | None = None, rows: int | None = _ROWS) -> str:
    """Verdict, bars of links, then QPs: at most `rows` that are not proven, then at most `rows` that are.

    chosen: show the verdict and the QPs of this selection, without link utilization. rows: None for all.
    """
    if chosen:
        return "\n".join([*_verdict(result), "", *_chosen(result, chosen)])
    return "\n".join(
        [
            *_verdict(result),
            "",
            *uplinks(result),
            *_other_levels(result),
            "",
            *filter(None, [entropy_text(result)]),
            "",
            *_flows(result, result.flows, rows),
        ]
    )


def now_text(now: Now, chosen: QpSelection | None = None, rows: int | None = _ROWS) -> str:
    """How many QPs of the last run moved, where to, and their current paths. chosen, rows: as in paths_text."""
    selection = chosen or QpSelection()
    lines = [
        f"  {' to '.join(now.result.ends(proof))}, QP {proof.flow.label}: {' '.join(was)} -> "
        + (" ".join(proof.expected) or "no path")
        for proof, was, wanted in zip(now.result.flows, now.was, selection.mask(now.result), strict=True)
        if wanted and not proof.spread and not spreads(was) and proof.expected != was
    ]
    most = len(lines) if chosen or rows is None else _MOVED
    more = [f"  and {len(lines) - most} more: --all lists them"] if len(lines) > most else []
    return "\n".join([now.moved.text(), *lines[:most], *more, "", paths_text(now.result, chosen, rows)])


def _chosen(result: PathsResult, selection: QpSelection) -> list[str]:
    """The QPs of a selection and their number; when none match, the QPs, hosts and ports that exist."""
    flows = selection.shown(result)
    match = "matches" if len(flows) == 1 else "match"
    head = f"{len(flows)} of {len(result.flows)} {result.units} {match} {selection.text()}"
    lines = _wrapped(head if flows else f"{head}; the run has")
    if not flows:
        lines += [line for each in selection.present(result) for line in _wrapped(f"  {each}")]
    hidden = sum(bool(proof.why) for proof in result.flows) - sum(bool(proof.why) for proof in flows)
    if hidden:
        lines.append(f"{hidden} QPs that are not proven are not shown" if hidden > 1 else
                     "1 QP that is not proven is not shown")  # fmt: skip
    return [*lines, *([""] if flows else []), *_flows(result, flows, None)]


def _verdict(result: PathsResult) -> list[str]:
    chosen = choices_text(result)
    notes = [delivery_text(result), f"choices of the kernel lookup: {chosen}" if chosen else "", *result.notes]
    notes += [result.separation.text()] if result.separation else []
    return [verdict_text(result), *(line for note in notes if note for line in _wrapped(f"  {note}"))]


def verdict_text(result: PathsResult) -> str:
    """Whether the sources agree, on one line. Where they do and it is no proof, the notes give the reason."""
    total, wrong = len(result.flows), sum(1 for proof in result.flows if proof.why)
    if result.agree:
        return f"{result.source_names} agree on the paths of all {total} {result.units}"
    if wrong:
        return f"NOT PROVEN: {result.source_names} do not agree on {wrong} of {total} {result.units}"
    return f"NOT PROVEN: the paths of {total} {result.units}"


def delivery_text(result: PathsResult) -> str:
    """Packets that the NICs received, and packets that the last ports counted; empty where neither is known."""
    found = result.delivery
    if found is None or not found.qps:
        return ""
    if found.received is None:
        return f"the last ports counted {found.counted:,} packets; how many the receiving NICs got is not known"
    if found.received > found.counted:
        return (
            f"the receiving NICs got {found.received:,} packets, with copies; the last ports counted {found.counted:,}"
        )
    heads = f"; switches trimmed {sum(result.trimmed.values()):,}" if result.trimmed else ""
    return (
        f"the receiving NICs got {found.received:,} of the {found.counted:,} packets that the last ports counted{heads}"
    )


def choices_text(result: PathsResult) -> str:
    """The source of the kernel lookup's choices. Choices that use the prediction's own arithmetic are named."""
    return ", ".join(f"{result.choices[who]:,} {words}" for who, words in _CHOICES.items() if result.choices.get(who))


def uplinks(result: PathsResult) -> list[str]:
    """A bar for each uplink of a leaf: the time of its bytes, or flows when nothing was sent yet; then the MMR."""
    links = [link for link in result.links if link.uplink]
    if not links:
        return ["no switch has uplinks: every path is one port"]
    over = result.uplinks.text(links[0].direction.partition(" to ")[0] or "switch")
    return [
        _HEADING.format("uplink"), *_bars(links, _most(result.links)),
        *_wrapped(f"MMR ({over}): flows {_ratio(result.mmr.flows)}, bytes {_ratio(result.mmr.bytes)}"),
    ]  # fmt: skip


def _other_levels(result: PathsResult) -> list[str]:
    """The busiest links of every other direction between two levels, measured in the same way."""
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
    """The value of a bar: the time of the link's bytes, or flows when nothing was sent yet."""
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


def entropy_text(result: PathsResult) -> str:
    """How many of the QPs the switches' hash can distinguish; empty without QPs."""
    return result.entropy.text if result.entropy.flows else ""


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _flows(result: PathsResult, flows: Sequence[FlowProof], rows: int | None) -> list[str]:
    """A row for each QP: those not proven, then the others, longest paths first. rows: of each, None for all."""
    wrong = [proof for proof in flows if proof.why]
    right = sorted((p for p in flows if not p.why), key=lambda p: -len(p.expected))
    shown = [*wrong[:rows], *right[:rows]]
    ends = [_ends(result, proof) for proof in shown]
    widths = [max([_END, *(len(each[side]) for each in ends)]) for side in (0, 1)]
    widths.append(max([8, *(len(proof.flow.label) for proof in shown)]))
    lines = [_row_text(("from", "to", "QPN", "sport", "packets", "path"), widths)] if flows else []
    for proof, (src, dst) in zip(shown, ends, strict=True):
        f = proof.flow
        rest = proof.why or " ".join(proof.measured or proof.expected)
        cells = (src, dst, f.label, str(f.sport), f"{proof.sent.packets:,}", rest)
        lines += _wrapped(_row_text(cells, widths), "  " if proof.why else "    ")
        lines += _disagreement(proof) if proof.why else []
    if len(shown) < len(flows):
        count = f"{len(shown)} of {len(flows)} {result.units}"
        lines.append(f"{count} are shown; --all shows all, and --qp, --host, --port select some")
    return lines


def _ends(result: PathsResult, proof: FlowProof) -> tuple[str, str]:
    """Sender and receiver, with the job of a run that had several."""
    src, dst = result.ends(proof)
    return f"{proof.flow.job}: {src}" if proof.flow.job else src, dst


def _row_text(cells: tuple[str, str, str, str, str, str], widths: Sequence[int]) -> str:
    src, dst, qpn, sport, packets, rest = cells
    return f"{src:<{widths[0]}} {dst:<{widths[1]}} {qpn:>{widths[2]}} {sport:>5} {packets:>9}  {rest}".rstrip()


def _disagreement(proof: FlowProof) -> list[str]:
    """The path of a QP that is not proven, from each source."""
    paths = [("kernel", proof.oracle), ("measured", proof.measured)]
    if proof.predicted is not None:
        paths.insert(0, ("predicted", proof.predicted))
    taken = [] if proof.seen.received is None else [f"NIC {proof.seen.received}"]
    counts = ", ".join([*(str(n) for n in proof.counted), *taken])
    counted = f" ({counts} packets)" if proof.counted else ""
    return [
        line
        for name, path in paths
        for line in _wrapped(f"  {name:<9} {' '.join(path) or '-'}{counted if name == 'measured' else ''}")
    ]


def _wrapped(line: str, indent: str = "    ") -> list[str]:
    lines: list[str] = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", len(indent) + 1, WIDTH)
        cut = cut if cut > len(indent) else WIDTH
        lines.append(line[:cut])
        line = indent + line[cut:].lstrip()
    return [*lines, line]
