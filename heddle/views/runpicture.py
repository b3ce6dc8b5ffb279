"""A picture of a run, or of several side by side: bandwidth over size, load of each uplink, iterations over time.

In:  StoredRuns. Out: SVG, PNG or PDF; the same input gives the same bytes.
The load of an uplink is the share of its line rate, the mean of the run. The timeline has a row for each rank
and a bar for each timed iteration; below it is the queue where packets waited longest. All timelines have one scale.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.tables import many
from heddle.base.units import format_bytes, format_size
from heddle.runs.parts.slowest import Slowest
from heddle.runs.stored import StoredRun
from heddle.views.linkloads import describe_run
from heddle.views.queuepicture import Panel, panels
from heddle.views.style import DPI, DROPPED, INK, QUIET, SERIES_OF_RUNS, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heddle.proof.linkuse import LinkUse
    from heddle.runs.series import Recorded
    from heddle.runs.timeline import Iterations

MOST_RUNS: Final = 4  # that one picture can show side by side
_WIDTH, _LEFT, _RIGHT, _GAP = 11.0, 1.15, 0.35, 0.72  # inches
_CHART, _DEPTH, _BOTTOM = 2.6, 1.0, 0.65
_ROW: Final = 0.11  # of a rank in a timeline, if there are many
_LABELLED: Final = 36  # uplinks, or ranks, that each have a label
_LETTERS: Final = 132  # of a line of the heading


@dataclass(frozen=True)
class Drawn:
    """A run with its colour. label: its ID, with the lab where there are several. name: short, for legends."""

    run: StoredRun
    label: str
    colour: str

    @property
    def name(self) -> str:
        """`run 0003: ECMP flow, 1 QP`."""
        record = self.run.record
        title = f"{record.title}, " if record.title else ""
        return f"run {self.label}: {title}ECMP {record.ecmp}, {many(record.options.qps, 'QP')}"

    @cached_property
    def uplinks(self) -> tuple[LinkUse, ...]:
        """The links that an MMR counts; none without a verdict on paths."""
        return () if self.run.proof.value is None else self.run.proof.value.uplinks.links

    @cached_property
    def iterations(self) -> Iterations | None:
        """The timed iterations; None if the run has none."""
        found = self.run.timeline.value
        return None if found is None or not len(found.iterations.rank) else found.iterations

    @property
    def recorded(self) -> Recorded | None:
        """Its queues over time."""
        return self.run.recorded.value

    @cached_property
    def hottest(self) -> Panel | None:
        """The queue where packets waited longest, else the fullest one of a switch."""
        if self.recorded is None:
            return None
        found = self.run.record.part(Slowest)
        ports = [each.port for each in found.waits] if found is not None else []
        here = panels(self.recorded, lambda label: label.port in ports and label.kind != "control")
        fullest = panels(self.recorded, lambda label: not label.host and label.kind != "control")
        return next((each for each in (*here, *fullest) if each.side == "egress"), None)

    @property
    def end_s(self) -> float:
        """The end of its timeline."""
        ends = [0.0] if self.iterations is None else [float(self.iterations.end_s.max())]
        if self.recorded is not None and len(self.recorded.series.ends_s):
            ends.append(float(self.recorded.series.ends_s[-1]))
        return max(ends)


def draw(kind: PictureKind, runs: Sequence[StoredRun]) -> bytes:
    """The picture as a file's bytes. InputError for a run that measured no size."""
    labs = {run.lab for run in runs}
    names = [run.id if len(labs) == 1 else run.name for run in runs]
    shown = [Drawn(*each) for each in zip(runs, names, SERIES_OF_RUNS, strict=False)]
    for each in shown:
        each.run.check_sizes()
        if not each.run.record.rows:
            raise each.run.unusable(f"it measured no size: {each.run.record.why_not_done}")
    return saved(kind, ", ".join(each.run.what for each in shown), lambda: _figure(shown))


