"""Properties of a test in JUnit XML: what its collectives did to the fabric. docs/testing.md lists their names.

In:  the runs of one test, and the lab that still has their evidence. Out: pairs of name and text, in order.
pytest writes them below `<testcase>` when it was started with --junit-xml. Without that option nothing is computed:
a proof of paths takes time on a large fabric.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from heddle.base.problems import HeddleError
from heddle.testing.assertions import ACCEPTED

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.verdict import PathsResult
    from heddle.runs.results import RunResult

Properties = Iterator[tuple[str, str]]


def record_runs(item: pytest.Item, lab: Lab, runs: Sequence[RunResult], title: str = "") -> None:
    """Add the properties of these runs to the test. title: the fabric and its overrides, where they are known."""
    if not runs or not item.config.getoption("xmlpath", None):
        return
    shown = title.removeprefix(f"{item.config.rootpath}{os.sep}")
    item.user_properties += fabric_properties(lab.runtime.name, runs[0].k, shown)
    for number, run in enumerate(runs, 1):
        item.user_properties += run_properties(f"heddle.run{number}", run)
        item.user_properties += _proof_of(f"heddle.run{number}", lab, run)


def fabric_properties(runtime: str, k: int, title: str = "") -> Properties:
    """What all runs of a test have in common."""
    if title:
        yield "heddle.fabric", title
    yield "heddle.runtime", runtime
    yield "heddle.k", str(k)


def run_properties(name: str, run: RunResult) -> Properties:
    """What was run, and what came of it. busbw is in GB/s, emulated; deepest is in bytes."""
    from heddle.runs.fitness import unfit
    from heddle.runs.parts.queues import QueueUse

    options = run.options
    yield f"{name}.id", run.run_id
    yield f"{name}.collective", options.collective
    yield f"{name}.ecmp", run.ecmp
    yield f"{name}.ranks", str(len(run.ranks))
    yield f"{name}.qps", str(options.qps)
    yield f"{name}.sizes", ",".join(str(row.size) for row in run.rows)
    yield f"{name}.busbw", f"{run.busbw:.6g}"
    if len(run.rows) > 1:
        yield from ((f"{name}.busbw.{row.size}", f"{row.busbw:.6g}") for row in run.rows)
    yield f"{name}.wrong", str(run.wrong)
    yield f"{name}.reliable", _word(not run.limited)
    if (found := unfit(run)) is not None:
        yield f"{name}.unfit", f"{found.kind}: {found.why}" + (" (accepted)" if found.kind in ACCEPTED else "")
    yield f"{name}.packets", str(sum(flow.sent.packets for flow in run.flows))
    yield f"{name}.marked", str(sum(flow.ce for flow in run.flows))
    if (used := run.part(QueueUse)) is not None:
        yield f"{name}.dropped", str(sum((run.lost or {}).values()))
        yield f"{name}.pauses", str(used.pauses)
        yield f"{name}.paused_ms", f"{used.paused_ms:.6g}"
        yield f"{name}.deepest", str(used.deepest)
        yield f"{name}.deepest_at", used.deepest_at


def paths_properties(name: str, paths: PathsResult) -> Properties:
    """The proof, the MMR, and the load of each uplink: bytes, queue pairs, and its use as a share of the run."""
    yield f"{name}.paths_agree", _word(paths.agree)
    for word, mmr in (("mmr", paths.mmr.bytes), ("mmr_flows", paths.mmr.flows)):
        if mmr is not None:
            yield f"{name}.{word}", f"{mmr:g}"
    for link in paths.uplinks.links:
        at = f"{name}.uplink.{link.port}"
        yield f"{at}.bytes", str(link.bytes)
        yield f"{at}.flows", str(link.flows)
        if (share := link.utilisation) is not None:
            yield f"{at}.utilisation", f"{share:.4f}"


def _proof_of(name: str, lab: Lab, run: RunResult) -> Properties:
    """The same of a run that was kept; a reason where its evidence is gone, as after many runs in one test."""
    from heddle.runs.store import paths_of

    try:
        yield from paths_properties(name, paths_of(lab, run.run_id))
    except HeddleError as error:
        yield f"{name}.no_paths", str(error).partition("\n")[0]


def _word(true: bool) -> str:
    return "true" if true else "false"
