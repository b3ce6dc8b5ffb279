"""Where a function of a lab runs: here, or in each shard of the lab, beside its nodes.

`spread` marks a function whose first parameter is a Lab. On one machine it is called as it is, which costs nothing. For
a lab in shards it is called by the agent of each shard (heddle/shards/agent.py) with that shard's own Lab, which knows
the whole fabric and has the handles of its own nodes; `merge` makes one result of theirs. Arguments and results are
values (heddle/base/values.py). An Observer among the arguments gets what those in the shards get.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from itertools import accumulate, chain
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from heddle.fabric.wiring import Node, Role

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")  # a Lab, or what tests use as one
K = TypeVar("K")
V = TypeVar("V")
_LEAST_PORTS: Final = 500  # of a part: a copy of this process takes about 10 ms, and a port 0.3 ms
_NODE: Final = {Role.SWITCH: 30, Role.HOST: 15}  # what a node takes besides its ports, in ports: routes, hashing, files
_OPERATION: Final = "__heddle_operation__"


def spread(
    merge: Callable[[Sequence[R]], R],
    nodes: Callable[..., Collection[str] | None] = lambda *_, **__: None,
    waits: Callable[..., float] = lambda *_, **__: 0.0,
) -> Callable[[Callable[Concatenate[L, P], R]], Callable[Concatenate[L, P], R]]:
    """See above. nodes: from the other arguments, the nodes that are concerned; only their shards are asked.

    waits: from the other arguments, the seconds for which the function may wait.
    """

    def marked(function: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
        name = f"{function.__module__}:{function.__qualname__}"

        @wraps(function)
        def called(lab: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
            runtime = getattr(lab, "runtime", None)
            shards = None if runtime is None else runtime.shards(cast(Any, lab).name)
            if shards is None:
                return function(lab, *args, **kwargs)
            asked = nodes(*args, **kwargs)
            return merge(cast(Sequence[R], shards.call(name, asked, args, kwargs, waits(*args, **kwargs))))

        setattr(called, _OPERATION, function)
        return called

    return marked


def in_processes(work: Callable[[Sequence[Node]], R], nodes: Sequence[Node]) -> list[R]:
    """The results of `work` for all nodes in order, in parts: one here and one in a copy of this process for each CPU.

    work: changes nothing in this process; its result can be pickled. A part that fails in a copy is done again here, so
    its error is raised here. Nodes with few ports are one part.
    """
    count = processes_for(nodes)
    parts: list[list[Node]] = [[] for _ in range(count)]
    costs = [len(node.ports) + _NODE[node.role] for node in nodes]
    for node, before in zip(nodes, accumulate(costs, initial=0), strict=False):
        parts[before * count // sum(costs)].append(node)
    return in_copies(work, parts)


def processes_for(nodes: Iterable[Node]) -> int:
    """How many processes should share what is done for these nodes: 1 where they have few ports."""
    return max(1, min(len(os.sched_getaffinity(0)), sum(len(node.ports) for node in nodes) // _LEAST_PORTS))


def in_copies(work: Callable[[V], R], parts: Sequence[V]) -> list[R]:
    """The results of `work` for all parts in order: the first is done here, each other in a copy of this process.

    work and what happens to a part that fails: as for in_processes.
    """
    copies = [_started(work, part) for part in parts[1:]]
    try:
        first = work(parts[0])
    finally:
        answers = [_ended(*each) for each in copies]
    return [first, *(work(part) if each is None else each for part, each in zip(parts[1:], answers, strict=True))]


def _started(work: Callable[[V], R], part: V) -> tuple[int, int]:
    """Process id, and the descriptor from which its result comes."""
    answers, out = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            with open(out, "wb") as file:  # noqa: PTH123 - a descriptor
                pickle.dump(work(part), file, pickle.HIGHEST_PROTOCOL)
            code = 0
        finally:
            os._exit(code)  # what else this process has to do at its end is for the other one
    os.close(out)
    return pid, answers


def _ended(pid: int, answers: int) -> Any:
    """The result of a copy; None if it failed."""
    with open(answers, "rb") as file:
        data = file.read()
    return pickle.loads(data) if os.waitpid(pid, 0)[1] == 0 else None  # noqa: S301 - from our own process


def operation(found: Any) -> Callable[..., Any] | None:
    """The function behind a mark of `spread`, which an agent may call; None for all others."""
    function: Callable[..., Any] | None = getattr(found, _OPERATION, None)
    return function


def concat(results: Iterable[Sequence[V]]) -> list[V]:
    """All items, shard after shard."""
    return list(chain.from_iterable(results))


def union(results: Iterable[Mapping[K, V]]) -> dict[K, V]:
    """One mapping; shards have different keys."""
    return {key: value for each in results for key, value in each.items()}


def nothing(_: Iterable[None]) -> None:
    """For functions without a result."""


def only(results: Sequence[V]) -> V:
    """For functions of one node: the result of its shard."""
    (result,) = results
    return result
