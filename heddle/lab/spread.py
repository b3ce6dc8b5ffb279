"""Where a function of a lab runs: here, or in each shard of the lab, beside its nodes.

`spread` marks a function whose first parameter is a Lab. On one machine it is called as it is, which costs nothing. For
a lab in shards it is called by the agent of each shard (heddle/shards/agent.py) with that shard's own Lab, which knows
the whole fabric and has the handles of its own nodes; `merge` makes one result of theirs. Arguments and results are
values (heddle/base/values.py). An Observer among the arguments gets what those in the shards get.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from itertools import chain
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")  # a Lab, or what tests use as one
K = TypeVar("K")
V = TypeVar("V")
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
