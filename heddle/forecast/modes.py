"""The hashing modes that a prediction compares, as rules; and the mode of a fabric file.

In:  Policy, Forwarding of the fabric without failures.
Out: FabricRules for every switch, with the file's seeds or with others.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import U32
from heddle.fabric.hashmodes import MODES, POLICY_CUSTOM, SPREADING, kernel_policy
from heddle.fabric.policy import FIELDS_5_TUPLE, Policy
from heddle.forecast.wires import Wires
from heddle.predict.forwarding import Forwarding
from heddle.predict.rules import FabricRules, HashingRule, SteeringTables, steering_like

EVEN_SPLIT: Final = "even split"
_LIKE: Final = {"exact-match": "e-ecmp"}  # offline there is no controller to write entries: all use the fall-back
# Modes in which each flow has one path. `compared` adds the even split at the end.
HASHED: Final = tuple(mode for mode in MODES if mode not in SPREADING and mode not in _LIKE)


def compared(own: str) -> list[str]:
    """The modes of a comparison; the file's own, or the requested one, comes first."""
    first = EVEN_SPLIT if own in SPREADING else _LIKE.get(own, own)
    return [first, *(mode for mode in (*HASHED, EVEN_SPLIT) if mode != first)]


def mode_words() -> list[str]:
    """The values of `--mode`."""
    return list(MODES)


def mode_note(own: str) -> str:
    """A remark on how a mode is predicted offline; empty for most modes."""
    if own in SPREADING:
        return f"{own} has no fixed path for a flow; even split is its best case"
    if own in _LIKE:
        return f"{own} has no entries offline, so every flow uses the fall-back, {_LIKE[own]}"
    return ""


def rule_of(policy: Policy, mode: str, *, resilient: bool | None = None) -> HashingRule:
    """The rule of a mode, with the options of the fabric file. resilient: instead of the file's."""
    options = policy.routing.hash
    options = options if resilient is None else replace(options, resilient=resilient)
    number = kernel_policy(mode, options, policy.ip_version)
    fields = options.fields if number == POLICY_CUSTOM else FIELDS_5_TUPLE
    return HashingRule(mode, number, fields, options.udf, options.resilient, options.buckets)


def steering_of(wires: Wires, forwarding: Forwarding) -> SteeringTables:
    """The tables that programs steer by, as in heddle/switch/hashing/steering.py. forwarding: without failures.

    Level-2 switches add the number of the destination's edge, from 0, to a slice.
    """
    turn = np.where((wires.level == 2)[:, None], np.arange(forwarding.group.shape[1]), 0).astype(np.int32)
    return steering_like(forwarding, turn)


def rules_of(wires: Wires, rule: HashingRule, steering: SteeringTables, seeds: U32) -> FabricRules:
    """The same rule for every switch."""
    kind = np.zeros(len(wires.switches), dtype=np.int32)
    return FabricRules(wires.switches, (rule,), kind, seeds, steering)


def other_seeds(seeds: U32, trial: int) -> U32:
    """Seeds of a trial. Switches with the same seed still have the same one, so shared seeds stay shared; never 0."""
    if trial == 0:
        return seeds
    unique, where = np.unique(seeds, return_inverse=True)
    drawn = [zlib.crc32(f"trial {trial}/{int(seed)}".encode()) or 1 for seed in unique]
    table: npt.NDArray[np.uint32] = np.array(drawn, dtype=np.uint32)
    return table[where.ravel()]
