"""`./inv te plan`, `apply`, `show`, `watch` and `off`: entries of traffic engineering for a running lab.

In:  TeWords. Out: a plan for the traffic matrix of the user's words, changed switches (heddle/lab/rehash.py), what is
installed, as text or JSON; a file with the entries of a plan.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from heddle.base import owners
from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.base.tables import many, some_of, table
from heddle.base.units import format_bytes, parse_duration
from heddle.cli.console import Console
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import CONTROLLER, Engineered, EntriesInForce, engineered, in_force, put_in_force, take_out
from heddle_plugins.engineering import te
from heddle_plugins.engineering.te import PARTS, TeDemand, TePlan, TeRound, TeSpread, check_rendered, plan_for, rounds

_INTERVAL: Final = "30s"
_ROWS: Final = 16
_PATIENCE_S: Final = 5.0  # for a controller to end


@dataclass(frozen=True, slots=True)
class TeWords:
    """The words after `./inv te ACTION`."""

    lab: str | None = None
    run: str | None = None
    interval: str | None = None
    workload: str | None = None
    out: str | None = None
    all: bool = False


def apply(out: Console, asked: TeWords) -> None:
    """Install a plan. Exit 1 when a flow has no path."""
    _refuse(asked, "out")
    where = open_lab(asked.lab)
    with owners.lock(where.name, CONTROLLER, work="te apply"):
        demand, now = demand_of(where, asked), where.snapshot(PARTS)
        found = plan_for(where, demand, now)
        began = time.monotonic()
        changed = put_in_force(where, found.tables, "te apply", now.hashing)
        seconds = time.monotonic() - began
    said = _changed(changed, seconds) if changed else "no entry changed: these are installed"
    text = plan_text(found, **({"rows": None} if asked.all else {}))
    out.result({**found.to_json(), "switches_changed": list(changed), "seconds": seconds}, f"{text}\n\n{said}")
    out.exit_code = 1 if found.without else 0


def off(out: Console, asked: TeWords) -> None:
    """End the controller, if one runs, and restore the hashing from before."""
    _refuse(asked, "out", "run", "interval", "workload", "all")
    where = open_lab(asked.lab)
    ended = _end_controller(where.name)
    with owners.lock(where.name, CONTROLLER, work="te off", seconds=_PATIENCE_S):
        changed = () if engineered(where.name) is None else take_out(where, "te off")
    text = [f"ended te watch (process {ended})"] if ended is not None else []
    back = f"; the hashing from before is restored on {many(len(changed), 'switch')}" if changed else ""
    text.append(f"{where.name}: no entries of te are installed{back}")
    out.result({"lab": where.name, "ended": ended, "switches_changed": list(changed)}, "\n".join(text))


def _end_controller(lab: str) -> int | None:
    holder = owners.working_on(lab, CONTROLLER)
    if holder is None or holder.work != "te watch":
        return None
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)  # a shell lets its background jobs ignore SIGINT
    return holder.pid


def watch(out: Console, asked: TeWords) -> None:
    """Run the controller until Ctrl-C, or until the lab is gone."""
    _refuse(asked, "out", "run", "workload", "all")
    where = open_lab(asked.lab)
    if out.json:
        raise InputError(Problem("", "te watch and --format json", "exclude each other", "./inv te show --format json"))
    interval_s = seconds_of(asked.interval or _INTERVAL)
    check_rendered(where)
    with owners.lock(where.name, CONTROLLER, work="te watch"):
        out.show(f"{where.name}: recomputes every {interval_s:g} s, and when a link or a route changes; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            for each in rounds(where, interval_s, "te watch"):
                out.show(round_text(each))
            out.show(f"lab {where.name} is gone")
            return
    found = engineered(where.name)
    left = "no entries are installed" if found is None else "the entries stay installed: ./inv te off removes them"
    out.show(f"ended; {left}")


def round_text(each: TeRound) -> str:
    """One line for a round of the controller."""
    head = f"{datetime.fromtimestamp(each.at).astimezone():%H:%M:%S}  {each.reason}: "
    if each.error is not None:
        return f"{head}not computed: {each.error}"
    if each.plan is None:
        return f"{head}no traffic; entries stay"
    uses = ""
    if each.spread is not None:
        before, after = each.spread
        uses = f"{'' if before is None else f'{100 * before.most:.1f} % -> '}{100 * after.most:.1f} %"
        uses = f"busiest link {uses}; "
    said = _changed(each.changed, each.seconds) if each.changed else "entries stay"
    return f"{head}{many(len(each.plan.demand.flows), 'flow')}; {uses}{said}"


def _changed(switches: tuple[str, ...], seconds: float) -> str:
    return f"entries changed on {many(len(switches), 'switch')} in {1000 * seconds:.0f} ms"


def show(out: Console, asked: TeWords) -> None:
    """Print the installed entries, who set them and when, and what became of packets since."""
    _refuse(asked, "out", "run", "interval", "workload")
    where = open_lab(asked.lab)
    found, holder = engineered(where.name), owners.working_on(where.name, CONTROLLER)
    rows = in_force(where, found) if found is not None else []
    data = {
        "lab": where.name,
        "controller": None if holder is None else {"work": holder.work, "pid": holder.pid},
        "by": found.by if found else None,
        "at": found.at if found else None,
        "changes": found.changes if found else 0,
        "switches": [row.to_json() for row in rows],
    }
    controller = "no controller runs" if holder is None else f"{holder.work} runs (process {holder.pid})"
    if found is None:
        out.result(data, f"{where.name}: no entries of te are installed; {controller}")
        return
    head = f"{where.name}: {_head(found)}; {controller}"
    if unfinished := [row.switch for row in rows if not row.as_recorded]:
        head += (
            f"\nnot as recorded on {some_of(unfinished)}: that change did not complete, or another program changed it"
        )
        head += f"\n./inv te apply sets entries again, ./inv up --repair --name {where.name} those of the record"
    out.result(data, f"{head}\n\n{_text(rows, None if asked.all else _ROWS)}")


def _head(found: Engineered) -> str:
    when = datetime.fromtimestamp(found.at, UTC).astimezone()
    changed = f"changed {many(found.changes, 'time')}, last " if found.changes > 1 else "set "
    return f"entries were {changed}by {found.by} at {when:%Y-%m-%d %H:%M:%S}"


def _text(rows: Sequence[EntriesInForce], most: int | None) -> str:
    lines = [(row.switch, row.mode, str(len(row.table)), *map(str, row.packets.values())) for row in rows]
    parts = [table(("switch", "mode", "entries", "to port", "to backup", "fell back", "no entry"), lines)]
    parts[0] += (
        "\npackets since the first change. fell back: neither port nor backup was a live next hop\n"
        "no entry: hashed, also acknowledgements"
    )
    entries = [
        (row.switch, str(sport), str(prefix), *ports, *["-"] * (2 - len(ports)))
        for row in rows
        for (sport, prefix), ports in sorted(row.table.items(), key=lambda each: (str(each[0][1]), each[0][0]))
    ]
    if entries:
        parts.append(table(("switch", "sport", "prefix", "port", "backup"), entries[:most]))
        if len(entries) > len(entries[:most]):
            parts[-1] += f"\nand {len(entries) - len(entries[:most])} more: --all shows them"
    return "\n\n".join(parts)


def _refuse(asked: TeWords, *words: str) -> None:
    given = [f"--{word}" for word in words if getattr(asked, word)]
    if given:
        raise InputError(Problem("", some_of(given), "has no effect with this action of te", "./inv te --help"))


_LEAST_S, _MOST_S = 0.05, 600.0
_FLAG: Final = "--out"


def plan(out: Console, asked: TeWords) -> None:
    """Print the plan; nothing is changed. Exit 1 when a flow has no path."""
    from heddle.views.graph import check_target, write_file

    where = open_lab(asked.lab)
    if asked.out is not None:
        check_target(real(asked.out), asked.out, _FLAG)
    found = plan_for(where, demand_of(where, asked))
    text = plan_text(found, **({"rows": None} if asked.all else {}))
    if asked.out is not None:
        write_file(real(asked.out), found.csv().encode(), asked.out, flag=_FLAG)
        text += f"\n\nwrote {asked.out}: ./inv hashing exact-match --table {asked.out} sets these entries"
    out.result({**found.to_json(), "out": asked.out}, text)
    out.exit_code = 1 if found.without else 0


def demand_of(where: Lab, asked: TeWords) -> TeDemand:
    """The traffic matrix that the words name: of the last run, if they name none."""
    given = [f"--{key}" for key in ("run", "interval", "workload") if getattr(asked, key) is not None]
    if len(given) > 1:
        raise InputError(Problem("", f"{given[0]} and {given[1]}", "exclude each other", "keep one of them"))
    if asked.interval is not None:
        return te.of_interval(where, seconds_of(asked.interval))
    if asked.workload is not None:
        from heddle.endpoints.workloadfile import load_workload

        return te.of_workload(where, load_workload(asked.workload).workload)
    return te.of_run(where, asked.run)


def seconds_of(typed: str) -> float:
    """The time after --interval, in seconds. InputError when it is none, or out of range."""
    try:
        seconds = parse_duration(typed) / 1e9
    except ValueError as error:
        why, _, hint = str(error).partition("; ")
        raise InputError(Problem("", f"--interval {typed}", why, hint)) from None
    if not _LEAST_S <= seconds <= _MOST_S:
        why = f"is outside {_LEAST_S * 1000:g}ms to {_MOST_S:g}s"
        raise InputError(Problem("", f"--interval {typed}", why, "for example --interval 2s"))
    return seconds


_LINKS: Final = 8  # busiest links that are shown


def plan_text(plan: TePlan, rows: int | None = _ROWS) -> str:
    """The whole plan. rows: changes to show; None: all."""
    parts = [[*_plan_head(plan)], [*_changes(plan, rows)], [*_directions(plan)], [*_busiest(plan)], [*_notes(plan)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _plan_head(plan: TePlan) -> Iterator[str]:
    demand = plan.demand
    size = format_bytes(sum(demand.bytes))
    yield f"plan for {plan.lab}, traffic matrix: {demand.source}: {many(len(demand.flows), 'flow')}, {size}"
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
