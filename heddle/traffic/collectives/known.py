"""What a rank knows of others when it ends an iteration: from which ranks it has received something, by any path.

In:  the operations of all ranks. Out: bit masks of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import or_

from heddle.traffic.collectives.ranges import Ranges
from heddle.traffic.collectives.steps import Buffer, ReceiveStep, SendStep, Step


def known(programs: Sequence[Sequence[Step]]) -> list[int]:
    """For each rank a bit mask: the ranks that must have begun an iteration before this rank can end it.

    Operations of a rank are looked at in order.
    """
    done: list[dict[int, int]] = [{} for _ in programs]  # step -> mask, of the receives and computations so far
    masks: dict[tuple[int, int], int] = {}  # (receiver, step) -> mask of the message
    left = [_with_needs(program) for program in programs]
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(left):
            while steps:
                each, needs = steps[-1]
                if isinstance(each, ReceiveStep):
                    mask = masks.get((rank, each.step), 0 if each.span[0] >= each.span[1] else None)
                    if mask is None:
                        break
                else:
                    mask = reduce(or_, (done[rank].get(step, 0) for step in needs), 1 << rank)
                steps.pop()
                moved = True
                if isinstance(each, SendStep):
                    masks[each.to, each.step] = mask
                else:
                    done[rank][each.step] = mask
    return [reduce(or_, found.values(), 0) for found in done]


def _with_needs(program: Sequence[Step]) -> list[tuple[Step, list[int]]]:
    """The operations of a rank, the last one first, each with the steps that it waits for."""
    written: defaultdict[Buffer, Ranges] = defaultdict(Ranges)
    found: list[tuple[Step, list[int]]] = []
    for each in program:
        needs: list[int] = []
        if isinstance(each, ReceiveStep):
            written[each.buffer].add(each.span, each.step)
        else:
            needs += each.after
            if isinstance(each, SendStep):
                needs += (step for _, step in written[each.buffer].overlapping(each.span))
        found.append((each, needs))
    return found[::-1]