def _figure(shown: Sequence[Drawn]) -> Figure:
    from matplotlib.figure import Figure

    heads = [*_heading(shown)]
    top = 0.62 + 0.19 * len(heads) + 0.5
    rows = [_ranks_height(each) for each in shown]
    depths = [0.0 if each.hottest is None else _DEPTH + 0.34 for each in shown]
    down = top + _CHART + _GAP + 0.45
    if len(shown) > 1:  # bars of several runs side by side need the whole width
        down += 0.19 * len(shown) + 0.1 + _CHART + _GAP
    tall = down + sum(row + depth + _GAP for row, depth in zip(rows, depths, strict=True)) + _BOTTOM - 0.77
    figure = Figure(figsize=(_WIDTH, tall), dpi=DPI, facecolor="white")

    def axes(left: float, down: float, width: float, height: float) -> Axes:
        return figure.add_axes((left / _WIDTH, (tall - down - height) / tall, width / _WIDTH, height / tall))

    what = "run" if len(shown) == 1 else "runs"
    ids = ", ".join(each.run.name for each in shown)
    figure.text(0.3 / _WIDTH, 1 - 0.34 / tall, f"{what} {ids}", fontsize=13, weight="bold", color=INK)
    for number, (text, colour, mark) in enumerate(heads):
        at = 1 - (0.6 + 0.19 * number) / tall
        if mark:
            figure.text(0.3 / _WIDTH, at, "\N{BLACK SQUARE}", fontsize=8.5, color=mark, va="center")
        figure.text((0.48 if mark else 0.3) / _WIDTH, at, text, fontsize=8.5, color=colour, va="center")
    inner, part = _WIDTH - _LEFT - _RIGHT, 3.9
    if len(shown) > 1:
        _bandwidth(axes(_LEFT, top, inner, _CHART), shown)
        _uplinks(axes(_LEFT, down - _GAP - 0.45 - _CHART, inner, _CHART), shown, inner)
    else:
        _bandwidth(axes(_LEFT, top, part, _CHART), shown)
        left = _LEFT + part + 0.8
        _uplinks(axes(left, top, _WIDTH - left - _RIGHT, _CHART), shown, _WIDTH - left - _RIGHT)
    last_s = max(each.end_s for each in shown) or 1.0
    for each, row, depth in zip(shown, rows, depths, strict=True):
        lowest = _timeline(axes(_LEFT, down, inner, row), each)
        lowest.set_xlim(0, last_s)
        down += row
        if each.hottest is not None:
            lowest.tick_params(labelbottom=False)
            lowest = _queue(axes(_LEFT, down + 0.34, inner, _DEPTH), each, each.hottest)
            lowest.set_xlim(0, last_s)
            down += depth
        down += _GAP
    lowest.set_xlabel("seconds of wall time since the run began (emulated)", fontsize=8.5, color=INK)
    return figure


def _heading(shown: Sequence[Drawn]) -> Iterator[tuple[str, str, str]]:
    """Lines, with the colour of the text and of the square before it."""
    for each in shown:
        text = f"run {each.label}: {describe_run(each.run.record)}"
        yield from ((line, INK, "" if at else each.colour) for at, line in enumerate(textwrap.wrap(text, _LETTERS)))
        if each.run.record.limited:
            yield f"run {each.label} is unreliable: the host CPU was or may have been the bottleneck", DROPPED, ""
    scales = ", ".join(dict.fromkeys(str(each.run.record.k) for each in shown))
    yield f"emulated, k = {scales}: compare ratios, not GB/s with hardware", INK, ""


def _ranks_height(each: Drawn) -> float:
    if each.iterations is None:
        return 0.3
    ranks = len(np.unique(each.iterations.rank))
    return 0.2 + min(0.2 * ranks, max(1.6, _ROW * ranks), 4.0)


