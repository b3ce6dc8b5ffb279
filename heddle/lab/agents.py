"""The PFC agents of a lab: one on this machine, or one in each shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.lab.spread import nothing, spread
from heddle.switch.pfc import control as pfc
from heddle.switch.pfc.control import AgentState

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


def _worst(states: Sequence[AgentState]) -> AgentState:
    """The first that has a fault, or else the first."""
    return next((each for each in states if each.fault("agent") or each.fault("keeper")), states[0])


def restart_here(lab: Lab) -> bool:
    """Start the agent of this machine's nodes again if neither it nor its keeper works."""
    return pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)


@spread(any)
def restart(lab: Lab) -> bool:
    """Start the agents again that do not work; False when nothing was to do. See pfc/control.py."""
    return restart_here(lab)


@spread(_worst)
def alive(lab: Lab) -> AgentState:
    """The state of the agent; of several, one with a fault."""
    return pfc.alive(lab.name)


@spread(nothing)
def reload(lab: Lab) -> None:
    """Make the agents read their rules now."""
    pfc.reload(lab.name)
