"""Tree all-reduce: two complementary binary trees, each with half of the data, as NCCL's double binary tree.

Data is reduced up to the root of a tree, and the result goes down again. Most leaves of one tree are inner ranks of the
other, so no rank sends more than twice its array (Sanders, Speck and Traeff 2009; NCCL's graph/trees.cc). In NCCL a
place of the tree is a host, with a chain of GPUs. Here it is a rank.

A rank sends on each message as soon as it is reduced, so all levels work at the same time, on different messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from heddle.traffic.collectives.bases import AllReducePattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Step, chunk_range

_WIDTH: Final = 4  # receives of a rank from one level: two children in each of two trees


class TreeRank(NamedTuple):
    """A rank in one tree. parent: None at the root. up, down: the step in which its parent, or it, receives."""

    parent: int | None
    children: list[int]
    up: int
    down: int


@dataclass(frozen=True)
class TreeAllReduce(AllReducePattern):
    """The root of a tree has one child, so its reduction is the last one."""

    algorithm = "tree"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """In each tree: from the children, to the parent and back, to the children."""
        steps: list[Step] = []
        for tree, nodes in enumerate(double_tree(ranks)):
            node, span = nodes[rank], chunk_range(tree, 2, count)
            for child in node.children:
                last = node.parent is None
                steps.append(self.reduced(nodes[child].up, child, span, ranks, last=last))
            if node.parent is not None:
                steps.append(SendStep(node.up, node.parent, span, span[0]))
                steps.append(ReceiveStep(node.down, node.parent, span, "input"))
            steps += (SendStep(nodes[child].down, child, span, span[0]) for child in node.children)
        return steps

    def at_once(self, ranks: int) -> int:
        return _WIDTH


@lru_cache(maxsize=8)
def double_tree(ranks: int) -> tuple[list[TreeRank], list[TreeRank]]:
    """Both trees, by rank. The second is the first one mirrored, or shifted by one rank if the number is odd."""
    shifted = [(place + 1) % ranks for place in range(ranks)]
    return _tree(range(ranks), 0), _tree(shifted if ranks % 2 else range(ranks)[::-1], 1)


def _tree(order: Sequence[int], number: int) -> list[TreeRank]:
    """The rank at place p has as many levels below it as p has trailing zeros. Steps follow levels: up, then down.

    order: the rank at each place; the root is at place 0.
    """
    ranks = len(order)
    top = (ranks - 1).bit_length()
    children: dict[int, list[int]] = {rank: [] for rank in order}
    nodes = {order[0]: TreeRank(None, children[order[0]], 0, 0)}
    for place in range(1, ranks):
        bit = place & -place
        above = (place ^ bit) | bit << 1
        parent = order[above if above < ranks else place ^ bit]
        level, turn = bit.bit_length() - 1, 2 * number + len(children[parent])
        rank = order[place]
        nodes[rank] = TreeRank(parent, children[rank], _WIDTH * level + turn, _WIDTH * (2 * top - level) + number)
        children[parent].append(rank)
    return [nodes[rank] for rank in range(ranks)]
