"""Exact-match tables of traffic engineering in the switches of a lab: put in force, taken out again, and their history.

In:  a running lab; switch -> its table.
Out: changed switches; in the lab's record who changed them and what was in force before, so that `te off` restores it.
     While a run goes on, each change is added to changes.json in the lab's directory: which rule a switch had, by its
     epoch. So the run's evidence has all rules that its packets can have met (proof/).
The switches keep their entries when the process that set them ends: nothing depends on it. down removes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base import owners, state
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.state import lab_dir
from heddle.base.userfiles import as_caller
from heddle.fabric.hashmodes import EXACT_MATCH
from heddle.lab.rehash import LiveHashing, check_exact, expected, live_hashing, set_rows, wanted, with_exact
from heddle.lab.snapshot import LabPart
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.switch.hashing.steering import Exact

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

CONTROLLER: Final = "te"  # the lock that a controller has while it runs
_HISTORY: Final = "changes.json"


@dataclass(frozen=True, slots=True)
class Engineered:
    """The entries in force. by: the command. at: when they changed last, seconds since the epoch. changes: how often.

    switches: all that were changed. before: their hashing of then, as in the record; those of the file are absent.
    counts: switch -> statistics of its program (Tables.statistics) when it was changed first.
    """

    by: str
    at: float
    changes: int
    switches: tuple[str, ...]
    before: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def since(self, switch: str, now: Mapping[str, int]) -> dict[str, int]:
        """The statistics of a switch since it was changed first. now: those since the lab came up."""
        then = self.counts.get(switch, {})
        return {name: count - then.get(name, 0) for name, count in now.items()}


@dataclass(frozen=True, slots=True)
class EntriesInForce:
    """The entries of one switch. packets: to port, to backup, fell_back and no_entry, since the first change.

    as_recorded: whether they are what the lab's record says; not after a kill in the middle of a change.
    """

    switch: str
    mode: str
    table: Exact
    packets: Mapping[str, int]
    as_recorded: bool

    def to_json(self) -> dict[str, Any]:
        entries = [
            {"sport": sport, "prefix": str(prefix), "port": ports[0], "backup": [*ports, None][1]}
            for (sport, prefix), ports in self.table.items()
        ]
        state = {"as_recorded": self.as_recorded, "entries": entries, "packets": dict(self.packets)}
        return {"switch": self.switch, "mode": self.mode, **state}


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of rules. at: seconds since the epoch. rules: switch -> epoch and hashing from then on."""

    at: float
    by: str
    rules: Mapping[str, tuple[int, SwitchHashing]]

    def to_json(self) -> dict[str, Any]:
        rules = {name: [epoch, row.to_json()] for name, (epoch, row) in self.rules.items()}
        return {"at": self.at, "by": self.by, "rules": rules}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RuleChange:
        rules = {str(name): (int(epoch), SwitchHashing.from_json(row)) for name, (epoch, row) in data["rules"].items()}
        return cls(float(data["at"]), str(data["by"]), rules)


_NONE: Final = Engineered("", 0.0, 0, ())


def engineered(lab: str) -> Engineered | None:
    """The entries of traffic engineering in a lab; None without any. MachineError for an unreadable record."""
    record = state.read_record(lab)
    if record is None or not record.engineering:
        return None
    try:
        data = dict(record.engineering)
        return Engineered(**{**data, "switches": tuple(map(str, data["switches"]))})
    except (ValueError, KeyError, TypeError, AttributeError):
        why = "were set by another version of Heddle, and this one cannot read them"
        raise MachineError(Problem("", f"the entries of lab {lab}", why, f"./inv down {lab}, then up again")) from None


def in_force(lab: Lab, found: Engineered) -> list[EntriesInForce]:
    """What the switches have now, in the order of the tables that were set."""
    now, rows = lab.snapshot(LabPart.HASHING, found.switches), []
    recorded = wanted(lab)
    for name in found.switches:
        row, counts = now.hashing[name], found.since(name, now.statistics[name])
        packets = {"port": counts["steered"] - counts["backups"], "backup": counts["backups"]}
        packets |= {"fell_back": counts["fell_back"], "no_entry": counts["misses"]}
        same = row.mode == recorded[name].mode and row.steering.exact == recorded[name].steering.exact
        rows.append(EntriesInForce(name, row.mode, row.steering.exact, packets, same))
    return rows


