"""The picture of a cluster's hours: which job has which racks when, NICs in use, jobs that wait.

In:  ClusterResult. Out: SVG, PNG or PDF; the same input gives the same bytes.
A job has a bar in each rack where it has NICs, as high as its share of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.views.queuepicture import LINES
from heddle.views.style import DEPTH, DPI, DROPPED, INK, MARKED, QUIET, PictureKind, saved
from heddle_plugins.time.cluster import ClusterResult
from heddle_plugins.time.clusterplaces import Ground

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS: Final = 20_000  # what a viewer of SVG can show
_UNITS: Final = ((2 * 86400.0, 86400.0, "days"), (7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))


def draw(kind: PictureKind, result: ClusterResult) -> bytes:
    """The picture as a file's bytes."""
    return saved(kind, f"cluster {result.cluster.name}", lambda: _figure(result))


def _figure(result: ClusterResult) -> Figure:
    from matplotlib.figure import Figure

    unit, word = next(((unit, word) for least, unit, word in _UNITS if result.seconds >= least), (1.0, "seconds"))
    figure = Figure(figsize=(10.5, 7), dpi=DPI, facecolor="white", layout="constrained")
    figure.suptitle(f"cluster {result.cluster.name}: jobs by {result.box}", fontsize=11, weight="bold", color=INK)
    jobs, used = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1]})
    left_out = _bars(jobs, result, unit)
    for each in result.events:
        jobs.axvline(each.at_s / unit, color=DROPPED, linewidth=0.5)
    jobs.set_ylabel(f"{result.box}s", fontsize=8, color=INK)
    if left_out or result.more_spans:
        jobs.set_title("the first jobs: more do not fit", fontsize=8, color=INK)
    times, nics, waits = np.array(result.curve.points or [(0.0, 0, 0)], dtype=np.float64).T
    times = np.append(times, result.seconds) / unit
    used.step(times, np.append(nics, nics[-1]), where="post", color=DEPTH, linewidth=1)
    used.set_ylabel("NICs with a job", fontsize=8, color=DEPTH)
    used.set_ylim(0, len(result.cluster.slots))
    used.set_xlabel(word, fontsize=8, color=INK)
    queue = used.twinx()
    queue.step(times, np.append(waits, waits[-1]), where="post", color=MARKED, linewidth=1)
    queue.set_ylabel("jobs that wait", fontsize=8, color=MARKED)
    queue.set_ylim(bottom=0)
    for axes in (jobs, used, queue):
        axes.tick_params(labelsize=7, colors=INK)
    used.grid(visible=True, color=QUIET, linewidth=0.4)
    return figure


def _bars(axes: Axes, result: ClusterResult, unit: float) -> bool:
    """The bars of all attempts; whether some are left out."""
    from matplotlib.collections import PolyCollection

    ground = Ground.of(result.cluster.fabric, result.cluster.slots)
    size = np.bincount(ground.rack)
    filled = np.searchsorted(np.sort(ground.rack), ground.rack)
    order = np.argsort(ground.rack, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    within = (place - filled) / size[ground.rack]  # of a NIC in its rack
    corners: list[list[tuple[float, float]]] = []
    colours: list[str] = []
    for span in result.spans:
        racks, first = np.unique(ground.rack[span.slots], return_index=True)
        if len(corners) + len(racks) > _BARS:
            return True
        share = np.bincount(ground.rack[span.slots], minlength=len(size))[racks] / size[racks]
        low = np.minimum(within[span.slots][first], 1 - share) + racks
        begin, end = span.begin_s / unit, span.end_s / unit
        for bottom, top in zip(low.tolist(), (low + share).tolist(), strict=True):
            corners.append([(begin, bottom), (end, bottom), (end, top), (begin, top)])
            colours.append(LINES[span.number % len(LINES)])
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.2))
    axes.set_xlim(0, max(result.seconds, 1e-9) / unit)
    axes.set_ylim(0, len(size))
    return False
