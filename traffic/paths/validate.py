"""Every check that applies to a running lab: is each port and kernel what the fabric file says, and does it forward?

In:  a running Lab.
Out: a Check for each question, in the order in which they depend on one another. Nothing of the lab is changed; the
only packets sent are UDP probes from host to host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topologies import convergence
from topologies.bgp import ESTABLISHED
from topologies.fabric import Node, Tier
from topologies.namespace import inside
from topologies.problems import HeddleError, InputError
from topologies.render import HOST_SYSCTLS, switch_sysctls
from topologies.runtimes import NodeHandle
from topologies.switch import hashing, offloads, queues
from topologies.switch.hashing import read_hashing
from topologies.units import format_rate, format_size
from traffic.lastrun import last_paths
from traffic.paths.probe import probe

if TYPE_CHECKING:
    from topologies.lab import Lab

_SYSCTL: Final = Path("/proc/sys")
_SHOWN: Final = 4  # faults named in one line
_BURST_PACKETS: Final = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer; detail says what was looked at, or what is wrong and where."""

    name: str
    ok: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """One row of `checks`."""
        return asdict(self)


# A check returns what it looked at, and everything that is wrong.
_Found = tuple[str, list[str]]


def validate(lab: Lab) -> tuple[Check, ...]:
    """All checks; one that cannot be made has failed, and says why."""
    handles = lab.handles()
    checks: tuple[tuple[str, Callable[[Lab, Mapping[str, NodeHandle]], _Found]], ...] = (
        ("sysctls", _sysctls),
        ("hashing", _hashing),
        ("queues", _queues),
        ("offloads", _offloads),
        ("programs", _programs),
        ("daemons", _daemons),
        ("bgp", _bgp),
        ("routes", _routes),
        ("reachability", _reachability),
        ("paths", _paths),
    )
    return tuple(_check(name, partial(check, lab, handles)) for name, check in checks)


def _check(name: str, ask: Callable[[], _Found]) -> Check:
    try:
        looked_at, faults = ask()
    except HeddleError as error:
        return Check(name, False, "; ".join(str(problem).partition("\n")[0] for problem in error.problems))
    if not faults:
        return Check(name, True, looked_at)
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return Check(name, False, "; ".join(faults[:_SHOWN]) + more)


