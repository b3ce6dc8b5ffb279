"""How a switch chooses among equal paths: sysctls, one BPF program, and the tables it reads.

Under `flow` the kernel's own hash decides: of the 5-tuple by default (policy 3, fields 0x37), with the switch's seed.
In all other modes the program `hash` gives RoCEv2 packets a hash, which the kernel takes under policy 1, or sends them
to a port (bpf/hash.c). What is no RoCEv2 is hashed by the kernel in every mode. The program is on every port in all of
them, so that a mode is a few map writes and at most three sysctls: see rehash.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.base.sysctls import HASH_SEED, SYSCTLS
from heddle.fabric.model import Fabric, Node
from heddle.kernel.fib import port_names
from heddle.kernel.handle import NodeHandle
from heddle.kernel.libbpf import BPFFS
from heddle.kernel.namespace import inside
from heddle.switch.hashing.maps import MODES, POLICIES, ProgramRule, Tables
from heddle.switch.hashing.steering import DEFAULT_OPTIONS, NO_STEERING, HashOptions, Steering, Udf, steering_of

if TYPE_CHECKING:
    from heddle.spec.schema import RoutingSpec

__all__ = ["MODES", "POLICIES", "HashOptions", "Steering", "SwitchHashing"]
PINS: Final = BPFFS / "heddle"
FIELDS_5_TUPLE: Final = 0x37  # FIB_MULTIPATH_HASH_FIELD_{SRC,DST}_{IP,PORT} and IP_PROTO
FIELDS: Final[Mapping[str, int]] = {  # FIB_MULTIPATH_HASH_FIELD_*, in the words of a fabric file
    "src": 0x01, "dst": 0x02, "proto": 0x04, "flowlabel": 0x08, "sport": 0x10, "dport": 0x20,
}  # fmt: skip
POLICY_L4: Final = POLICIES["l4"]  # takes skb->hash when it is a layer-4 one
POLICY_CUSTOM: Final = POLICIES["fields"]  # never does


@dataclass(frozen=True, slots=True)
class SwitchHashing:
    """A switch's hashing as it is now. seed: the one that counts in this mode, 32 bits. policy, fields: the sysctls."""

    switch: str
    mode: str
    seed: int
    policy: int
    fields: int
    options: HashOptions = DEFAULT_OPTIONS
    steering: Steering = NO_STEERING

    @property
    def by_program(self) -> bool:
        """True when the program's hash decides: the kernel heeds it under policy 1 only."""
        return programmed(self.mode, self.options) and self.policy == POLICY_L4

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        words = {name: getattr(self, name) for name in ("switch", "mode", "seed", "policy", "fields")}
        return {**words, "options": self.options.to_json(), "steering": self.steering.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SwitchHashing:
        """What `to_json` wrote."""
        seed, policy, fields = (int(data[key]) for key in ("seed", "policy", "fields"))
        options, steering = HashOptions.from_json(data["options"]), Steering.from_json(data["steering"])
        return cls(str(data["switch"]), str(data["mode"]), seed, policy, fields, options, steering)


def programmed(mode: str, options: HashOptions) -> bool:
    """Whether RoCEv2 is hashed or steered by the BPF program in this mode, and not by the kernel alone."""
    return mode != "flow" or options.resilient


def options_of(routing: RoutingSpec) -> HashOptions:
    """What a fabric file says of hashing, as plain values."""
    chosen = routing.hash
    return HashOptions(
        policy=chosen.policy,
        fields=sum(FIELDS[name] for name in chosen.fields),
        udf=Udf(chosen.udf.base, chosen.udf.offset, chosen.udf.bytes),
        gap_ns=chosen.gap,
        first=chosen.first,
        choice=chosen.choice,
        resilient=routing.resilient,
        buckets=chosen.buckets,
    )


def hashing_of(
    fabric: Fabric, node: Node, mode: str | None = None, options: HashOptions | None = None, seed: int | None = None
) -> SwitchHashing:
    """What a switch of a fabric should do: as its file says, where nothing else is given."""
    routing = fabric.spec.routing
    mode, options = mode or routing.ecmp, options or options_of(routing)
    policy = kernel_policy(mode, options, fabric.spec.ip_version)
    fields = options.fields if policy == POLICY_CUSTOM else FIELDS_5_TUPLE
    seed = seed or node.hash_seed or 1
    return SwitchHashing(node.name, mode, seed, policy, fields, options, steering_of(fabric, node, options))


def kernel_policy(mode: str, options: HashOptions, version: int = 4) -> int:
    """The fib_multipath_hash_policy that goes with a mode. KeyError for a mode or policy that is none.

    IPv6 packets are hashed otherwise under policy 3 than the kernel says when it is asked for a route
    (rt6_multipath_custom_hash_skb and _fl6), so there the whole 5-tuple is policy 1.
    """
    if MODES[mode] != MODES["flow"] or options.resilient:
        return POLICY_L4
    if version == 6 and options.policy == "fields" and options.fields == FIELDS_5_TUPLE:
        return POLICY_L4
    return POLICIES[options.policy]


def sysctls(mode: str, seed: int, options: HashOptions | None = None, version: int = 4) -> dict[str, str]:
    """The sysctls of a mode, by their full names. KeyError for a mode that is none.

    Without the kernel's own hash the seed is left out where the kernel has none: RoCE is seeded by the program then,
    and the rest hashes alike in all switches, as it always did before Linux 6.11.
    """
    options = options or DEFAULT_OPTIONS
    policy = kernel_policy(mode, options, version)
    fields = options.fields if policy == POLICY_CUSTOM else FIELDS_5_TUPLE
    rules = {
        f"net.ipv{version}.fib_multipath_hash_policy": str(policy),
        f"net.ipv{version}.fib_multipath_hash_fields": str(fields),
        HASH_SEED: str(seed),
    }
    if programmed(mode, options) and not sysctl_path(HASH_SEED).exists():
        del rules[HASH_SEED]
    return rules


def sysctl_path(name: str) -> Path:
    """Where a sysctl is read and written, in the namespace that the calling thread stands in."""
    return SYSCTLS / name.replace(".", "/")


def number(text: str) -> int:
    """A sysctl's value as the kernel reads it: 0x1 and 010 are not decimal (proc_get_long, strtoul with base 0).

    ValueError for what is no number.
    """
    word = text.strip()
    octal = len(word) > 1 and word[0] == "0" and word.isdigit()
    return int(word, 8 if octal else 0)


def pin_dir(lab: str, switch: str) -> Path:
    """Where the programs and maps of a switch have their names."""
    return PINS / lab / switch


def write_sysctls(netns: Path, rules: Mapping[str, str], kept: Container[str] = ()) -> None:
    """Set sysctls, by their full names, in a namespace; MachineError when the kernel is too old to have them.

    kept: those that stay as they are: a topology of somebody's own sets them.
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
                raise MachineError(Problem(netns.name, name, f"refuses {value}: {error.strerror}")) from None


def check_sysctls(netns: Path, rules: Mapping[str, str]) -> None:
    """MachineError when the kernel lacks one of them; nothing is changed."""
    with inside(netns):
        lacking = [name for name in rules if not sysctl_path(name).exists()]
    if lacking:
        raise MachineError(*(Problem(netns.name, name, "is not in this kernel", _since(name)) for name in lacking))


def _since(name: str) -> str:
    return f"Linux {'6.11' if name == HASH_SEED else '5.14'} or later has it"


def rule_of(hashing: SwitchHashing, version: int) -> ProgramRule:
    """What the switch's maps have to say for it."""
    by_program = programmed(hashing.mode, hashing.options)
    clears = not by_program and hashing.policy == POLICY_L4
    known: Any = 6 if version == 6 else 4
    return ProgramRule(hashing.mode, hashing.seed, hashing.options, hashing.steering, known, clears)


def read_hashing(lab: str, handle: NodeHandle) -> SwitchHashing:
    """Mode, options and tables as the maps have them, policy and fields as the kernel has, and the seed that counts.

    MachineError when the switch was not set up.
    """
    names = port_names(handle)
    with Tables.pinned(pin_dir(lab, handle.name)) as tables, inside(handle.netns):
        return hashing_in(tables, handle.name, names)


def hashing_in(tables: Tables, switch: str, names: Mapping[int, str]) -> SwitchHashing:
    """The same of a switch in whose namespace the calling thread is. names: ifindex -> interface name."""
    rule = tables.read(names)
    values: list[int] = []
    for name in sysctls("flow", 0, version=rule.version):
        path = sysctl_path(name)
        values.append(int(path.read_text()) if path.exists() else 0)
    policy, fields, kernel_seed = values
    found = SwitchHashing(switch, rule.mode, rule.seed, policy, fields, rule.options, rule.steering)
    return found if found.by_program else replace(found, seed=kernel_seed)
