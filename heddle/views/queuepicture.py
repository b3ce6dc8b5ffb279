"""A picture of a run's queues over time: a panel for each of the fullest egress queues and ingress buffers.

In:  Recorded (see series.py), and the rows to draw.
Out: SVG, PNG or PDF; the same input gives the same bytes.
Depth is a filled step: the value at each bucket's end. The line above it is the bucket's maximum. Below it are lanes:
the share of time that the port's gate was closed, marks, drops, and pause frames. Where the run had congestion control,
a panel above the queues has the sending rates of its queue pairs. Faults with times have a lane each above all panels,
and their times are shaded in the panels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from heddle.base.arrays import F64
from heddle.base.units import format_bytes
from heddle.runs.parts.part import TimeSpan
from heddle.runs.rates import RateCourse, Rates
from heddle.runs.series import Recorded, RowLabel
from heddle.views.style import DEPTH, DPI, DROPPED, FAULT, HELD, INK, MARKED, PAUSED, PAUSES, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PORTS: Final = 4  # panels of egress queues when the user names none
INGRESS: Final = 2  # the same for ingress buffers
MOST: Final = 12  # panels that fit on a page
STEPS: Final = 600  # buckets drawn: a bucket must not be thinner than a pixel
_WIDTH, _PANEL, _LANE, _GAP = 10.5, 1.5, 0.26, 0.42  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.85, 1.25, 0.95, 0.4
_LINES: Final = {"kmin": ":", "kmax": "--", "xon": ":", "xoff": "--"}
DRAWN: Final = 32  # queue pairs; more lines would hide each other
_NAMED: Final = 6  # queue pairs with a legend
_FAULTS: Final = 8  # faults with a lane
# Colours of lines that differ also in lightness (Okabe and Ito).
LINES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Panel:
    """The egress queue or the ingress buffer of one row of the series; level and peak in bytes, by bucket."""

    label: RowLabel
    side: Literal["egress", "ingress"]
    row: int
    level: F64
    peak: F64

    @property
    def most(self) -> float:
        """The maximum over the run, bytes."""
        return float(self.peak.max(initial=0.0))

    @property
    def title(self) -> str:
        """`rtsw1:eth3, class 3: egress queue`."""
        what = "egress queue" if self.side == "egress" else "ingress buffer"
        return f"{self.label.port}, class {self.label.traffic_class}: {what}"

    @property
    def thresholds(self) -> dict[str, int]:
        """Those of this side, in bytes, without those that the class does not have."""
        label = self.label
        ecn, pfc = {"kmin": label.kmin, "kmax": label.kmax}, {"xon": label.xon, "xoff": label.xoff}
        return {name: value for name, value in (ecn if self.side == "egress" else pfc).items() if value}

    def to_json(self) -> dict[str, Any]:
        label = self.label
        return {"port": label.port, "class": label.traffic_class, "side": self.side, "most_bytes": int(self.most)}


def panels(
    recorded: Recorded, wanted: Callable[[RowLabel], bool] | None = None, most: int | None = None
) -> list[Panel]:
    """The panels to draw: the fullest egress queues, then the fullest ingress buffers of lossless classes.

    wanted: draw these rows, however little they held. most: the largest number of panels of each side.
    """
    found: list[Panel] = []
    for side, level, peak, usual in (
        ("egress", "depth", "peak", PORTS),
        ("ingress", "occupancy", "occupancy_peak", INGRESS),
    ):
        rows = [
            Panel(label, side, row, *(recorded.series.columns[name][row].astype(np.float64) for name in (level, peak)))  # type: ignore[arg-type]
            for row, label in enumerate(recorded.labels)
            if (side == "egress" or label.xoff) and (wanted is None or wanted(label))
        ]
        held = [panel for panel in rows if panel.most > 0]
        held.sort(key=lambda panel: (panel.label.host, -panel.most, panel.row))
        if wanted is None:
            held = [panel for panel in held if _by_default(recorded, panel)] or held
        found += held[: most if most is not None else MOST // 2 if wanted is not None else usual]
    return found


def _by_default(recorded: Recorded, panel: Panel) -> bool:
    """Whether a queue is drawn when the user names none: not class control, and a host's queues only if paused."""
    paused = recorded.series.columns["paused_ns"][panel.row].any()
    return panel.label.kind != "control" and bool(paused or not panel.label.host)


