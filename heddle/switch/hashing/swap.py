"""Change the rules of switches while packets pass: every packet sees the old rule or the new one, and none is lost.

In:  the name of a lab, the handles of switches, and their new hashing.
Out: changed maps and sysctls. All new tables are written before the first switch changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from heddle.base.sysctls import sysctl_number, sysctl_path
from heddle.fabric import hashmodes
from heddle.fabric.hashmodes import programmed
from heddle.kernel.fib import port_names
from heddle.kernel.grace import grace
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import SwitchHashing, pin_dir
from heddle.switch.hashing.maps import Tables


def change(lab: str, rows: Sequence[tuple[NodeHandle, SwitchHashing]], version: int = 4) -> Mapping[str, int]:
    """Give switches their new rules. version: IP version of the fabric's hosts. Returns switch -> epoch of its rule.

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
        return {job.handle.name: job.tables.epoch for job in jobs}


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
        old = self.tables.read(None)
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
