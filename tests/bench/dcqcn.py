"""DCQCN and Swift beside PFC alone: the queue in front of an incast, its pauses, and a victim of them.

One run each, in turn. Queues are those of the run's own record, with a level at the end of each bucket. All senders
begin at line rate with a full window, and nothing can prevent the pauses of this moment. So pauses are those of the
second half of a run, and the transfers are long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from heddle.base.arrays import I64
from heddle.base.events import Observer
from heddle.base.resources import HERE
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.past import series_of
from heddle.runs.run import run
from heddle.runs.seriesfile import RowLabel
from heddle.traffic.options import CongestionName, RunOptions

from . import Figure, at_least, at_most

_LAB: Final = "benchdcqcn"
_INCAST: Final = 48 << 20
_PAIRS: Final = "host5,host1,host6,host2,host7,host3,host8,host4"
_PAIR_BYTES: Final = 16 << 20
_SLOW: Final = "link.exceptions={host5: 10mbit}"
_VICTIM: Final = "host6"
# Faster increases than NVIDIA's defaults, which need more time than a short incast takes (docs/traffic.md).
_TUNED: Final = (("rpg_time_reset", 30.0), ("rpg_ai_rate", 100.0), ("rpg_hai_rate", 500.0))
_CASES: Final[Mapping[str, tuple[CongestionName, tuple[tuple[str, float], ...]]]] = {
    "PFC alone": ("none", ()),
    "DCQCN": ("dcqcn", ()),
    "DCQCN tuned": ("dcqcn", _TUNED),
    "Swift": ("swift", ()),
}


def figures(observer: Observer) -> Iterator[Figure]:
    """All of the group: an incast on preset zone, and the pairs of workshop unit 06."""
    yield from _incasts(observer)
    yield from _victims(observer)


def _incasts(observer: Observer) -> Iterator[Figure]:
    pauses: dict[str, int] = {}
    busbw: dict[str, float] = {}
    labs.up(load_fabric("zone", name=_LAB), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        for name, (congestion, settings) in _CASES.items():
            options = RunOptions(
                "incast", sizes=(_INCAST,), iters=1, warmup=0, congestion=congestion, congestion_set=settings
            )
            result = run(lab, options, observer)
            if result.queues is None:
                raise AssertionError("a run without a record of its queues")
            pauses[name], busbw[name] = _late_pauses(lab), result.busbw
            label, depth = _filled(lab, "host1")
            what = f"16:1 incast, {name}"
            lost = result.queues.dropped + result.wrong
            yield Figure(f"{what}: drops and wrong elements", lost, "", "", "0", lost == 0)
            yield Figure(f"{what}: pause frames", result.queues.pauses, "")
            yield Figure(f"{what}: those of the second half", pauses[name], "")
            yield Figure(f"{what}: depth, P10", float(np.percentile(depth, 10)) / 1e3, "KB")
            median = float(np.median(depth))
            between = None if congestion == "none" else label.kmin <= median <= label.kmax
            target = "" if congestion == "none" else f"{label.kmin / 1e3:g}-{label.kmax / 1e3:g}"
            yield Figure(f"{what}: depth, median", median / 1e3, "KB", "", target, between)
            yield Figure(f"{what}: depth, P90", float(np.percentile(depth, 90)) / 1e3, "KB")
    finally:
        labs.down(_LAB, observer)
    alone = "PFC alone"
    for name in [each for each in _CASES if each != alone]:
        yield at_least(f"16:1 incast, {alone}: late pauses", pauses[alone] / max(1, pauses[name]), "x", 10, name)
        yield Figure(f"16:1 incast, {name}: busbw", busbw[name] / busbw[alone], "x", alone)


def _late_pauses(lab: Lab) -> int:
    """Pause frames in the second half of the last run."""
    series = series_of(lab)[1].series
    return int(series.columns["pfc_sent"][:, series.ends_s > series.ends_s[-1] / 2].sum())


def _filled(lab: Lab, receiver: str) -> tuple[RowLabel, I64]:
    """The queue of the lossless class to a receiver: bytes at the end of each bucket in which it sent."""
    label, depth, _, _ = _row(lab, lab.fabric.by_name[receiver].ports[0].peer_ref)
    return label, depth


def _row(lab: Lab, port: str) -> tuple[RowLabel, I64, float, float]:
    """The lossless row of a port in the last run: label, depths, and seconds of its first and its last packet."""
    _, recorded = series_of(lab)
    series = recorded.series
    found = [at for at, each in enumerate(recorded.labels) if each.port == port and each.kind == "lossless"]
    sent = series.columns["out_bytes"][found[0]] > 0
    when = np.flatnonzero(sent)
    first, last = float(series.starts_s[when[0]]), float(series.ends_s[when[-1]])
    return recorded.labels[found[0]], series.columns["depth"][found[0]][sent], first, last


def _victims(observer: Observer) -> Iterator[Figure]:
    """Four pairs of which one has a slow receiver: the time of a pair whose receiver is fast, against its time when
    the slow pair does nothing.
    """
    file = Path(HERE.content("labs"), "06-pfc", "fabric.yml")
    labs.up(load_fabric(str(file), name=_LAB, overrides=[_SLOW]), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        port = lab.fabric.by_name[_VICTIM].ports[0].peer_ref
        others = _PAIRS.split(",", 2)[2]
        alone = _pairs(lab, others, "none", (), port, observer)
        for name, (congestion, settings) in _CASES.items():
            share = alone / _pairs(lab, _PAIRS, congestion, settings, port, observer)
            if congestion == "none":
                yield at_most(f"a victim's rate, {name}", share, "x", 0.6, "without the slow pair")
            else:
                yield at_least(f"a victim's rate, {name}", share, "x", 0.9, "without the slow pair")
    finally:
        labs.down(_LAB, observer)


def _pairs(
    lab: Lab, placement: str, congestion: CongestionName, settings: tuple[tuple[str, float], ...], port: str,
    observer: Observer,
) -> float:  # fmt: skip
    """Seconds in which one iteration of the pairs passes a port."""
    options = RunOptions(
        "incast", placement=placement, split="DIV 2", sizes=(_PAIR_BYTES,), iters=1, warmup=0,
        congestion=congestion, congestion_set=settings,
    )  # fmt: skip
    run(lab, options, observer)
    _, _, first, last = _row(lab, port)
    return last - first
