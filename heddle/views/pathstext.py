"""Paths for people: verdict, how the uplinks were used, and the QPs. Plain text of at most 100 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from heddle.predict.spread import spreads
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof, LinkUse, PathsResult
    from heddle.runs.moved import Now

_BAR: Final = 40
_ROWS: Final = 16
_MOVED: Final = 8


def paths_text(result: PathsResult, rows: int = _ROWS) -> str:
    """Verdict, uplink bars, then QPs: at most `rows` that are proven and as many that are not, these first."""
    return "\n".join([*_verdict(result), "", *uplinks(result), *_entropy(result), "", *_flows(result, rows)])


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
    return lines + [line for note in result.notes for line in _wrapped(f"  {note}")]


def uplinks(result: PathsResult) -> list[str]:
    """A bar for each uplink of a leaf: bytes where they were counted, flows where nothing was sent yet."""
    links = [link for link in result.links if link.uplink]
    by_bytes = any(link.bytes for link in links)

    def amount(link: LinkUse) -> int:
        return link.bytes if by_bytes else link.flows

    if not links:
        return ["no switch has uplinks: a path is one port"]
    most = max(map(amount, links))
    lines = [f"{'uplink':<15} {'flows':>6} {'packets':>10} {'bytes':>15}  share of the busiest"]
    for link in links:
        bar = "█" * round(_BAR * amount(link) / most) if most else ""
        lines.append(f"{link.port:<15} {link.flows:>6} {link.packets:>10,} {link.bytes:>15,}  {bar}".rstrip())
    lines.append(
        f"MMR (max/mean over {len(links)} uplinks): flows {_ratio(result.mmr.flows)}, bytes {_ratio(result.mmr.bytes)}"
    )
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
    counted = f" ({', '.join(str(n) for n in proof.counted)} packets)" if proof.counted else ""
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