def draw(
    kind: PictureKind,
    recorded: Recorded,
    shown: Sequence[Panel],
    rates: Rates | None = None,
    marked: Sequence[TimeSpan] = (),
) -> bytes:
    """The picture as a file's bytes. shown: at least one panel. rates: drawn in a panel above the queues.

    marked: times to shade.

    A run with many buckets is drawn with fewer: a bucket must not be thinner than a pixel.
    """
    return saved(kind, f"queues of {recorded.lab}", partial(_figure, *coarser(recorded, shown), rates, marked))


def coarser(recorded: Recorded, shown: Sequence[Panel]) -> tuple[Recorded, list[Panel]]:
    """The series and its panels with at most STEPS buckets."""
    drawn = replace(recorded, series=recorded.series.coarser(STEPS))
    again = {(each.side, each.row): each for each in panels(drawn, lambda _: True, len(recorded.labels))}
    return drawn, [again[each.side, each.row] for each in shown]


def by_label(marked: Sequence[TimeSpan]) -> list[tuple[str, list[TimeSpan]]]:
    """The times of each label, in the order of the first ones. If there are too many labels, the last ones together."""
    found: dict[str, list[TimeSpan]] = defaultdict(list)
    for span in marked:
        found[span.what].append(span)
    rows = list(found.items())
    if len(rows) > _FAULTS:
        rest = rows[_FAULTS - 1 :]
        rows[_FAULTS - 1 :] = [(f"{len(rest)} more faults", [span for _, spans in rest for span in spans])]
    return rows


def shaded(marked: Sequence[TimeSpan]) -> list[tuple[float, float]]:
    """The times to shade, in order: those that overlap are one."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((span.begin_s, span.end_s) for span in marked):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _figure(recorded: Recorded, shown: Sequence[Panel], rates: Rates | None, marked: Sequence[TimeSpan]) -> Figure:
    from matplotlib.figure import Figure

    lanes = [lanes_of(recorded, panel) for panel in shown]
    heights = [_PANEL + _LANE * len(lane) + _GAP for lane in lanes]
    faults = by_label(marked)
    tall = _TOP + _LANE * len(faults) + sum(heights) + _BOTTOM + (_PANEL + _GAP if rates is not None else 0)
    figure = Figure(figsize=(_WIDTH, tall), dpi=DPI, facecolor="white")
    inner = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
    y = tall - _TOP - _LANE * len(faults)
    most = {side: max((p.most for p in shown if p.side == side), default=1.0) for side in ("egress", "ingress")}
    if rates is not None:
        _draw_rates(figure.add_axes((_LEFT / _WIDTH, (y - _PANEL) / tall, inner, _PANEL / tall)), rates, recorded)
        y -= _PANEL + _GAP
    for panel, lane in zip(shown, lanes, strict=True):
        axes = figure.add_axes((_LEFT / _WIDTH, (y - _PANEL) / tall, inner, _PANEL / tall))
        _depth(axes, recorded, panel, most[panel.side])
        y -= _PANEL
        for name, (colour, values) in lane.items():
            below = figure.add_axes((_LEFT / _WIDTH, (y - _LANE + 0.04) / tall, inner, (_LANE - 0.07) / tall))
            total = f"{paused_ms(recorded, panel):,.0f} ms" if name == "paused" else f"{int(values.sum()):,}"
            _counts(below, recorded, (name, total), colour, values)
            y -= _LANE
        y -= _GAP
    for axes in figure.axes:
        for begin, end in shaded(marked):
            axes.axvspan(begin, end, color=FAULT, alpha=0.25, linewidth=0, zorder=0)
    for number, (what, spans) in enumerate(faults):
        at = (tall - _TOP + 0.7 * _GAP - _LANE * (number + 1)) / tall
        strip = figure.add_axes((_LEFT / _WIDTH, at, inner, (_LANE - 0.07) / tall))
        _fault(strip, recorded, what, spans)
    _time(figure, recorded, (y + _GAP) / tall, inner, tall)
    _heading(figure, recorded, tall)
    return figure


def lanes_of(recorded: Recorded, panel: Panel) -> dict[str, tuple[str, F64]]:
    """The lanes below a panel, without those that are zero: colour, and values by bucket.

    `paused`: the share of each bucket in which the gate was closed, 0 to 1; the others are counts.
    """
    columns, row = recorded.series.columns, panel.row
    if panel.side == "egress":
        lengths = np.maximum(recorded.series.ends_s - recorded.series.starts_s, 1e-9)
        paused = np.clip(columns["paused_ns"][row] / 1e9 / lengths, 0, 1)
        found = {"paused": (PAUSED, paused), "marks": (MARKED, columns["marks"][row])}
        found |= {"trims": (HELD, columns["trims"][row]), "drops": (DROPPED, columns["drops"][row])}
    else:
        found = {"pauses": (PAUSES, columns["pfc_sent"][row])}
    return {name: (colour, values.astype(np.float64)) for name, (colour, values) in found.items() if values.any()}


def paused_ms(recorded: Recorded, panel: Panel) -> float:
    """How long the gate of a panel's port was closed in the whole run."""
    return float(recorded.series.columns["paused_ns"][panel.row].sum()) / 1e6