def put_in_force(
    lab: Lab, tables: Mapping[str, Exact], by: str, found: Mapping[str, SwitchHashing] | None = None
) -> tuple[str, ...]:
    """Give switches these exact-match tables; returns the switches that changed. by: the command, as `te apply`.

    found: the hashing of all switches as read; without it, that of the record. A process that was killed may have left
    a switch that differs from the record.

    A switch that is not in `tables`, but had entries of traffic engineering, gets an empty table. Their mode becomes
    exact-match; packets without an entry are hashed as with e-ecmp, with the seed that the switch has.
    InputError with every invalid row; MachineError when a switch cannot be changed: then all keep their old rule.
    """
    check_exact(lab, tables)
    with owners.lock(lab.name, owners.CHANGES):
        live, earlier = live_hashing(lab), engineered(lab.name) or _NONE
        now = wanted(lab, live)
        mine = dict.fromkeys([*tables, *earlier.switches])
        rows = [_with_table(lab, now[name], tables.get(name, {})) for name in mine]
        rows = [row for row in rows if _rule(row) != _rule((found or now)[row.switch])]
        first = [row.switch for row in rows if row.switch not in earlier.switches]
        before = {name: live[name].to_json() for name in first if name in live}
        counts = lab.snapshot(LabPart.HASHING, first).statistics if first else {}
        force = Engineered(
            by,
            time.time(),
            earlier.changes + 1,
            tuple(mine),
            {**earlier.before, **before},
            {**earlier.counts, **counts},
        )
        _set(lab, rows, live | {row.switch: LiveHashing.of(row) for row in rows}, force, by)
    return tuple(row.switch for row in rows)


def take_out(lab: Lab, by: str) -> tuple[str, ...]:
    """Restore the hashing from before traffic engineering; returns the switches that changed.

    A switch whose mode was changed since then keeps that mode, without the entries. InputError when no entries are in
    force; MachineError when a switch cannot be changed: then all keep their rule.
    """
    with owners.lock(lab.name, owners.CHANGES):
        found = engineered(lab.name)
        if found is None:
            why = "has no entries of traffic engineering in force"
            raise InputError(Problem("", f"lab {lab.name}", why, "./inv te apply sets some"))
        live = live_hashing(lab)
        mine = [name for name in found.switches if name in live]
        before = {name: LiveHashing.from_json(found.before[name]) for name in mine if name in found.before}
        left = {name: row for name, row in live.items() if name not in mine}
        for name in mine:
            if live[name].mode != EXACT_MATCH:
                left[name] = replace(live[name], exact=before[name].exact if name in before else {})
            elif name in before:
                left[name] = before[name]
        rows = [expected(lab, lab.fabric.by_name[name], left.get(name)) for name in mine]
        _set(lab, rows, left, None, by)
    return tuple(mine)


def _with_table(lab: Lab, row: SwitchHashing, table: Exact) -> SwitchHashing:
    if row.mode != EXACT_MATCH:
        row = hashing_of(lab.fabric, lab.fabric.by_name[row.switch], EXACT_MATCH, row.options, row.seed)
    return with_exact(row, table)


def _rule(row: SwitchHashing) -> tuple[Any, ...]:
    return row.mode, row.seed, row.options, row.steering


def _set(
    lab: Lab, rows: Sequence[SwitchHashing], live: Mapping[str, LiveHashing], found: Engineered | None, by: str
) -> None:
    data = {name: row.to_json() for name, row in live.items()}
    epochs = set_rows(lab, rows, data, engineering={} if found is None else asdict(found))
    if rows and owners.working_on(lab.name) is not None:
        change = RuleChange(time.time(), by, {row.switch: (epochs[row.switch], row) for row in rows})
        path = lab_dir(lab.name) / _HISTORY
        state.write_json(path, {"changes": [each.to_json() for each in (*_history(path), change)]})


def changes_of_run(lab: str) -> tuple[RuleChange, ...]:
    """The changes of rules since the lab's run began; empty also where the file cannot be read."""
    return _history(lab_dir(lab) / _HISTORY)


def forget_changes(lab: str) -> None:
    """A run begins: earlier changes are not its own."""
    path = lab_dir(lab) / _HISTORY
    with suppress(OSError), as_caller(path):
        path.unlink(missing_ok=True)


def _history(path: Path) -> tuple[RuleChange, ...]:
    try:
        with as_caller(path):
            data = json.loads(path.read_text(encoding="utf-8"))
        return tuple(RuleChange.from_json(each) for each in data["changes"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()
