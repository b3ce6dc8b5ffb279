"""Hashing modes as numbers: the BPF program's mode, the kernel policy of each mode, and the sysctls of a switch.

In:  a mode's word and its options. Out: plain values. The only thing read from the kernel is whether it has seeds.
A seed is never 0, which to the kernel means "random". The lab's name does not count in it: the same fabric with another
name gives every flow the same path.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from heddle.base.sysctls import HASH_SEED, sysctl_path
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, FIELDS_5_TUPLE, HashOptions

MODES: Final[Mapping[str, int]] = {  # MODE_* of C
    "flow": 0, "e-ecmp": 1, "flowlet": 2, "spray": 3, "pinned": 4, "exact-match": 5, "adaptive": 6,
}  # fmt: skip
SPREADING: Final = frozenset({"spray", "flowlet", "adaptive"})  # packets of one QP may take several paths
EXACT_MATCH: Final = "exact-match"
TABLED: Final = frozenset({"pinned", EXACT_MATCH})  # a table chooses; a hash is the fall-back
TE: Final = "te"  # of predictions only: exact-match entries that a controller makes (predict/cspf.py)
PREDICTED: Final = (*MODES, TE)
BY_PROGRAM: Final = frozenset(MODES) - {"flow"} - SPREADING  # the program sets a hash, with policy 1
POLICIES: Final[Mapping[str, int]] = {"l3": 0, "l4": 1, "fields": 3}  # fib_multipath_hash_policy
POLICY_L4: Final = POLICIES["l4"]  # uses skb->hash if it is a layer-4 hash
POLICY_CUSTOM: Final = POLICIES["fields"]  # never uses skb->hash


def programmed(mode: str, options: HashOptions) -> bool:
    """Whether RoCEv2 is hashed or steered by the BPF program in this mode, and not by the kernel alone."""
    return mode != "flow" or options.resilient


def kernel_policy(mode: str, options: HashOptions, version: int = 4) -> int:
    """The fib_multipath_hash_policy of a mode. KeyError for an unknown mode or policy.

    With policy 3, the kernel hashes IPv6 packets differently from route lookups (rt6_multipath_custom_hash_skb and
    _fl6). So for IPv6 the whole 5-tuple is policy 1.
    """
    if MODES[mode] != MODES["flow"] or options.resilient:
        return POLICY_L4
    if version == 6 and options.policy == "fields" and options.fields == FIELDS_5_TUPLE:
        return POLICY_L4
    return POLICIES[options.policy]


def sysctls(mode: str, seed: int, options: HashOptions | None = None, version: int = 4) -> dict[str, str]:
    """The sysctls of a mode, by their full names. KeyError for an unknown mode.

    If the program hashes RoCE and the kernel has no seed sysctl, the seed is omitted. The program then seeds RoCE, and
    other traffic hashes the same in all switches, as it always did before Linux 6.11.
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


# per-switch: each switch has its own seed; per-tier: all switches of a level have one; shared: all have the same, which
# polarises. A number is a choice too: all switches have it.
CHOICES: Final = ("per-switch", "per-tier", "shared")


def seed_for(choice: str | int, level: str, name: str) -> int:
    """The seed of switch `name`, whose level has the word `level`; ValueError for an unknown choice."""
    if isinstance(choice, int):
        return choice
    words = {"per-switch": name, "per-tier": level, "shared": "shared"}
    if choice not in words:
        raise ValueError(f"{choice} is not one of {', '.join(CHOICES)}, or a number")
    return switch_seed(words[choice])


def switch_seed(word: str) -> int:
    """A seed that depends on a word only, usually a switch's name.

    The word before the slash is arbitrary. Of ten words that were tried, preset demo gained 1.3 to 2.5 times by E-ECMP;
    this word gives the median.
    """
    return zlib.crc32(f"fabric/{word}".encode()) or 1
