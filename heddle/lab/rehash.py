"""Change the hashing of switches while packets pass: every packet sees the old or the new rule, and none is lost.

In:  a running lab, and the new hashing of its switches.
Out: an entry in the lab's record, which `validate`, `run` and `up --repair` use; then changed maps and sysctls.
Everything is checked, and every new table is written, before the first switch changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from heddle.base import owners, state
from heddle.base.families import Network
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.base.sysctls import HASH_SEED, sysctl_number, sysctl_path
from heddle.fabric import hashmodes
from heddle.fabric.hashmodes import programmed
from heddle.fabric.model import Node
from heddle.fabric.policy import DEFAULT_OPTIONS, HashOptions
from heddle.fabric.seeds import seed_for
from heddle.kernel.fib import port_names
from heddle.kernel.grace import grace
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of, pin_dir
from heddle.switch.hashing.maps import Tables
from heddle.switch.hashing.steering import Exact, exact_from_json, exact_to_json

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

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
        """Plain data."""
        rows = exact_to_json(self.exact)
        return {"mode": self.mode, "seed": self.seed, "options": self.options.to_json(), "exact": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveHashing:
        """From the output of `to_json`."""
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


def wanted(lab: Lab) -> dict[str, SwitchHashing]:
    """Switch -> its expected hashing: as set last, or else as in the fabric file."""
    live = live_hashing(lab)
    return {node.name: _wanted(lab, node, live.get(node.name)) for node in lab.fabric.switches}


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
                row = _with_exact(hashing_of(lab.fabric, node, mode, options, chosen), row.steering.exact)
            whole = (exact or {}).get(node.name, row.steering.exact)
            rows.append(_with_exact(row, {**whole, **(added or {}).get(node.name, {})}))
        _change_and_remember(lab, rows)


def set_exact(lab: Lab, switch: str, entries: Exact) -> None:
    """Replace a switch's whole exact-match table, in one swap; its mode stays. Raises as set_hashing does."""
    check_exact(lab, {switch: entries})
    with owners.lock(lab.name, owners.CHANGES):
        _change_and_remember(lab, [_with_exact(wanted(lab)[switch], entries)])


def restore_hashing(lab: Lab) -> bool:
    """Restore the hashing of the fabric file on every switch, and clear the record; False when none was changed.

    Raises as set_hashing does.
    """
    with owners.lock(lab.name, owners.CHANGES):
        live = live_hashing(lab)
        if not live:
            return False
        _set(lab, [_wanted(lab, node, None) for node in lab.fabric.switches if node.name in live], {})
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
        for (sport, prefix), ports in entries.items():
            place = (where or {}).get((switch, sport, prefix), "")
            problems += [replace(wrong, where=place) for wrong in _wrong_entry(lab, node, sport, prefix, ports)]
    if problems:
        raise InputError(*problems)


def _wrong_entry(lab: Lab, node: Node, sport: int, prefix: Network, ports: tuple[str, ...]) -> Iterable[Problem]:
    what = f"{node.name} {sport} {prefix} {' '.join(ports)}"
    if not 1 <= sport <= 65535:
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


def change(lab: str, rows: Sequence[tuple[NodeHandle, SwitchHashing]], version: int = 4) -> None:
    """Give switches their new rules. version: IP version of the fabric's hosts.

    A switch handles a packet, from the BPF program to the kernel's choice, within one RCU read-side section. So after
    `grace` no packet is in progress that has seen the previous state. The order of the steps relies on this.
    """
    with ExitStack() as stack:
        jobs = [_Job.of(lab, handle, row, version, stack) for handle, row in rows]
        for job in jobs:
            hashing.check_sysctls(job.handle.netns, job.rules)
        grace()  # the halves that are filled next may have been active until now
        for job in jobs:
            job.tables.fill(hashing.rule_of(job.row, version), {name: index for index, name in job.names.items()})
        for job in jobs:
            job.flip()
        if any(job.rest for job in jobs):
            grace()
        for job in jobs:
            hashing.write_sysctls(job.handle.netns, job.rest)


