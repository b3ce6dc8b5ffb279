"""Trimming as the switches of a running lab do it: `queues set` can enable and disable it, and change PFC.

In:  a lab. Out: its fabric, whose queues trim and pause as those in force, so that the ends of a run follow them.
"""

from __future__ import annotations

from dataclasses import replace

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND
from heddle.lab.lab import Lab
from heddle.lab.thresholds import own_queues


def as_running(lab: Lab) -> Fabric:
    """The fabric with the trimming and the pauses of its switches; of several, those of one that trims.

    It is for plans only: thresholds differ between switches. MachineError when the record cannot be read.
    """
    fabric, own = lab.fabric, own_queues(lab)
    usual = fabric.policy.queues
    switches = (node for node in fabric.switches if fabric.level_of(node).network == BACKEND)
    found = [own.get(node.name, usual) for node in switches]
    live = next((each for each in found if any(map(each.trims, each.numbers))), found[0] if found else usual)
    queues = replace(usual, trimming=live.trimming, pfc=live.pfc)
    return fabric if queues == usual else replace(fabric, policy=replace(fabric.policy, queues=queues))
