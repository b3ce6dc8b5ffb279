"""The sysctls of nodes against those that the topology sets; where it sets none, against those that Heddle needs.

In:  a Lab. Out: SysctlsRead.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.problems import Problem
from heddle.base.sysctls import sysctl_number, sysctl_path
from heddle.base.tables import some_of
from heddle.fabric.model import Role
from heddle.kernel.namespace import inside
from heddle.lab import rehash
from heddle.lab.spread import spread

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@dataclass(frozen=True, slots=True)
class SysctlsRead:
    """count: of values that were compared. notes: values that a topology decides itself, with their nodes."""

    count: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def _joined(found: Sequence[SysctlsRead]) -> SysctlsRead:
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return SysctlsRead(
        sum(each.count for each in found), tuple(p for each in found for p in each.problems), tuple(notes)
    )


@spread(_joined)
def wrong_sysctls(lab: Lab, *, repair: bool = False) -> SysctlsRead:
    """Read all of these nodes. A problem names the node, the key, its value and the expected one.

    repair: write the expected values, except those that a topology sets itself: their problems have a hint.
    """
    problems: list[Problem] = []
    count = 0
    own: dict[tuple[str, str], list[str]] = {}  # (sysctl and value, source in the topology) -> nodes
    given, decided, handles = lab.blueprint.sysctls(lab.topology), lab.blueprint.own_sysctls(), lab.handles()
    rules, live = rehash.hashing_sysctls(lab), rehash.set_live(lab)
    for node in lab.own_nodes:
        wanted = dict(given[node.name])
        settings = dict(decided.get(node.name, {}))
        if node.role is Role.SWITCH:
            wanted |= rules[node.name]
        if node.name in live:  # the verb `hashing` came later
            settings = {key: rows for key, rows in settings.items() if key not in rules[node.name]}
        count += len(wanted)
        with inside(handles[node.name].netns):
            for key, value in wanted.items():
                path = sysctl_path(key)
                now = path.read_text().strip() if path.exists() else "missing"
                sources = [each.source for each in settings.get(key, ()) if _same(now, each.value)]
                if sources:
                    own.setdefault((f"{key} is {' '.join(now.split())}", sources[-1]), []).append(node.name)
                elif certain := [each for each in settings.get(key, ()) if each.certain]:
                    set_to = certain[-1].value
                    why = f"is {now}, and the topology sets {set_to} ({certain[-1].source})"
                    hint = f"run ./inv exec --lab {lab.name} {node.name} sysctl -w {key}={shlex.quote(set_to)}"
                    problems += [] if repair else [Problem(node.name, key, why, hint)]
                elif not _same(now, value):
                    if repair and path.exists():
                        path.write_text(value)
                    problems.append(Problem(node.name, key, f"is {now}, not {value}"))
    notes = (f"{what} on {some_of(names)}, as the topology sets it ({source})" for (what, source), names in own.items())
    return SysctlsRead(count, tuple(problems), tuple(notes))


def _same(now: str, wanted: str) -> bool:
    """Whether a sysctl has the value that was written. The kernel reports 0x37 as 55, and separates numbers by tabs."""
    try:
        return [sysctl_number(word) for word in now.split()] == [sysctl_number(word) for word in wanted.split()]
    except ValueError:  # names, as of tcp_congestion_control
        return now.split() == wanted.split()
