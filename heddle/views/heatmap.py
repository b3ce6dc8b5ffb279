"""A picture of a prediction: the load of every link between switches, one square per link and direction.

In:  Prediction. Out: SVG, PNG or PDF of its first mode; the same input gives the same bytes.
Rows are switches of one level, columns the switches above them. When rows have different switches above them, a column
is the index of a switch in its area. Colour is the load as a share of line rate (loadscale.py), if the workload took
the time of the roofline: a link above 100 % makes it slower. Links that are down are black, links of drained switches
are hatched; the legend names both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.arrays import F64, I32, Bools
from heddle.base.problems import InputError, Problem
from heddle.base.tables import some_of
from heddle.offline.result import Prediction
from heddle.offline.wires import Wires
from heddle.views.loadscale import BESIDE, MARKS, MEANING, colormap
from heddle.views.style import DPI, INK, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Patch

_SHORT: Final = 3.2  # least height of a panel, inches; _TALL the largest: a row of 2,016 is still a pixel
_TALL: Final = 14.0
_WRITTEN: Final = 20  # numbers are written in the squares up to so many rows and columns
_TICKS: Final = 24
_NAMED: Final = 6  # names in a line of the legend
_DEAD: Final[Mapping[str, Any]] = {"facecolor": INK, "edgecolor": INK, "linewidth": 0.0}
_DRAINED: Final[Mapping[str, Any]] = {"facecolor": "none", "edgecolor": "#c2185b", "hatch": "////", "linewidth": 0.0}


@dataclass(frozen=True)
class _Panel:
    """One direction between two levels. values: (rows, columns), shares; nan where there is no link or it is down.

    dead, drained: (rows, columns), the links that are down and those of drained switches.
    """

    title: str
    values: F64
    rows: list[str]
    columns: list[str]
    above: str
    cuts: list[int]  # rows before which another group begins
    dead: Bools
    drained: Bools


def draw(kind: PictureKind, result: Prediction) -> bytes:
    """The picture as a file's bytes."""
    return saved(kind, result.wires.fabric.name, lambda: _figure(result))


def _panels(result: Prediction) -> list[_Panel]:
    wires, mode = result.wires, result.modes[0]
    per = result.roofline.seconds or 1.0
    load = np.round(mode.bytes * 8 / wires.rate / per, 9)
    load = np.where([port in result.trouble.dead for port in wires.ports], np.nan, load)
    drained = [index for index, name in enumerate(wires.switches) if name in result.trouble.drained]
    panels = []
    levels, area = wires.fabric.levels, wires.fabric.area
    for direction in wires.outward:
        low, high = (levels[level].title for level in wires.directions[direction])
        sideways = len({*wires.directions[direction]}) == 1  # then the other direction is the same rows again
        up = np.flatnonzero(wires.direction == direction)
        if not len(up):
            continue
        owners, row = np.unique(wires.owner[up], return_inverse=True)
        first = np.searchsorted(row, np.arange(len(owners)))  # a switch's uplinks follow each other
        column = np.arange(len(up)) - first[row]
        grids = [np.full((len(owners), int(column.max()) + 1), np.nan) for _ in "ud"]
        grids[0][row, column] = load[up]
        grids[1][row, column] = load[wires.other[up]]
        peers = np.full(grids[0].shape, -1)
        peers[row, column] = wires.peer[up]
        several = bool((peers != peers[0]).any())
        names = [str(i + 1) for i in range(grids[0].shape[1])]
        if not several:
            names = [wires.switches[int(s)] for s in wires.peer[up[row == 0]]]
        gone = np.array([wires.ports[int(port)] in result.trouble.dead for port in up], dtype=bool)
        names_of = (wires.owner[up], wires.peer[up])
        quiet = np.isin(names_of[0], drained) | np.isin(names_of[1], drained)
        masks = [np.zeros(grids[0].shape, dtype=bool) for _ in "dq"]
        masks[0][row, column], masks[1][row, column] = gone, quiet
        word = area if wires.groups(area)[wires.peer[up]].all() else "group"
        above = ("link" if sideways else f"{high}, by place in its {word}") if several else ""
        cuts = _cuts(wires, owners)
        rows = [wires.switches[int(s)] for s in owners]
        titles = (wires.direction_name(direction),) if sideways else (f"{low} to {high}", f"{high} to {low}")
        for grid, title in zip(grids, titles, strict=not sideways):
            panels.append(_Panel(title, grid, rows, names, above, cuts, *masks))
    return panels


def _cuts(wires: Wires, owners: I32) -> list[int]:
    """Rows before which a new area begins; or a new box of several rows, when rows are not sorted by area."""
    for word in (wires.fabric.area, wires.fabric.box):
        number = wires.groups(word)[owners]
        groups = len(np.unique(number))
        cuts = [int(i) + 1 for i in np.flatnonzero(np.diff(number))]
        if groups > 1 and len(cuts) == groups - 1 and (word == wires.fabric.area or groups < len(owners)):
            return cuts
    return []