def _look(axes: Axes, title: str, pad: int = 6, font: float = 9.5) -> None:
    axes.tick_params(labelsize=7.5, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_title(title, fontsize=font, color=INK, loc="left", pad=pad)


def _bandwidth(axes: Axes, shown: Sequence[Drawn]) -> None:
    sizes = sorted({row.size for each in shown for row in each.run.record.rows})
    place = {size: at for at, size in enumerate(sizes)}
    for number, each in enumerate(shown):
        rows = sorted(each.run.record.rows, key=lambda row: row.size)
        values = np.array([row.busbw for row in rows])
        times = [np.array(row.iteration_us or (row.time_us,)) / row.time_us for row in rows]
        low = [value - value / max(1e-9, float(ratio.max())) for value, ratio in zip(values, times, strict=True)]
        high = [value / max(1e-9, float(ratio.min())) - value for value, ratio in zip(values, times, strict=True)]
        aside = 0.08 * (number - (len(shown) - 1) / 2)  # so that the bars of two runs do not hide each other
        axes.errorbar(
            [place[row.size] + aside for row in rows], values, yerr=np.maximum(0.0, [low, high]), color=each.colour,
            marker="os^D"[number], markersize=5, linewidth=1.6, elinewidth=0.9, capsize=2.5, label=each.name,
        )  # fmt: skip
    step = -(-len(sizes) // 9)
    axes.set_xticks(range(0, len(sizes), step), [format_size(size) for size in sizes[::step]])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.set_ylabel("busbw, GB/s (emulated)", fontsize=8.5, color=INK)
    axes.set_xlabel("bytes of a rank", fontsize=8.5, color=INK)
    axes.grid(axis="y", color=QUIET, linewidth=0.4)
    _look(axes, "Bandwidth")
    if len(shown) > 1:
        axes.legend(fontsize=7, frameon=False, loc="lower right", labelcolor=INK)


def _uplinks(axes: Axes, shown: Sequence[Drawn], width: float) -> None:
    """A group of bars for each uplink, with a bar for each run; a line at the mean of each run, the worst in words.

    width: of the axes, inches.
    """
    from matplotlib.patches import Patch

    ports = list(dict.fromkeys(link.port for each in shown for link in each.uplinks))
    place = {port: at for at, port in enumerate(ports)}
    bar = 0.84 / len(shown)
    in_time = all(link.utilisation is not None for each in shown for link in each.uplinks)
    said = []
    for number, each in enumerate(shown):
        loads = [(link.utilisation or 0.0) * 100 if in_time else link.bytes / 1e6 for link in each.uplinks]
        which = f"run {each.label}: " if len(shown) > 1 else ""
        if not loads:
            said.append(f"{which}{each.run.proof.why or 'no uplink has ranks below it'}")
            continue
        at = [place[link.port] - 0.42 + bar * (number + 0.5) for link in each.uplinks]
        axes.bar(at, loads, width=bar, color=each.colour, linewidth=0, zorder=2)
        mean, worst = float(np.mean(loads)), int(np.argmax(loads))
        axes.axhline(mean, color=each.colour, linewidth=1.1, linestyle="--", zorder=3)
        unit = " %" if in_time else " MB"
        ratio = f", max/mean {loads[worst] / mean:.2f}" if mean else ""
        most = f"{loads[worst]:.3g}{unit} at {each.uplinks[worst].port}"
        said.append(f"{which}worst {most}, mean {mean:.3g}{unit} (dashed){ratio}")
    _name_ports(axes, ports, width)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.set_ylabel("load, % of line rate (mean of the run)" if in_time else "MB sent", fontsize=8.5, color=INK)
    axes.grid(axis="y", color=QUIET, linewidth=0.4, zorder=0)
    lines = [textwrap.shorten(text, 17 * int(width), placeholder="...") for text in said]
    if len(shown) == 1:
        _look(axes, "\n".join(["Load of each uplink", *lines]), font=8.5)
        return
    keys = [Patch(color=each.colour, label=line) for each, line in zip(shown, lines, strict=True)]
    axes.legend(handles=keys, fontsize=8.5, frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderpad=0,
                labelspacing=0.3, labelcolor=INK, handlelength=0.8, handleheight=0.8)  # fmt: skip
    _look(axes, "Load of each uplink", pad=5 + 13 * len(shown))


def _name_ports(axes: Axes, ports: Sequence[str], width: float) -> None:
    """The names of ports below their bars, and below those the names of their switches, every other one shaded."""
    axes.set_xlim(-0.6, max(1, len(ports)) - 0.4)
    step = max(1, -(-len(ports) // _LABELLED))
    upright = len(ports) > 2.6 * width  # else a name is as wide as its group
    names = [port.partition(":")[2] if step == 1 else "" for port in ports]
    axes.set_xticks(range(len(ports)), names, rotation=90 if upright else 0)
    groups = [[*group] for _, group in groupby(range(len(ports)), key=lambda at: ports[at].partition(":")[0])]
    longest = max((len(ports[first].partition(":")[0]) for first, *_ in groups), default=0)
    every = max(1, math.ceil(len(groups) * (0.07 * longest + 0.08) / width))
    for number, group in enumerate(groups):
        if number % 2:
            axes.axvspan(group[0] - 0.5, group[-1] + 0.5, color=QUIET, alpha=0.2, linewidth=0, zorder=0)
        if number % every == 0:
            below = -8 if step > 1 else -34 if upright else -20  # points
            axes.annotate(
                ports[group[0]].partition(":")[0], ((group[0] + group[-1]) / 2, 0), (0, below),
                xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="center", va="top", fontsize=8,
                color=INK, annotation_clip=False,
            )  # fmt: skip


def _timeline(axes: Axes, each: Drawn) -> Axes:
    _look(axes, f"run {each.label}: timed iterations of each rank, without the warm-up", pad=16)
    its = each.iterations
    if its is None:
        axes.axis("off")
        axes.text(0, 0.3, each.run.timeline.why or "no iteration was timed", fontsize=8, color=INK, va="center")
        return axes
    ranks = np.unique(its.rank).tolist()
    for parity, alpha in ((0, 0.9), (1, 0.55)):  # neighbours in time differ
        rows = np.flatnonzero(its.epoch % 2 == parity)
        lengths = its.end_s[rows] - its.begin_s[rows]
        axes.barh(
            its.rank[rows], lengths, left=its.begin_s[rows], height=0.78, color=each.colour, alpha=alpha, linewidth=0
        )
    step = -(-len(ranks) // _LABELLED)
    nics = [each.run.record.ranks[rank].nic for rank in ranks[::step]]
    axes.set_yticks(ranks[::step], [f"{rank} {nic}" for rank, nic in zip(ranks[::step], nics, strict=True)])
    axes.set_ylim(max(ranks) + 0.6, min(ranks) - 0.6)
    axes.tick_params(axis="y", labelsize=6.5)
    for size in np.unique(its.size).tolist():
        first = float(its.begin_s[its.size == size].min())
        if len(np.unique(its.size)) <= 8:
            axes.annotate(
                format_size(size), (first, 1.0), xycoords=("data", "axes fraction"), fontsize=7, color=INK,
                va="bottom", annotation_clip=False, gid=f"size-{size}",
            )  # fmt: skip
    return axes


def _queue(axes: Axes, each: Drawn, panel: Panel) -> Axes:
    series: Any = each.recorded.series if each.recorded is not None else None
    edges = np.concatenate([[0.0], series.ends_s])
    axes.stairs(panel.level, edges, fill=True, color=each.colour, alpha=0.4, linewidth=0)
    axes.stairs(panel.peak, edges, color=each.colour, linewidth=0.8, baseline=None)
    axes.set_ylim(0, max(1.0, panel.most) * 1.1)
    axes.yaxis.set_major_formatter(lambda value, _: format_bytes(value))
    _look(axes, f"run {each.label}: {panel.title}, at most {format_bytes(panel.most)}")
    return axes
