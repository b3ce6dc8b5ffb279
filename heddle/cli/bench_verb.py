"""The verb `bench`: the speed of Heddle itself on this machine."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


@verb(
    help={
        "what": "cli, up, containers, place, all-reduce, budget, steady, demo, dashboard, hashing, admission, dcqcn, "
        "order, packets, steps, predict, queues, rxe, transports, labs, or all",
        "runs": "number of runs of `order` (default: 84)",
    },
    positional=["what"],
    packages=lambda typed: (
        (*packages.FABRIC, "openssh-server") if typed["what"] in ("place", "all") else packages.FABRIC
    ),
    root=True,
    checkout=True,
)
def bench(out: Console, what: str = "all", runs: int | None = None) -> None:
    """Measure the speed of Heddle itself on this machine: ratios and absolute figures."""
    from tests.bench import bench as measure

    result = measure(what, out.observer, runs)
    out.result(result.to_json(), result.text())