def _depth(axes: Axes, recorded: Recorded, panel: Panel, most: float) -> None:
    edges = np.concatenate([[0.0], recorded.series.ends_s])
    colour = DEPTH if panel.side == "egress" else HELD
    top = max(most, 1.0) * 1.12
    axes.stairs(panel.level, edges, fill=True, color=colour, alpha=0.45, linewidth=0, zorder=2)
    axes.stairs(panel.peak, edges, color=colour, linewidth=0.8, zorder=3, baseline=None)
    beyond = []
    taken: list[float] = []
    for name, value in panel.thresholds.items():
        said = f"{name.capitalize()} {format_bytes(value)}"
        if value > top:
            beyond.append(said)
            continue
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=_LINES[name], zorder=4)
        at = value if not taken or value - taken[-1] > 0.11 * top else taken[-1] + 0.11 * top
        taken.append(at)
        place = (1.008, at / top)
        axes.annotate(
            said, place, xycoords="axes fraction", fontsize=7.5, color=INK, va="center", annotation_clip=False
        )
    if beyond:
        text = f"{', '.join(beyond)}: above"
        axes.annotate(text, (0.995, 0.97), xycoords="axes fraction", fontsize=7, color=INK, va="top", ha="right")
    axes.yaxis.set_major_formatter(lambda value, _: format_bytes(value))
    _frame(axes, f"{panel.title}, at most {format_bytes(panel.most)}", recorded, top)


def _frame(axes: Axes, title: str, recorded: Recorded, top: float) -> None:
    axes.set_ylim(0, top)
    axes.set_xlim(_first(recorded), _last(recorded))
    axes.tick_params(labelsize=7.5, colors=INK, labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=9, color=INK, loc="left", pad=4)


def _counts(axes: Axes, recorded: Recorded, said: tuple[str, str], colour: str, values: F64) -> None:
    """A lane: a bar for the value of each bucket, scaled to the largest. said: its name, and the sum at the right."""
    from matplotlib.patches import Rectangle

    name, total = said
    edges = np.concatenate([[0.0], recorded.series.ends_s])
    top = max(1.0, float(values.max()))
    # With an edge line: without one, a single bar among thousands of buckets is thinner than a pixel.
    for start, end, value in zip(edges[:-1], edges[1:], values, strict=True):
        if value:
            bar = Rectangle((start, 0), end - start, value, facecolor=colour, edgecolor=colour, linewidth=0.6)
            axes.add_patch(bar)
    _lane(axes, recorded, top)
    axes.annotate(name, (-0.008, 0.45), xycoords="axes fraction", fontsize=7.5, color=colour, va="center", ha="right")
    axes.annotate(total, (1.008, 0.45), xycoords="axes fraction", fontsize=7.5, color=colour, va="center")


def _fault(axes: Axes, recorded: Recorded, what: str, spans: Sequence[TimeSpan]) -> None:
    """The lane of a fault: a bar for each of its times, and its label from the first one to the side with more room."""
    for span in spans:
        axes.axvspan(span.begin_s, span.end_s, color=FAULT, linewidth=0)
    _lane(axes, recorded, 1.0)
    begin, end = max(spans[0].begin_s, _first(recorded)), min(spans[0].end_s, _last(recorded))
    early = begin + end < _first(recorded) + _last(recorded)
    axes.annotate(
        what, (begin if early else end, 0.45), (3 if early else -3, 0), textcoords="offset points", fontsize=7.5,
        color=INK, va="center", ha="left" if early else "right", annotation_clip=False,
    )  # fmt: skip


