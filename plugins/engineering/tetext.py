"""A plan of traffic engineering as text: the changed entries, and the use of links before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from heddle.base.tables import many, table
from heddle.base.units import format_bytes
from heddle_plugins.engineering.te import TePlan, TeSpread

_ROWS: Final = 16  # changes, and links
_LINKS: Final = 8


def plan_text(plan: TePlan, rows: int | None = _ROWS) -> str:
    """The whole plan. rows: changes to show; None: all."""
    parts = [[*_head(plan)], [*_changes(plan, rows)], [*_directions(plan)], [*_busiest(plan)], [*_notes(plan)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(plan: TePlan) -> Iterator[str]:
    demand = plan.demand
    size = format_bytes(sum(demand.bytes))
    yield f"plan for {plan.lab}, demand: {demand.source}: {many(len(demand.flows), 'flow')}, {size}"
    found = plan.counts()
    words = ", ".join(f"{found[what]} {what}" for what in ("added", "changed", "removed", "unchanged"))
    yield f"{plan.entries} entries in {many(len([*filter(None, plan.tables.values())]), 'switch')}: {words}"


def _changes(plan: TePlan, rows: int | None) -> Iterator[str]:
    shown = plan.changes[:rows]
    if shown:
        lines = [
            (each.what, each.switch, str(each.sport), str(each.prefix), _ports(each.before), _ports(each.after))
            for each in shown
        ]
        yield table(("change", "switch", "sport", "prefix", "before", "after (backup)"), lines)
    if len(plan.changes) > len(shown):
        yield f"and {len(plan.changes) - len(shown)} more: --all shows them"


def _ports(ports: tuple[str, ...]) -> str:
    return "-" if not ports else ports[0] if len(ports) == 1 else f"{ports[0]} ({ports[1]})"


def _directions(plan: TePlan) -> Iterator[str]:
    lines = []
    for name, (before, after) in plan.spreads().items():
        for when, spread in (("before", before), ("after", after)):
            if spread is not None:
                lines.append((name, when, *_cells(spread)))
    if lines:
        yield table(("links", "", "least", "mean", "busiest", "spread", "MMR"), lines)
        if plan.demand.seconds is None:
            yield "100 %: the link is busy as long as the busiest NIC needs for its bytes"


def _cells(spread: TeSpread) -> tuple[str, ...]:
    uses = tuple(f"{100 * share:.1f} %" for share in (spread.least, spread.mean, spread.most))
    return (*uses, f"{spread.points:.1f} points", "-" if spread.mmr is None else f"{spread.mmr:.2f}")


def _busiest(plan: TePlan) -> Iterator[str]:
    uses = [(link, *link.use(plan.seconds)) for link in plan.links]
    ranked = sorted(uses, key=lambda row: -max(row[1] or 0.0, row[2]))[:_LINKS]
    if ranked:
        lines = [
            (link.port, link.to, "-" if before is None else f"{100 * before:.1f} %", f"{100 * after:.1f} %")
            for link, before, after in ranked
        ]
        yield table(("busiest links", "to", "before", "after"), lines)


def _notes(plan: TePlan) -> Iterator[str]:
    if plan.shared:
        yield (
            f"{many(plan.shared, 'flow')} share source port, prefix and first switch with another flow: "
            f"they have one entry, and so one path"
        )
    if plan.without:
        pairs = ", ".join(dict.fromkeys(f"{flow.src} to {flow.dst}" for flow in plan.without[:4]))
        yield f"{many(len(plan.without), 'flow')} without a path: {pairs}"
    if plan.note:
        yield plan.note
