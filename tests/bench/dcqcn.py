"""DCQCN and Swift beside PFC alone: the queue in front of an incast, its pauses, and a victim of them.

Profiles: whole runs with the default size of an iteration, from the first packet on, on three presets with 1, 4 and 16
QPs. Each is run in turn with the others, three times; figures are ratios of medians to PFC alone.

Victims: longer runs, one each. Senders that end early leave the others at rates that grow slowly. So rates are those of
the last third of the time in which all senders are active, by the run's own record of its queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from heddle.base.events import Observer
from heddle.base.resources import HERE
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from tests.readings import series_of

from . import Figure, at_least

_LAB: Final = "benchdcqcn"
_PAIRS: Final = "host5,host1,host6,host2,host7,host3,host8,host4"
_PAIR_BYTES: Final = 16 << 20
# All packets for the slow host come in by one port, which pauses from 60 KB on: marks must begin well below that.
_SLOW: Final = ("link.exceptions={host5: 10mbit}", "queues.ecn.kmin=10KB", "queues.ecn.kmax=40KB")
_VICTIM: Final = "host6"
_ALONE: Final = "PFC alone"
_JUDGED: Final = "DCQCN"  # with its default profile; the others are readings
_CASES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {  # control, its options
    _ALONE: ("none", {}),
    "DCQCN": ("dcqcn", {}),
    "DCQCN nvidia": ("dcqcn", {"congestion_profile": "nvidia"}),
    "DCQCN meta": ("dcqcn", {"congestion_profile": "meta"}),
    "Swift": ("swift", {}),
}
_PRESETS: Final = ("tiny", "demo", "zone")
_QPS: Final = (1, 4, 16)
_REPEATS: Final = 3
_SHORT: Final = 4 << 20


def figures(observer: Observer) -> Iterator[Figure]:
    """All of the group: short incasts on three presets, and the pairs of workshop unit 06."""
    for preset in _PRESETS:
        yield from _profiles(preset, observer)
    yield from _victims(observer)


def _profiles(preset: str, observer: Observer) -> Iterator[Figure]:
    """Pause frames and bandwidth of each case, as ratios to those of PFC alone."""
    labs.up(load_fabric(preset, name=_LAB), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        lost = 0
        for qps in _QPS:
            pauses: dict[str, list[int]] = {name: [] for name in _CASES if name != "Swift"}
            rates: dict[str, list[float]] = {name: [] for name in pauses}
            for _ in range(_REPEATS):
                for name, seen in pauses.items():
                    congestion, own = _CASES[name]
                    options = RunOptions(
                        "incast",
                        sizes=(_SHORT,),
                        qps=qps,
                        congestion=congestion,
                        own=own,
                    )
                    result = run(lab, options, observer)
                    if result.part(QueueUse) is None:
                        raise AssertionError("a run without a record of its queues")
                    lost += result[QueueUse].dropped + result.wrong
                    seen.append(result[QueueUse].pauses)
                    rates[name].append(1 / result.rows[0].time_us)
            for name, seen in pauses.items():
                what = f"{preset}, {qps} QP{'s' if qps > 1 else ''}, {name}"
                if name == _ALONE:
                    yield Figure(f"{what}: pause frames", float(np.median(seen)), "")
                    continue
                fewer = float(np.median(pauses[_ALONE])) / max(1.0, float(np.median(seen)))
                share = float(np.median(rates[name]) / np.median(rates[_ALONE]))
                spread = f"{min(seen)} to {max(seen)} frames"
                if name == _JUDGED:
                    yield at_least(f"{what}: fewer pause frames", fewer, "x", 10, spread)
                    yield at_least(f"{what}: bandwidth", share, "x", 0.9, "that of PFC alone")
                else:
                    yield Figure(f"{what}: fewer pause frames", fewer, "x", spread)
                    yield Figure(f"{what}: bandwidth", share, "x", "that of PFC alone")
        yield Figure(f"{preset}: drops and wrong elements", lost, "", "", "0", lost == 0)
    finally:
        labs.down(_LAB, observer)


def _use(lab: Lab, port: str) -> float:
    """What a port carried, as a share of its rate, in the last third of the time in which all senders were active."""
    recorded = series_of(lab)
    series = recorded.series
    out = series.columns["out_bytes"]
    rows = [(at, each) for at, each in enumerate(recorded.labels) if each.kind == "lossless"]
    end = min(series.ends_s[np.flatnonzero(out[at])[-1]] for at, each in rows if each.host and out[at].any())
    part = (series.ends_s > end * 2 / 3) & (series.ends_s <= end)
    seconds = float((series.ends_s - series.starts_s)[part].sum())
    at, label = next((at, each) for at, each in rows if each.port == port)
    return 8 * float(out[at][part].sum()) / seconds / label.rate_bps


def _victims(observer: Observer) -> Iterator[Figure]:
    """Four pairs of which one has a slow receiver: the rate of a pair whose receiver is fast."""
    file = Path(HERE.content("labs"), "06-pfc", "fabric.yml")
    labs.up(load_fabric(str(file), name=_LAB, overrides=[*_SLOW]), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        port = lab.fabric.by_name[_VICTIM].ports[0].peer_ref
        alone = _pairs(lab, _PAIRS.split(",", 2)[2], "none", {}, port, observer)
        for name, (congestion, own) in _CASES.items():
            share = _pairs(lab, _PAIRS, congestion, own, port, observer) / alone
            what, of = f"a victim's rate, {name}", "without the slow pair"
            yield at_least(what, share, "x", 0.9, of) if name == _JUDGED else Figure(what, share, "x", of)
    finally:
        labs.down(_LAB, observer)


def _pairs(
    lab: Lab, placement: str, congestion: str, own: Mapping[str, str], port: str,
    observer: Observer,
) -> float:  # fmt: skip
    """How much of a port's rate one iteration of the pairs uses."""
    options = RunOptions(
        "incast", placement=placement, split="DIV 2", sizes=(_PAIR_BYTES,), iters=1, warmup=0,
        congestion=congestion, own=own,
    )  # fmt: skip
    run(lab, options, observer)
    return _use(lab, port)
