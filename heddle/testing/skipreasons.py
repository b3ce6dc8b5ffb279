"""Why this machine cannot run a test: first faults that `doctor` finds, then faults that `up` would report.

In:  a fabric and a runtime. Out: the reason in one line, empty when the machine can run it. Nothing is made.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from heddle.base.problems import MachineError, Problem

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.host.doctor import Check

# By its path: sudo has a PATH of its own, whose Python may have no Heddle.
_AS_ROOT: Final = f"sudo -E {shlex.quote(sys.executable)} -m pytest"
_ROOT: Final = f"root: network namespaces need root (run pytest as root, for example: {_AS_ROOT})"
_CONTAINERS: Final = ("docker", "engine", "containerlab", "images")  # optional checks that runtime containerlab needs
_ON_HOST: Final = ("root", "frr")  # "root" has a text of its own here; containers have an FRR of their own


def cannot_run(fabric: Fabric, runtime: str) -> str:
    """The reason, with the command that helps; empty when nothing is missing."""
    reasons = [] if os.geteuid() == 0 else [_ROOT]
    needed = _needed(fabric, runtime)
    reasons += [_text(check) for check in _checks() if not check.ok and _counts(check, runtime, needed)]
    reasons += _short_of_memory(fabric)
    # A problem's text names the program as the user started it.
    return str(Problem("", "; ".join(reasons or _refused(fabric, runtime)), ""))


@cache
def _checks() -> tuple[Check, ...]:
    """All checks of doctor, made once a session: they take a second."""
    from heddle.host.doctor import examine

    return examine().checks


def _needed(fabric: Fabric, runtime: str) -> set[str]:
    """Optional checks that this fabric or this runtime needs."""
    queues = fabric.policy.queues
    wanted = set(_CONTAINERS) if runtime == "containerlab" else set()
    if queues.scheduler == "ets":
        wanted.add("ets")
    if queues.ecn.enabled and queues.ecn.marker == "red":
        wanted.add("red")
    return wanted


def _counts(check: Check, runtime: str, needed: Iterable[str]) -> bool:
    if check.name in ("root", "memory") or (check.name in _ON_HOST and runtime == "containerlab"):
        return False
    return check.required or check.name in needed


def _short_of_memory(fabric: Fabric) -> list[str]:
    """Less memory than doctor asks of a machine is enough for a small fabric: here its switches are known."""
    from heddle.host.capacity import ENOUGH_MB, RESERVE_MB, SWITCH_MB, free_bytes

    free, needed = free_bytes() >> 20, RESERVE_MB + SWITCH_MB * len(fabric.switches)
    why = f"memory: {free:,} MB free, and {len(fabric.switches)} switches need about {needed:,} MB (free some memory)"
    return [why] if free < min(needed, ENOUGH_MB) else []


def _text(check: Check) -> str:
    """`frr: no zebra and no bgpd (apt-get install frr)`."""
    return f"{check.name}: {check.detail}" + (f" ({check.fix})" if check.fix else "")


def _refused(fabric: Fabric, runtime: str) -> list[str]:
    """Reasons for which `up` would refuse the fabric before it makes anything."""
    from heddle.host.preflight import preflight
    from heddle.runtimes.registry import get_runtime
    from heddle.switch import install as switch

    try:
        preflight(fabric, daemons=get_runtime(runtime).daemons_here)
        switch.check(fabric)
    except MachineError as error:
        return list(map(_one_line, error.problems))
    return []


def _one_line(problem: Problem) -> str:
    head = f"{problem.where}  {problem.what} {problem.why}".strip()
    return f"{head} ({problem.hint})" if problem.hint else head
