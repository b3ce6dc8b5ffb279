"""How a switch chooses among equal paths: three sysctls, one BPF program, one map cell.

Modes: `flow` is the kernel's own hash of the 5-tuple (policy 3, fields 0x37) with the switch's seed; `e-ecmp` adds the
BTH destination QP by the BPF program `hash`, whose value the kernel takes under policy 1. What is no RoCEv2 is hashed
by 5-tuple in both. The program is on every port in both modes, so that a mode is one map write and one sysctl.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from topologies.namespace import inside
from topologies.problems import MachineError, Problem
from topologies.runtimes import NodeHandle
from topologies.switch.libbpf import BPFFS, Map

PINS: Final = BPFFS / "heddle"
MODES: Final[Mapping[str, int]] = {"flow": 0, "e-ecmp": 1}  # hash.c: MODE_FLOW, MODE_E_ECMP
FIELDS_5_TUPLE: Final = 0x37  # FIB_MULTIPATH_HASH_FIELD_{SRC,DST}_{IP,PORT} and IP_PROTO
POLICY_L4: Final = 1  # takes skb->hash when it is a layer-4 one
POLICY_CUSTOM: Final = 3  # never does
CONFIG_SIZES: Final = (4, 8)  # of hash.c's map: an index, struct hash_config
_SYSCTL: Final = Path("/proc/sys/net/ipv4")
_CONFIG: Final = struct.Struct("=II")


@dataclass(frozen=True, slots=True)
class SwitchHashing:
    """A switch's hashing as it is now. seed: the one that counts in this mode, 32 bits."""

    switch: str
    mode: str
    seed: int
    policy: int
    fields: int

    @property
    def by_program(self) -> bool:
        """True when the program's hash decides: the kernel heeds it under policy 1 only."""
        return self.mode == "e-ecmp" and self.policy == POLICY_L4

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SwitchHashing:
        """What `to_json` wrote."""
        return cls(str(data["switch"]), str(data["mode"]), *(int(data[key]) for key in ("seed", "policy", "fields")))


def sysctls(mode: str, seed: int) -> dict[str, str]:
    """The sysctls of a mode, below net.ipv4. KeyError for a mode that is none.

    Without the kernel's own hash the seed is left out where the kernel has none: RoCE is seeded by the program then,
    and the rest hashes alike in all switches, as it always did before Linux 6.11.
    """
    policy = {"flow": POLICY_CUSTOM, "e-ecmp": POLICY_L4}[mode]
    rules = {
        "fib_multipath_hash_policy": str(policy),
        "fib_multipath_hash_fields": str(FIELDS_5_TUPLE),
        "fib_multipath_hash_seed": str(seed),
    }
    if mode != "flow" and not (_SYSCTL / "fib_multipath_hash_seed").exists():
        del rules["fib_multipath_hash_seed"]
    return rules


def number(text: str) -> int:
    """A sysctl's value as the kernel reads it: 0x1 and 010 are not decimal (proc_get_long, strtoul with base 0).

    ValueError for what is no number.
    """
    word = text.strip()
    octal = len(word) > 1 and word[0] == "0" and word.isdigit()
    return int(word, 8 if octal else 0)


def config(mode: str, seed: int) -> bytes:
    """struct hash_config for a mode."""
    return _CONFIG.pack(MODES[mode], seed)


def pin_dir(lab: str, switch: str) -> Path:
    """Where the programs and maps of a switch have their names."""
    return PINS / lab / switch


def write_sysctls(netns: Path, mode: str, seed: int, kept: Container[str] = ()) -> None:
    """Set the sysctls of a mode in a namespace; MachineError when the kernel is too old to have them.

    kept: those (`net.ipv4.fib_multipath_hash_policy`) that stay as they are: a topology of somebody's own sets them.
    """
    with inside(netns):
        for name, value in sysctls(mode, seed).items():
            if f"net.ipv4.{name}" in kept:
                continue
            try:
                (_SYSCTL / name).write_text(value)
            except FileNotFoundError:
                raise MachineError(
                    Problem(netns.name, f"net.ipv4.{name}", "is not in this kernel", "Linux 6.11 or later has it")
                ) from None
            except OSError as error:
                raise MachineError(
                    Problem(netns.name, f"net.ipv4.{name}", f"refuses {value}: {error.strerror}")
                ) from None


def read_hashing(lab: str, handle: NodeHandle) -> SwitchHashing:
    """Mode, seed, policy and fields as kernel and map have them. MachineError when the switch was not set up."""
    values: list[int] = []
    with inside(handle.netns):
        for name in sysctls("flow", 0):
            path = _SYSCTL / name
            values.append(int(path.read_text()) if path.exists() else 0)
    policy, fields, kernel_seed = values
    with Map.pinned(pin_dir(lab, handle.name) / "config", *CONFIG_SIZES) as cell:
        mode_number, seed = _CONFIG.unpack(cell.lookup(bytes(4)) or bytes(8))
    mode = next((name for name, number in MODES.items() if number == mode_number), f"mode {mode_number}")
    found = SwitchHashing(handle.name, mode, seed, policy, fields)
    return found if found.by_program else replace(found, seed=kernel_seed)
