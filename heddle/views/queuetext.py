"""Queues as text: tables of ports and switches, then lines about headroom, reaction times and the PFC agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from heddle.base.tables import some_of, table
from heddle.base.units import format_bytes, format_rate, round_up, shown

if TYPE_CHECKING:
    from heddle.lab.queues import Headroom, QueueRow, QueuesResult, Reactions, SwitchRow
    from heddle.lab.thresholds import QueueSetting

PORTS: Final = (
    "port",
    "class",
    "depth",
    "max",
    "ingress",
    "max",
    "marks",
    "CE in",
    "pauses out/in",
    "paused",
    "watchdog",
    "trims",
    "drops",
)
SWITCHES: Final = ("switch", "buffer", "in use", "max", "shared in use", "shared pool", "headroom in use", "trims")
_RARE: Final = "trims"  # the column of both that is left out where it is empty
_NONE: Final = "-"
_LEGEND: Final = (
    "depth: bytes in the egress queue; ingress: bytes that came in by this port and are still in the switch;\n"
    "max: the largest value since `up` or the last reset"
)
_TRIMS: Final = "trims: packets of the class that were trimmed here; dropped: those that did not fit in the trim queue"
_CE: Final = "marks: packets that this queue set to CE; CE in: packets that an earlier queue had set to CE"


def queues_text(result: QueuesResult, rows: Sequence[QueueRow], switches: Sequence[SwitchRow], hidden: int) -> str:
    """The whole output: ports, switches, headroom, agent. hidden: the number of quiet rows that are left out."""
    parts = []
    if rows:
        legend = [_LEGEND, *([_CE] if any(row.ce_in for row in rows) else [])]
        # Zero is a dash, so that other values are easy to see.
        legend += [_TRIMS] if any(row.trims for row in rows) else []
        parts = [_table(PORTS, [port_cells(row) for row in rows]), "\n".join(legend)]
    if hidden or not rows:
        parts.append(_hidden(hidden, bool(rows)))
    if switches:
        parts.append(_table(SWITCHES, [_switch_cells(each) for each in switches]))
    parts.append("\n".join([*headroom_lines(result), *agent_lines(result), *set_lines(result.settings)]))
    return "\n\n".join(part for part in parts if part)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rare = heads.index(_RARE)
    kept = [at for at in range(len(heads)) if at != rare or any(row[rare] != _NONE for row in rows)]
    return table([heads[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _trims(row: QueueRow | SwitchRow) -> str:
    """`1,200`, or `1,200 (31 dropped)`."""
    dropped = f" ({row.trim_drops:,} dropped)" if row.trim_drops else ""
    return f"{row.trims:,}{dropped}" if row.trims else _NONE


def port_cells(row: QueueRow) -> tuple[str, ...]:
    """The cells of one row, as in PORTS: the egress queue and its maximum, ingress occupancy and its maximum."""
    drops = ", ".join(f"{count:,} {cause}" for cause, count in row.drops.items())
    pauses = f"{row.pfc_sent:,}/{row.pfc_received:,}" if row.pfc_sent or row.pfc_received else _NONE
    storms = f" ({row.storms} storm{'' if row.storms == 1 else 's'})" if row.storms else ""
    return (
        row.port, f"{row.traffic_class} {row.kind}", amount(row.depth), amount(row.high_water),
        amount(row.occupancy), amount(row.occupancy_high), f"{row.marks:,}" if row.marks else _NONE,
        f"{row.ce_in:,}" if row.ce_in else _NONE, pauses,
        _paused(row), (row.watchdog or _NONE) + storms, _trims(row), drops or _NONE,
    )  # fmt: skip


def _paused(row: QueueRow) -> str:
    now = ", now" if row.paused else ""
    return f"{row.paused_ms:,.1f} ms{now}" if row.paused_ms or now else _NONE


def _switch_cells(row: SwitchRow) -> tuple[str, ...]:
    share = f" ({row.high_water / row.buffer:.0%})" if row.buffer and row.high_water >= row.buffer / 100 else ""
    return (
        row.switch, amount(row.buffer), amount(row.used), amount(row.high_water) + share,
        amount(row.shared_used), amount(row.shared), amount(row.headroom_used), _trims(row),
    )  # fmt: skip


def _hidden(hidden: int, some: bool) -> str:
    if not hidden:
        return "no port or class matches"
    queues = f"{hidden} {'more ' if some else ''}queue{'' if hidden == 1 else 's'}"
    return f"{queues} never held more than two packets, without marks, drops or pauses; --all shows them"


def headroom_lines(result: QueuesResult) -> list[str]:
    """Headroom by link rate: how it is computed, the maximum used, and by how much it was too small."""
    if not result.headroom:
        return ["headroom: none, because no class is lossless with PFC enabled"]
    lines: list[str] = []
    for each in result.headroom:
        ports = f"{each.ports} port{'' if each.ports == 1 else 's'}"
        lines.append(f"headroom of {ports} at {format_rate(each.rate_bps)}: {_assumed(each)}")
        lines.append(
            f"  maximum used {amount(each.highest)} at {each.highest_at}" if each.highest else "  not used yet"
        )
        if each.drops:
            lines.append(_undersized(each))
    lines.append(f"reaction: {_measured(result.reactions)}")
    slowest = result.reactions.max_ns
    late = [each for each in result.headroom if result.reactions.count and each.needed_for(slowest) > each.bytes]
    lines += [
        f"  the slowest reaction needs {amount(each.needed_for(slowest))} at {format_rate(each.rate_bps)}, "
        f"but the headroom is {amount(each.bytes)}"
        for each in late
    ]
    return lines


def _assumed(each: Headroom) -> str:
    size = amount(each.bytes)
    if each.reaction_ns is None:
        return f"{size} each, as set"
    assumed = f"{each.reaction_ns / 1e6:g} ms"
    return f"{format_rate(each.rate_bps)} x {assumed} assumed + 2 packets of {each.mtu + 14} B = {size} each"


def _undersized(each: Headroom) -> str:
    packets = f"{each.drops:,} packet{'' if each.drops == 1 else 's'}"
    short = f", {amount(each.missing_bytes)} more was needed" if each.missing_bytes else ""
    if each.missing_bytes and each.highest <= each.bytes:
        past = f"{amount(each.missing_bytes)} too little; ./inv queues reset sets the counters to 0"
        return f"  {packets} dropped while the headroom was smaller, {past}"
    hint = round_up(max(each.highest, each.bytes + each.mtu))
    return f"  UNDERSIZED: {packets} dropped because the headroom was full{short}; try pfc.headroom={hint}"


def _measured(seen: Reactions) -> str:
    if not seen.count:
        return "not measured yet: no port was paused while it sent"
    times = f"{seen.count:,} measured, median {seen.median_ns / 1e6:.2f} ms, maximum {seen.max_ns / 1e6:.2f} ms"
    return f"{times} from pause frame to last packet"


def agent_lines(result: QueuesResult) -> list[str]:
    """A line when the PFC agent, which sends and obeys pauses, or its keeper is not running."""
    if result.agent.alive or not result.headroom:
        return []
    if result.agent.agent is None:
        return ["agent: not running, so pauses are neither sent nor obeyed; ./inv run restarts it"]
    return ["keeper: not running, so gates would stay closed if the agent ended; ./inv run restarts it"]


def set_lines(settings: Mapping[str, Mapping[str, QueueSetting]]) -> list[str]:
    """Settings that were changed while the lab ran, with their nodes."""
    groups: dict[tuple[tuple[str, QueueSetting], ...], list[str]] = {}
    for node, values in settings.items():
        if values:
            groups.setdefault(tuple(values.items()), []).append(node)
    return [
        f"set: {', '.join(f'{path}={_value(value)}' for path, value in values)} on {some_of(nodes)}"
        for values, nodes in groups.items()
    ]


def _value(value: QueueSetting) -> str:
    return shown(value) if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()


def amount(count: int) -> str:
    """Bytes in powers of ten, as in a fabric file; a dash for 0."""
    return format_bytes(count) if count else _NONE
