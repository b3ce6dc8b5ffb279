"""How a switch chooses among equal-cost paths: sysctls, one BPF program, and the tables it reads.

In mode `flow` the kernel's own hash decides: by default of the 5-tuple (policy 3, fields 0x37), with the switch's seed.
In all other modes the program `hash` gives RoCEv2 packets a hash, which the kernel uses under policy 1, or it sends
them to a port (bpf/hash.c). The kernel hashes all other packets in every mode. The program is on every port in every
mode, so a change of mode is a few map writes and at most three sysctls (`change`): every packet sees the old rule or
the new one, and none is lost.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.base.sysctls import HASH_SEED, read_sysctl, sysctl_number, sysctl_path
from heddle.fabric.hashmodes import POLICY_CUSTOM, POLICY_L4, kernel_policy, programmed, sysctls
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node
from heddle.kernel.fib import port_names
from heddle.kernel.grace import grace
from heddle.kernel.libbpf import BPFFS
from heddle.kernel.namespace import NodeHandle, inside
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, FIELDS_5_TUPLE, HashOptions
from heddle.switch.hashing.maps import NO_STEERING, ProgramRule, Steering, Tables, steering_of

PINS: Final = BPFFS / "heddle"


@dataclass(frozen=True, slots=True)
class SwitchHashing:
    """A switch's current hashing. seed: the one that this mode uses for RoCEv2, 32 bits. policy, fields: the sysctls.

    kernel_seed: by which the kernel hashes all other packets; 0 if it is random, or not known.
    """

    switch: str
    mode: str
    seed: int
    policy: int
    fields: int
    options: HashOptions = DEFAULT_OPTIONS
    steering: Steering = NO_STEERING
    kernel_seed: int = field(default=0, compare=False)

    @property
    def by_program(self) -> bool:
        """True when the program's hash decides: the kernel uses it only under policy 1."""
        return programmed(self.mode, self.options) and self.policy == POLICY_L4

    def to_json(self) -> dict[str, Any]:
        words = {name: getattr(self, name) for name in ("switch", "mode", "seed", "policy", "fields")}
        more = {"options": self.options.to_json(), "steering": self.steering.to_json()}
        return {**words, **more, "kernel_seed": self.kernel_seed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SwitchHashing:
        seed, policy, fields = (int(data[key]) for key in ("seed", "policy", "fields"))
        options, steering = HashOptions.from_json(data["options"]), Steering.from_json(data["steering"])
        kernel_seed = int(data["kernel_seed"])
        return cls(str(data["switch"]), str(data["mode"]), seed, policy, fields, options, steering, kernel_seed)


def chosen(
    fabric: Fabric, node: Node, mode: str | None = None, options: HashOptions | None = None, seed: int | None = None
) -> tuple[str, int, HashOptions]:
    """Mode, seed and options of a switch: from the fabric file, unless a parameter overrides them."""
    routing = fabric.policy.routing
    return mode or routing.ecmp, seed or node.hash_seed or 1, options or routing.hash


def hashing_of(
    fabric: Fabric, node: Node, mode: str | None = None, options: HashOptions | None = None, seed: int | None = None
) -> SwitchHashing:
    """The wanted hashing of a switch: from the fabric file, unless a parameter overrides it."""
    mode, seed, options = chosen(fabric, node, mode, options, seed)
    policy = kernel_policy(mode, options, fabric.policy.ip_version)
    fields = options.fields if policy == POLICY_CUSTOM else FIELDS_5_TUPLE
    return SwitchHashing(node.name, mode, seed, policy, fields, options, steering_of(fabric, node, options), seed)


def pin_dir(lab: str, switch: str) -> Path:
    """The directory with the pins of a switch's programs and maps."""
    return PINS / lab / switch


def write_sysctls(netns: Path, rules: Mapping[str, str], kept: Container[str] = ()) -> None:
    """Set sysctls, by their full names, in a namespace; MachineError when this kernel is too old for them.

    kept: sysctls that an imported topology sets itself; they are not written.
    """
    with inside(netns):
        for name, value in rules.items():
            if name in kept:
                continue
            try:
                sysctl_path(name).write_text(value)
            except FileNotFoundError:
                raise MachineError(Problem(netns.name, name, "is not in this kernel", _since(name))) from None
            except OSError as error:
                raise MachineError(Problem(netns.name, name, f"cannot be set to {value}: {error.strerror}")) from None


def check_sysctls(netns: Path, rules: Mapping[str, str]) -> None:
    """MachineError when this kernel does not have one of the sysctls; change nothing."""
    with inside(netns):
        missing = [name for name in rules if not sysctl_path(name).exists()]
    if missing:
        raise MachineError(*(Problem(netns.name, name, "is not in this kernel", _since(name)) for name in missing))


def _since(name: str) -> str:
    return f"use Linux {'6.11' if name == HASH_SEED else '5.14'} or later"


def rule_of(hashing: SwitchHashing, version: int) -> ProgramRule:
    """The rule to write to the switch's maps."""
    by_program = programmed(hashing.mode, hashing.options)
    clears = not by_program and hashing.policy == POLICY_L4
    known: Any = 6 if version == 6 else 4
    return ProgramRule(hashing.mode, hashing.seed, hashing.options, hashing.steering, known, clears)


def hashing_in(tables: Tables, switch: str, names: Mapping[int, str]) -> SwitchHashing:
    """Mode, options and tables from the maps; policy and fields, and the seed in use, from the kernel.

    The calling thread is in the switch's namespace. names: ifindex -> name.
    """
    rule = tables.read(names)
    values = [0, 0, 0]
    for index, name in enumerate(sysctls("flow", 0, version=rule.version)):
        with suppress(FileNotFoundError):
            values[index] = int(read_sysctl(name))
    policy, fields, kernel_seed = values
    found = SwitchHashing(switch, rule.mode, rule.seed, policy, fields, rule.options, rule.steering, kernel_seed)
    return found if found.by_program else replace(found, seed=kernel_seed)


def change(lab: str, rows: Sequence[tuple[NodeHandle, SwitchHashing]], version: int = 4) -> Mapping[str, int]:
    """Give switches their new rules. version: IP version of the fabric's hosts. Returns switch -> epoch of its rule.

    A switch handles a packet, from the BPF program to the kernel's choice, within one RCU read-side section. So after
    `grace` no packet is in progress that has seen the previous state. The order of the steps relies on this. All new
    tables are written before the first switch changes.
    """
    with ExitStack() as stack:
        jobs = [_Job.of(lab, handle, row, version, stack) for handle, row in rows]
        for job in jobs:
            check_sysctls(job.handle.netns, job.rules)
        grace()  # the halves that are filled next may have been active until now
        for job in jobs:
            job.tables.fill(rule_of(job.row, version), {name: index for index, name in job.names.items()})
        for job in jobs:
            job.flip()
        if any(job.rest for job in jobs):
            grace()
        for job in jobs:
            write_sysctls(job.handle.netns, job.rest)
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
        rules = sysctls(row.mode, row.seed, row.options, version)
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
        by_program = programmed(old.mode, old.options) and before == POLICY_L4
        netns = self.handle.netns
        if policy[path] == str(POLICY_L4):
            if by_program and not programmed(self.row.mode, self.row.options):
                write_sysctls(netns, numbers)
            self.tables.flip()
            with inside(netns):
                now = {name: sysctl_number(sysctl_path(name).read_text()) for name in self.rules}
            self.rest = self.rules if now != {name: sysctl_number(each) for name, each in self.rules.items()} else {}
            return
        first = numbers if by_program or before != POLICY_CUSTOM else policy
        write_sysctls(netns, first)
        write_sysctls(netns, self.rules)
        self.tables.flip()
