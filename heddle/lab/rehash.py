"""Change the hashing of switches while packets pass: every packet sees the old or the new rule, and none is lost.

In:  a running lab, and the new hashing of its switches.
Out: an entry in the lab's record, which `validate`, `run` and `up --repair` use; then changed maps and sysctls.
Everything is checked, and every new table is written, before the first switch changes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base import owners, state
from heddle.base.families import Network
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, did_you_mean
from heddle.base.state import lab_dir
from heddle.base.sysctls import HASH_SEED, sysctl_number
from heddle.base.userfiles import as_caller
from heddle.fabric import hashmodes
from heddle.fabric.hashmodes import EXACT_MATCH, seed_for
from heddle.fabric.wiring import Node
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import spread, union
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, HashOptions
from heddle.switch.hashing.hashing import SwitchHashing, change, chosen, hashing_of
from heddle.switch.hashing.maps import Exact, exact_from_json, exact_to_json

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_MOST_PORT: Final = 65535
_SHOWN: Final = 3  # switches that a label names


@dataclass(frozen=True, slots=True)
class LiveHashing:
    """Hashing of a switch that was set while its lab was running, as stored in the lab's record."""

    mode: str
    seed: int
    options: HashOptions
    exact: Exact

    @classmethod
    def of(cls, row: SwitchHashing) -> LiveHashing:
        """From the current state of a switch."""
        return cls(row.mode, row.seed, row.options, row.steering.exact)

    def to_json(self) -> dict[str, Any]:
        rows = exact_to_json(self.exact)
        return {"mode": self.mode, "seed": self.seed, "options": self.options.to_json(), "exact": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveHashing:
        options, exact = HashOptions.from_json(data["options"]), exact_from_json(data["exact"])
        return cls(str(data["mode"]), int(data["seed"]), options, exact)


def live_hashing(lab: Lab) -> dict[str, LiveHashing]:
    """Switch -> its hashing, for switches set while the lab was running; MachineError for an unreadable record."""
    record = state.read_record(lab.name)
    try:
        return {} if record is None else {name: LiveHashing.from_json(row) for name, row in record.hashing.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        why = "was set by another version of Heddle, and this one cannot read it"
        hint = f"./inv down {lab.name}, then up again"
        raise MachineError(Problem("", f"the hashing of lab {lab.name}", why, hint)) from None


def wanted(lab: Lab, live: Mapping[str, LiveHashing] | None = None) -> dict[str, SwitchHashing]:
    """Switch -> its expected hashing: as set last (live, if the caller has it), or else as in the fabric file."""
    live = live_hashing(lab) if live is None else live
    return {node.name: expected(lab, node, live.get(node.name)) for node in lab.fabric.switches}


def label(lab: Lab) -> str:
    """The lab's mode as shown in tables: `e-ecmp`; where switches differ `e-ecmp, rtsw1: spray`."""
    return label_of(wanted(lab).values())


def label_of(rows: Iterable[SwitchHashing]) -> str:
    """The mode of most switches, and the others by name; a fabric without switches has none."""
    words = {row.switch: row.mode + (" resilient" if row.options.resilient else "") for row in rows}
    if not words:
        return "none"
    (most, _), *_ = Counter(words.values()).most_common(1)
    others = [f"{switch}: {mode}" for switch, mode in words.items() if mode != most]
    more = [f"and {len(others) - _SHOWN} more"] if len(others) > _SHOWN else []
    return ", ".join([most, *others[:_SHOWN], *more])


def set_hashing(
    lab: Lab,
    mode: str,
    options: HashOptions | None = None,
    *,
    seed: str | int | None = None,
    switches: Sequence[str] | None = None,
    exact: Mapping[str, Exact] | None = None,
    added: Mapping[str, Exact] | None = None,
) -> None:
    """Switch a running lab, or some of its switches, to a mode.

    options, seed: by default those of the fabric file; a seed is a number, or per-switch, per-tier or shared.
    exact: switch -> its whole exact-match table; other switches keep theirs. added: switch -> rows to add or change.
    InputError with every problem; MachineError when this kernel cannot do it. In both cases all switches keep their
    old rule.
    """
    nodes = _nodes(lab, switches)
    _check_steerable(lab, mode, options or lab.fabric.policy.routing.hash)
    check_exact(lab, exact or {})
    check_exact(lab, added or {})
    names = {node.name for node in nodes} | set(exact or {}) | set(added or {})
    with owners.lock(lab.name, owners.CHANGES):
        now = wanted(lab)
        rows = []
        for node in lab.fabric.switches:
            if node.name not in names:
                continue
            row = now[node.name]
            if node in nodes:
                chosen = node.hash_seed if seed is None else seed_for(seed, lab.fabric.level_of(node).word, node.name)
                row = with_exact(hashing_of(lab.fabric, node, mode, options, chosen), row.steering.exact)
            whole = (exact or {}).get(node.name, row.steering.exact)
            rows.append(with_exact(row, {**whole, **(added or {}).get(node.name, {})}))
        _change_and_remember(lab, rows)


def set_exact(lab: Lab, switch: str, entries: Exact) -> None:
    """Replace a switch's whole exact-match table, in one swap; its mode stays. Raises as set_hashing does."""
    check_exact(lab, {switch: entries})
    with owners.lock(lab.name, owners.CHANGES):
        _change_and_remember(lab, [with_exact(wanted(lab)[switch], entries)])


def restore_hashing(lab: Lab) -> bool:
    """Restore the hashing of the fabric file on every switch, and clear the record; False when none was changed.

    Raises as set_hashing does.
    """
    with owners.lock(lab.name, owners.CHANGES):
        live = live_hashing(lab)
        if not live:
            return False
        rows = [expected(lab, node, None) for node in lab.fabric.switches if node.name in live]
        set_rows(lab, rows, {}, engineering={})
    return True


def reapply_hashing(lab: Lab) -> list[str]:
    """Give switches their recorded rules where others are installed, as after a `hashing` that was killed; their names.

    Of an imported topology only those that were set while it ran: the others may have sysctls of their own. The caller
    holds CHANGES.
    """
    live = live_hashing(lab)
    rows = wanted(lab, live)
    wrong = hashing_faults(lab, rows, live, lab.snapshot(LabPart.HASHING).hashing)
    names = [name for name in wrong if lab.blueprint.rendered or name in live]
    if names:
        _change(lab, [rows[name] for name in names])
    return names


def hashing_sysctls(lab: Lab, live: Mapping[str, LiveHashing]) -> dict[str, dict[str, str]]:
    """Switch -> expected hashing sysctls: as set last by `hashing --set`, else by its topology, else by Heddle.

    live: `live_hashing`.
    """
    version, kept, found = lab.fabric.policy.ip_version, lab.blueprint.own_hashing(), dict[str, dict[str, str]]()
    for node in lab.fabric.switches:
        row = live.get(node.name)
        rule = chosen(lab.fabric, node, *(() if row is None else (row.mode, row.options, row.seed)))
        own = {} if row is not None else dict(kept.get(node.name, {}))
        found[node.name] = hashmodes.sysctls(*rule, version) | own
    return found


def hashing_faults(
    lab: Lab, rows: Mapping[str, SwitchHashing], live: Mapping[str, LiveHashing], found: Mapping[str, SwitchHashing]
) -> dict[str, str]:
    """Switch -> how its mode, seed, options or tables differ from `rows` (`wanted`). found: as read now."""
    faults: dict[str, str] = {}
    rules = hashing_sysctls(lab, live)
    for name, row in rows.items():
        now = found[name]
        policy = sysctl_number(rules[name][f"net.ipv{lab.fabric.policy.ip_version}.fib_multipath_hash_policy"])
        seed = row.seed if now.by_program else sysctl_number(rules[name].get(HASH_SEED, str(row.seed)))
        if (now.mode, now.seed, now.policy) != (row.mode, seed, policy):
            what = f"{now.mode} with seed {now.seed} and policy {now.policy}"
            faults[name] = f"{what}, not {row.mode} with {seed} and {policy}"
        elif now.options != row.options:
            faults[name] = f"{now.mode} has the options {now.options}, not {row.options}"
        elif now.steering != row.steering:
            faults[name] = f"the tables of {now.mode} differ from those that were set"
    return faults


def check_exact(
    lab: Lab, tables: Mapping[str, Exact], where: Mapping[tuple[str, int, Network], str] | None = None
) -> None:
    """InputError with every invalid row. where: (switch, source port, prefix) -> file and line of the row."""
    if any(tables.values()):
        _check_steerable(lab, "exact-match", DEFAULT_OPTIONS)
    problems: list[Problem] = []
    for switch, entries in tables.items():
        node = lab.fabric.by_name.get(switch)
        if node is None or node not in lab.fabric.switches:
            names = [each.name for each in lab.fabric.switches]
            place = next((at for (name, *_), at in (where or {}).items() if name == switch), "")
            problems.append(Problem(place, switch, f"is not a switch of {lab.name}", did_you_mean(switch, names)))
            continue
        hops = {prefix: ports for prefix, ports in lab.fabric.expected_next_hops[switch].items() if len(ports) > 1}
        good = {
            (prefix, ports)
            for prefix, ports in {(prefix, ports) for (_, prefix), ports in entries.items()}
            if prefix in hops and len(set(ports)) == len(ports) and set(ports) <= set(hops[prefix])
        }
        for (sport, prefix), ports in entries.items():
            if (prefix, ports) in good and 1 <= sport <= _MOST_PORT:  # all rows, unless there is an error
                continue
            place = (where or {}).get((switch, sport, prefix), "")
            problems += [replace(wrong, where=place) for wrong in _wrong_entry(lab, node, sport, prefix, ports)]
    if problems:
        raise InputError(*problems)


def _wrong_entry(lab: Lab, node: Node, sport: int, prefix: Network, ports: tuple[str, ...]) -> Iterable[Problem]:
    what = f"{node.name} {sport} {prefix} {' '.join(ports)}"
    if not 1 <= sport <= _MOST_PORT:
        yield Problem("", what, f"has the source port {sport}", "UDP source ports are 1 to 65535")
    hops = lab.fabric.expected_next_hops[node.name]
    names = [each.name for each in node.ports]
    for port in ports:
        if port not in names:
            why = f"names the port {port}, which {node.name} does not have"
            yield Problem("", what, why, did_you_mean(port, names))
        elif prefix in hops and len(hops[prefix]) > 1 and port not in hops[prefix]:
            some = ", ".join(sorted(hops[prefix]))
            yield Problem("", what, f"names the port {port}, which is no next hop to {prefix}", f"one of: {some}")
    if len(set(ports)) < len(ports):
        yield Problem("", what, f"has {ports[0]} as its own backup", "use another next hop as backup, or none")
    if prefix not in hops:
        known = [str(each) for each, ports in hops.items() if len(ports) > 1]
        hint = did_you_mean(str(prefix), known) if known else f"{node.name} has only one next hop to every prefix"
        yield Problem("", what, f"names the prefix {prefix}, which {node.name} has no route to", hint)
    elif len(hops[prefix]) < 2:
        (only,) = hops[prefix]
        yield Problem("", what, f"has no effect: {node.name} has only one next hop to {prefix}", f"it is {only}")


def _nodes(lab: Lab, switches: Sequence[str] | None) -> list[Node]:
    if switches is None:
        return list(lab.fabric.switches)
    names = {node.name: node for node in lab.fabric.switches}
    unknown = [name for name in dict.fromkeys(switches) if name not in names]
    if unknown:
        raise InputError(
            *(
                Problem("--switch", name, f"is not a switch of {lab.name}", did_you_mean(name, names))
                for name in unknown
            )
        )
    return [names[name] for name in dict.fromkeys(switches)]


def _check_steerable(lab: Lab, mode: str, options: HashOptions) -> None:
    """InputError where a mode needs the expected next hops of each route: an imported topology defines none."""
    by_hash = {"spray": options.choice == "random", "flowlet": options.first == "hash"}
    needs = options.resilient or mode in ("pinned", "exact-match", "adaptive") or not by_hash.get(mode, True)
    if needs and not lab.blueprint.rendered and not any(row.steering.groups for row in wanted(lab).values()):
        why = "needs the expected routes of a fabric file, and this topology was imported"
        hint = "use flow, e-ecmp, spray with choice: random, or flowlet with first: hash"
        raise InputError(Problem("", f"mode {mode}" if not options.resilient else "resilient", why, hint))


def with_exact(row: SwitchHashing, entries: Exact) -> SwitchHashing:
    """The same rule with another exact-match table."""
    return replace(row, steering=replace(row.steering, exact=dict(entries)))


def expected(lab: Lab, node: Node, live: LiveHashing | None) -> SwitchHashing:
    """The hashing of a switch as it was set live; None: as in the fabric file."""
    if live is None:
        return hashing_of(lab.fabric, node)
    return with_exact(hashing_of(lab.fabric, node, live.mode, live.options, live.seed), live.exact)


def _change_and_remember(lab: Lab, rows: Sequence[SwitchHashing]) -> None:
    live = {name: row.to_json() for name, row in live_hashing(lab).items()}
    set_rows(lab, rows, live | {row.switch: LiveHashing.of(row).to_json() for row in rows})


def set_rows(lab: Lab, rows: Sequence[SwitchHashing], live: Mapping[str, Any], **more: Any) -> Mapping[str, int]:
    """Give switches their new rules, and record `live`, the hashing of those that differ from the file.

    more: further values of the lab's record. Returns switch -> the epoch of its new rule. If a switch cannot be
    changed, all switches get their old rule back. The caller holds CHANGES.
    """
    with state.recorded(lab.name, partial(_undo, lab, [row.switch for row in rows]), hashing=live, **more):
        return _change(lab, rows)


def _undo(lab: Lab, switches: Sequence[str]) -> None:
    """Give each of these switches that can be changed its recorded rule."""
    for row in [row for name, row in wanted(lab).items() if name in switches]:
        with suppress(HeddleError, OSError):  # the switch that made the change fail
            _change(lab, [row])


@spread(union, nodes=lambda rows: [row.switch for row in rows])
def _change(lab: Lab, rows: Sequence[SwitchHashing]) -> dict[str, int]:
    handles = lab.handles()
    here = [(handles[row.switch], row) for row in rows if row.switch in handles]
    return dict(change(lab.name, here, lab.fabric.policy.ip_version))


CONTROLLER: Final = "te"  # the lock that a controller has while it runs
_HISTORY: Final = "changes.json"


@dataclass(frozen=True, slots=True)
class Engineered:
    """The installed entries. by: the command. at: when they changed last, seconds since the epoch. changes: how often.

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

    A switch whose mode was changed since then keeps that mode, without the entries. InputError when no entries are
    installed; MachineError when a switch cannot be changed: then all keep their rule.
    """
    with owners.lock(lab.name, owners.CHANGES):
        found = engineered(lab.name)
        if found is None:
            why = "has no installed entries of traffic engineering"
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