def _sysctls(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    faults: list[str] = []
    count = 0
    for node in lab.fabric.nodes:
        wanted = dict(HOST_SYSCTLS if node.tier is Tier.HOST else switch_sysctls(lab.fabric))
        if node.tier is not Tier.HOST:
            rules = hashing.sysctls(lab.fabric.spec.routing.ecmp, node.hash_seed or 1)
            wanted |= {f"net.ipv4.{key}": value for key, value in rules.items()}
        count += len(wanted)
        with inside(handles[node.name].netns):
            for key, value in wanted.items():
                path = _SYSCTL / key.replace(".", "/")
                now = path.read_text().strip() if path.exists() else "missing"
                if now != value:
                    faults.append(f"{node.name}: {key} is {now}, not {value}")
    return f"{count} as rendered", faults


def _hashing(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    mode = lab.fabric.spec.routing.ecmp
    policy = int(hashing.sysctls(mode, 1)["fib_multipath_hash_policy"])
    faults: list[str] = []
    for node in lab.fabric.switches:
        now = read_hashing(lab.name, handles[node.name])
        if (now.mode, now.seed, now.policy) != (mode, node.hash_seed, policy):
            faults.append(f"{node.name}: {now.mode} with seed {now.seed} and policy {now.policy}, not {mode}")
    return f"{mode} on {len(lab.fabric.switches)} switches, each with its seed", faults


def _queues(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    buffer = lab.fabric.spec.queues.buffer
    faults: list[str] = []
    for node in lab.fabric.nodes:
        found = queues.read(handles[node.name].netns, _names(node))
        for port in node.ports:
            row = found.get(port.name)
            if row is None:
                faults.append(f"{port.ref} has no shaper")
            elif row.rate_bps != port.rate_bps or row.ceil_bps != port.rate_bps:
                faults.append(f"{port.ref} is shaped to {format_rate(row.rate_bps)}, not {format_rate(port.rate_bps)}")
            elif row.limit_bytes != buffer:
                faults.append(f"{port.ref} holds {format_size(row.limit_bytes)}, not {format_size(buffer)}")
            elif row.burst > _BURST_PACKETS * port.mtu + 1:
                faults.append(f"{port.ref} may burst {row.burst} bytes, more than {_BURST_PACKETS} packets")
    rates = sorted({port.rate_bps for node in lab.fabric.nodes for port in node.ports})
    return f"{_ports(lab)} ports at {', '.join(format_rate(r) for r in rates)}, {format_size(buffer)} each", faults


def _offloads(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    faults = [
        f"{node.name}:{port} has {', '.join(on)} on"
        for node in lab.fabric.nodes
        for port, on in offloads.read(handles[node.name].netns, _names(node)).items()
        if on
    ]
    return f"{', '.join(offloads.FEATURES)} off on {_ports(lab)} ports", faults


def _programs(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    faults: list[str] = []
    for node in lab.fabric.nodes:
        wanted = ("ingress:nic",) if node.tier is Tier.HOST else ("ingress:hash", "egress:count")
        for port, found in queues.read_programs(handles[node.name].netns, _names(node)).items():
            if found != wanted:
                faults.append(f"{node.name}:{port} has {', '.join(found) or 'no program'}, not {', '.join(wanted)}")
    return f"attached on {_ports(lab)} ports", faults


def _daemons(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    silent = [f"{fault.where}: {fault.what} {fault.why}" for fault in lab.faults()]
    return f"zebra and bgpd answer on {len(lab.fabric.switches)} switches", silent


def _bgp(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    del handles
    faults: list[str] = []
    expected = 0
    for node in lab.fabric.switches:
        states = lab.neighbours(node.name)
        wanted = [p for p in node.ports if lab.fabric.by_name[p.peer_node].tier is not Tier.HOST]
        expected += len(wanted)
        if states is None:
            faults.append(f"{node.name}: bgpd does not answer")
            continue
        now = {port.ref: states.get(port.name, "not configured") for port in wanted}
        faults += [f"{ref}: {state}" for ref, state in now.items() if state != ESTABLISHED]
    return f"{expected // 2} sessions established", faults


def _routes(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    faults = []
    for gap in convergence.gaps(lab.fabric, handles):
        wrong = [f"lacks {port}" for port in sorted(gap.missing)] + [f"has {port} too" for port in sorted(gap.extra)]
        faults.append(f"{gap.switch}: {gap.prefix} {', '.join(wrong)}")
    count = sum(len(table) for table in lab.fabric.expected_next_hops.values())
    return f"{count} prefixes with all their next hops, in every kernel", faults


def _reachability(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    result = probe(lab.fabric, handles)
    size = lab.fabric.spec.link.mtu
    return f"{result.tried} pairs of hosts, {size}-byte packets that must not be fragmented", list(result.faults)


def _paths(lab: Lab, handles: Mapping[str, NodeHandle]) -> _Found:
    del handles
    try:
        result = last_paths(lab)
    except InputError:
        return "no run yet", []
    wrong = [f"{p.flow.src} to {p.flow.dst}, QP {p.flow.qpn}: {p.why}" for p in result.flows if p.why]
    if not result.agree and not wrong:
        wrong = list(result.notes)
    return f"prediction, oracle and counters agree on {len(result.flows)} QPs of the last run", wrong


def _names(node: Node) -> Iterable[str]:
    return [port.name for port in node.ports]


def _ports(lab: Lab) -> int:
    return sum(len(node.ports) for node in lab.fabric.nodes)