def _figure(result: Prediction) -> Figure:
    from matplotlib.figure import Figure

    panels = _panels(result)
    if not panels:
        why = f"has nothing to draw: {result.wires.fabric.name} has no link between switches"
        raise InputError(Problem("", "--heatmap", why, "remove --heatmap: the table names the links of hosts"))
    rows = max(len(panel.rows) for panel in panels)
    height = min(_TALL, max(_SHORT, 0.3 * rows))
    widths = [max(1.9, min(5.0, 0.42 * len(panel.columns))) for panel in panels]
    legend = _legend(result, panels)
    left, gap, right, bottom, top = 0.95, 0.85, 1.25, 0.75 + 0.22 * len(legend), 1.05
    across = max(6.5, left + sum(widths) + gap * (len(panels) - 1) + right)
    down = bottom + height + top
    figure = Figure(figsize=(across, down), dpi=DPI, facecolor="white")
    x = left
    image = None
    for panel, width in zip(panels, widths, strict=True):
        # A level with fewer rows gets a lower panel.
        tall = min(height, max(_SHORT, height * len(panel.rows) / rows))
        axes = figure.add_axes((x / across, (bottom + height - tall) / down, width / across, tall / down))
        image = _panel(axes, panel, width, tall)
        x += width + gap
    assert image is not None  # noqa: S101  (there is at least one panel)
    bar = figure.add_axes(((x - gap + 0.25) / across, (bottom + height - _SHORT) / down, 0.16 / across, _SHORT / down))
    figure.colorbar(image, cax=bar, extend="max", label=f"{MEANING} in the roofline's time")
    bar.set_yticks([*MARKS], [*MARKS.values()], fontsize=8)
    bar.set_title(BESIDE["over"], fontsize=8, color=INK, loc="left", pad=16)
    if legend:
        figure.legend(handles=legend, loc="lower left", bbox_to_anchor=(0.15 / across, 0.04 / down), fontsize=8.5,
                      frameon=False, borderpad=0, labelcolor=INK)  # fmt: skip
    mode = result.modes[0]
    figure.text(
        0.2 / across, 1 - 0.3 / down, f"{result.wires.fabric.name}, predicted: {mode.mode}", fontsize=13, color=INK
    )
    ratio = (
        "" if mode.ratio is None else f"busiest link {result.wires.ports[mode.busiest]}, {mode.ratio:.2f} x roofline; "
    )
    said = f"{ratio}{result.workload.name}; emulated, k = {result.k}"
    figure.text(0.2 / across, 1 - 0.55 / down, said, fontsize=8.5, color=INK)
    return figure


def _panel(axes: Axes, panel: _Panel, width: float, tall: float) -> AxesImage:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    image = axes.imshow(panel.values, aspect="auto", cmap=colormap(), vmin=0, vmax=1, interpolation="nearest")
    axes.set_facecolor("#d8dce1")  # squares without a link
    for mask, look in ((panel.dead, _DEAD), (panel.drained, _DRAINED)):
        cells = [Rectangle((column - 0.5, row - 0.5), 1, 1) for row, column in np.argwhere(mask).tolist()]
        if cells:
            axes.add_collection(PatchCollection(cells, **look))
    axes.set_title(panel.title, fontsize=10, color=INK)
    rows, columns = panel.values.shape
    every = max(1, -(-rows // min(_TICKS, int(tall / 0.16))))
    axes.set_yticks(range(0, rows, every), panel.rows[::every], fontsize=7.5)
    longest = max(len(name) for name in panel.columns)
    step = max(1, -(-columns // int(width / 0.17)))
    turned = longest > 2
    axes.set_xticks(range(0, columns, step), panel.columns[::step], fontsize=7.5, rotation=90 if turned else 0)
    if panel.above:
        axes.set_xlabel(panel.above, fontsize=8, color=INK)
    for cut in panel.cuts:
        axes.axhline(cut - 0.5, color="white", linewidth=1.2)
    if rows <= _WRITTEN and columns <= _WRITTEN:
        for (row, column), value in np.ndenumerate(panel.values):
            if not np.isnan(value):
                ink = "white" if 0.4 < value <= 1 else INK
                axes.text(column, row, f"{value:.0%}", ha="center", va="center", fontsize=7, color=ink)
    return image


def _legend(result: Prediction, panels: Sequence[_Panel]) -> list[Patch]:
    """The nodes and ports of --down and --drain, with the pattern of their links."""
    from matplotlib.patches import Patch

    rows = (
        ("down", result.trouble.down, _DEAD, any(panel.dead.any() for panel in panels)),
        ("drained by BGP", result.trouble.drained, _DRAINED, True),
    )
    found = []
    for word, names, look, drawn in rows:
        note = "" if drawn else " (no link between switches)"
        if names:
            found.append(Patch(**look, label=f"{word}: {some_of(names, _NAMED)}{note}"))
    return found
