"""The hashing modes that a prediction compares, as rules; and what a fabric file says of its own.

In:  Policy, Forwarding of the fabric in which nothing has failed.
Out: FabricRules for every switch, under the file's seeds or under others.
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
_LIKE: Final = {"exact-match": "e-ecmp"}  # on paper no controller has written entries, so all go by the fall-back
# With a path for every flow; all that are compared, even split last.
HASHED: Final = tuple(mode for mode in MODES if mode not in SPREADING and mode not in _LIKE)


def compared(own: str) -> list[str]:
    """The modes of a comparison, the file's own (or the one that was asked for) first."""
    first = EVEN_SPLIT if own in SPREADING else _LIKE.get(own, own)
    return [first, *(mode for mode in (*HASHED, EVEN_SPLIT) if mode != first)]


def mode_words() -> list[str]:
    """What `--mode` takes."""
    return list(MODES)


def said_of(own: str) -> str:
    """What a mode of a fabric file is on paper, where that needs a word."""
    if own in SPREADING:
        return f"{own} has no path for a flow; even split is what it comes to at best"
    if own in _LIKE:
        return f"{own} has no entries on paper, so every flow takes the fall-back, {_LIKE[own]}"
    return ""


def rule_of(policy: Policy, mode: str, *, resilient: bool | None = None) -> HashingRule:
    """How switches of a fabric choose in a mode, with the options of its file. resilient: in place of the file's."""
    options = policy.routing.hash
    options = options if resilient is None else replace(options, resilient=resilient)
    number = kernel_policy(mode, options, policy.ip_version)
    fields = options.fields if number == POLICY_CUSTOM else FIELDS_5_TUPLE
    return HashingRule(mode, number, fields, options.udf, options.resilient, options.buckets)


def steering_of(wires: Wires, forwarding: Forwarding) -> SteeringTables:
    """What programs may steer by, as heddle/switch/hashing/steering.py has it. forwarding: with nothing down.

    To a slice the switches of level 2 add the number of the destination's edge, from 0.
    """
    turn = np.where((wires.level == 2)[:, None], np.arange(forwarding.group.shape[1]), 0).astype(np.int32)
    return steering_like(forwarding, turn)


def rules_of(wires: Wires, rule: HashingRule, steering: SteeringTables, seeds: U32) -> FabricRules:
    """The same rule in every switch."""
    kind = np.zeros(len(wires.switches), dtype=np.int32)
    return FabricRules(wires.switches, (rule,), kind, seeds, steering)


def other_seeds(seeds: U32, trial: int) -> U32:
    """Seeds for one more trial. Switches that had the same one still do, so shared seeds stay shared; 0 never comes."""
    if trial == 0:
        return seeds
    unique, where = np.unique(seeds, return_inverse=True)
    drawn = [zlib.crc32(f"trial {trial}/{int(seed)}".encode()) or 1 for seed in unique]
    table: npt.NDArray[np.uint32] = np.array(drawn, dtype=np.uint32)
    return table[where.ravel()]