@dataclass(slots=True)
class _Job:
    """The change of one switch. rest: sysctls that are written when no packet uses the old rule any more."""

    handle: NodeHandle
    row: SwitchHashing
    tables: Tables
    names: Mapping[int, str]
    rules: Mapping[str, str]
    rest: Mapping[str, str]

    @classmethod
    def of(cls, lab: str, handle: NodeHandle, row: SwitchHashing, version: int, stack: ExitStack) -> _Job:
        tables = stack.enter_context(Tables.pinned(pin_dir(lab, handle.name)))
        rules = hashmodes.sysctls(row.mode, row.seed, row.options, version)
        return cls(handle, row, tables, port_names(handle), rules, {})

    def flip(self) -> None:
        """Activate the new half, and first write the sysctls that must precede it.

        The kernel's seed and fields matter only while the kernel alone hashes RoCEv2. Under the policies of `flow`
        other than l4 the kernel ignores the program's hash, so there the policy alone decides.
        """
        policy = {name: value for name, value in self.rules.items() if name.endswith("_policy")}
        numbers = {name: value for name, value in self.rules.items() if name not in policy}
        (path,) = policy
        with inside(self.handle.netns):
            before = sysctl_number(sysctl_path(path).read_text())
        old = self.tables.read(self.names)
        by_program = programmed(old.mode, old.options) and before == hashmodes.POLICY_L4
        netns = self.handle.netns
        if policy[path] == str(hashmodes.POLICY_L4):
            if by_program and not programmed(self.row.mode, self.row.options):
                hashing.write_sysctls(netns, numbers)
            self.tables.flip()
            self.rest = self.rules if self._differs() else {}
            return
        first = numbers if by_program or before != hashmodes.POLICY_CUSTOM else policy
        hashing.write_sysctls(netns, first)
        hashing.write_sysctls(netns, self.rules)
        self.tables.flip()

    def _differs(self) -> bool:
        """True when a sysctl does not have the value of the new rule yet."""
        with inside(self.handle.netns):
            now = {name: sysctl_number(sysctl_path(name).read_text()) for name in self.rules}
        return now != {name: sysctl_number(value) for name, value in self.rules.items()}


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
    if needs and not any(row.steering.groups for row in wanted(lab).values()) and not lab.blueprint.rendered:
        why = "needs the expected routes of a fabric file, and this topology was imported"
        hint = "use flow, e-ecmp, spray with choice: random, or flowlet with first: hash"
        raise InputError(Problem("", f"mode {mode}" if not options.resilient else "resilient", why, hint))


def _with_exact(row: SwitchHashing, entries: Exact) -> SwitchHashing:
    return replace(row, steering=replace(row.steering, exact=dict(entries)))


def _wanted(lab: Lab, node: Node, live: LiveHashing | None) -> SwitchHashing:
    if live is None:
        return hashing_of(lab.fabric, node)
    return _with_exact(hashing_of(lab.fabric, node, live.mode, live.options, live.seed), live.exact)


def _change_and_remember(lab: Lab, rows: Sequence[SwitchHashing]) -> None:
    live = {name: row.to_json() for name, row in live_hashing(lab).items()}
    _set(lab, rows, live | {row.switch: LiveHashing.of(row).to_json() for row in rows})


def _set(lab: Lab, rows: Sequence[SwitchHashing], live: Mapping[str, Any]) -> None:
    """Record the hashing of the switches that differ from the file, `live`, and give switches their new rules."""
    with state.recorded(lab.name, partial(reapply_hashing, lab), hashing=live):
        _change(lab, rows)


def _change(lab: Lab, rows: Sequence[SwitchHashing]) -> None:
    handles = lab.handles()
    change(lab.name, [(handles[row.switch], row) for row in rows], lab.fabric.policy.ip_version)
