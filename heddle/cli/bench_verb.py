"""The verb `bench`: the speed of Heddle itself on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages

_MORE: Final = {
    "place": ("openssh-server",),
    "vm": (*packages.VM, *packages.VM_BUILD),
    "vm-build": packages.VM_BUILD,
}


def _needed(what: str) -> Sequence[str]:
    """The packages of fabrics, and of a group of figures."""
    more = [name for group in ("place", "vm") for name in _MORE[group]] if what == "all" else _MORE.get(what, ())
    return (*packages.FABRIC, *more)


@verb(
    help={
        "what": "cli, up, containers, place, all-reduce, budget, steady, demo, dashboard, hashing, admission, dcqcn, "
        "order, packets, steps, predict, queues, marking, rxe, transports, labs, vm, vm-build, or all",
        "runs": "number of runs of `order` (default: 84)",
    },
    positional=["what"],
    packages=lambda typed: _needed(typed["what"]),
    root=True,
    checkout=True,
)
def bench(out: Console, what: str = "all", runs: int | None = None) -> None:
    """Measure the speed of Heddle itself on this machine: ratios and absolute figures."""
    from tests.bench import bench as measure

    result = measure(what, out.observer, runs)
    out.result(result.to_json(), result.text())