def _lane(axes: Axes, recorded: Recorded, top: float) -> None:
    axes.set_xlim(_first(recorded), _last(recorded))
    axes.set_ylim(0, top)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#f3f4f6")


def _time(figure: Figure, recorded: Recorded, at: float, inner: float, tall: float) -> None:
    axes = figure.add_axes((_LEFT / _WIDTH, at - 0.02 / tall, inner, 0.001))
    axes.set_xlim(_first(recorded), _last(recorded))
    axes.set_yticks([])
    axes.tick_params(labelsize=8, colors=INK)
    ns = 1e6 / recorded.k
    axes.set_xlabel(
        f"seconds since the run began, emulated (k = {recorded.k}: a link carries in 1 ms here what hardware carries "
        + (f"in {ns / 1e3:.3g} us)" if ns >= 1e3 else f"in {ns:.3g} ns)"),
        fontsize=8.5, color=INK,
    )  # fmt: skip
    axes.spines[["top", "left", "right"]].set_visible(False)


def _heading(figure: Figure, recorded: Recorded, tall: float) -> None:
    series = recorded.series
    x = 0.25 / _WIDTH
    figure.text(x, 1 - 0.32 / tall, f"{recorded.lab}: queues over time", fontsize=13, weight="bold", color=INK)
    said = f"{recorded.what}; fill: at a bucket's end ({series.bucket_s * 1e3:.2g} ms), line: the bucket's maximum"
    figure.text(x, 1 - 0.55 / tall, said, fontsize=8.5, color=INK)


def _first(recorded: Recorded) -> float:
    """The start of the first bucket in which a lossless class had a byte: before it there is nothing to be seen."""
    series, every = recorded.series, range(len(recorded.labels))
    rows = [row for row in every if recorded.labels[row].kind == "lossless"] or [*every]
    used = np.flatnonzero((series.columns["out_bytes"][rows] + series.columns["peak"][rows]).any(axis=0))
    return float(series.starts_s[used[0]]) if len(used) else 0.0


def _last(recorded: Recorded) -> float:
    return float(recorded.series.ends_s[-1]) if len(recorded.series.ends_s) else 1.0


def drawn(rates: Rates) -> list[RateCourse]:
    """The queue pairs to draw: those that have sent, the most slowed ones first."""
    sent = [each for each in rates.courses if len(each.times_s)]
    sent.sort(key=lambda each: float(each.rates_bps.min()) / each.qp.line_bps)
    slowed = [each for each in sent if float(each.rates_bps.min()) < each.qp.line_bps]
    return (slowed or sent)[:DRAWN]


def _draw_rates(axes: Axes, rates: Rates, recorded: Recorded) -> None:
    """Draw the rates as steps. The axis ends at the largest one, so that rates far below the line rate differ, too."""
    shown, last_s = drawn(rates), _last(recorded)
    line = max((each.qp.line_bps for each in shown), default=1) / 1e6
    top = min(line, max((float(each.rates_bps.max()) / 1e6 for each in shown), default=line))
    for number, each in enumerate(shown):
        times = np.concatenate([each.times_s, [max(last_s, float(each.times_s[-1]))]])
        values = np.concatenate([each.rates_bps, each.rates_bps[-1:]]) / 1e6
        axes.step(
            times, values, where="post", linewidth=0.9, color=LINES[number % len(LINES)],
            alpha=1.0 if len(shown) <= _NAMED else 0.5, label=each.qp.name if len(shown) <= _NAMED else None, zorder=3,
        )  # fmt: skip
    axes.axhline(line, color=INK, linewidth=0.8, linestyle=":", zorder=2)
    said, at = (f"line {line:g}", line / top) if top == line else (f"line {line:g}: above", 1.0)
    axes.annotate(
        said, (1.008, at / 1.12), xycoords="axes fraction", fontsize=7.5, color=INK, va="center", annotation_clip=False
    )
    if 0 < len(shown) <= _NAMED:
        axes.legend(fontsize=6.5, loc="upper right", bbox_to_anchor=(1.0, 0.88), frameon=False)
    sent = sum(1 for each in rates.courses if len(each.times_s))
    title = f"{rates.controller}: sending rates of {len(shown)} of {sent} QPs that sent, Mb/s (emulated)"
    _frame(axes, title, recorded, top * 1.12)
