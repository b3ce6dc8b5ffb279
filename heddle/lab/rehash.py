"""Change the hashing of switches while packets pass: every packet sees the old or the new rule, and none is lost.

In:  a running lab, and the new hashing of its switches.
Out: an entry in the lab's record, which `validate`, `run` and `up --repair` use; then changed maps and sysctls.
Everything is checked, and every new table is written, before the first switch changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from heddle.base import owners, state
from heddle.base.families import Network
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, did_you_mean
from heddle.base.sysctls import HASH_SEED, sysctl_number
from heddle.fabric import hashmodes
from heddle.fabric.hashmodes import seed_for
from heddle.fabric.model import Node
from heddle.fabric.policy import DEFAULT_OPTIONS, HashOptions
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import spread, union
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.switch.hashing.steering import Exact, exact_from_json, exact_to_json
from heddle.switch.hashing.swap import change

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


def set_live(lab: Lab) -> frozenset[str]:
    """The switches whose hashing was set while the lab was running."""
    return frozenset(live_hashing(lab))


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
    """Give switches their recorded rules where others are in force, as after a `hashing` that was killed; their names.

    Of an imported topology only those that were set while it ran: the others may have sysctls of their own. The caller
    holds CHANGES.
    """
    rows, mine = wanted(lab), set_live(lab)
    wrong = hashing_faults(lab, lab.snapshot(LabPart.HASHING).hashing)
    names = [name for name in wrong if lab.blueprint.rendered or name in mine]
    if names:
        _change(lab, [rows[name] for name in names])
    return names


def hashing_sysctls(lab: Lab) -> dict[str, dict[str, str]]:
    """Switch -> expected hashing sysctls: as set last by `hashing --set`, else by its topology, else by Heddle."""
    version, live, kept = lab.fabric.policy.ip_version, set_live(lab), lab.blueprint.own_hashing()
    return {
        name: hashmodes.sysctls(row.mode, row.seed, row.options, version)
        | ({} if name in live else dict(kept.get(name, {})))
        for name, row in wanted(lab).items()
    }


def hashing_faults(lab: Lab, found: Mapping[str, SwitchHashing]) -> dict[str, str]:
    """Switch -> how its mode, seed, options or tables differ from those that were set last. found: as read now."""
    faults: dict[str, str] = {}
    rules = hashing_sysctls(lab)
    for name, row in wanted(lab).items():
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
