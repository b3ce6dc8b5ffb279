"""The verb `bench`: figures of Heddle itself, measured on this machine."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


@verb(
    help={
        "what": "cli, up, containers, place, all-reduce, budget, steady, demo, hashing, order, packets, predict, "
        "queues, or all",
        "runs": "how many runs `order` makes (default: 72)",
    },
    positional=["what"],
    packages=lambda typed: (
        (*packages.FABRIC, "openssh-server") if typed["what"] in ("place", "all") else packages.FABRIC
    ),
    root=True,
    checkout=True,
)
def bench(out: Console, what: str = "all", runs: int | None = None) -> None:
    """Measure Heddle itself on this machine: figures as ratios, and absolute."""
    from tests.bench import bench as measure

    result = measure(what, out.observer, runs)
    out.result(result.to_json(), result.text())
