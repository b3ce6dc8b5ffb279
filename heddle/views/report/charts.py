"""Interactive charts of the report, by plotly: figures in Heddle's colours, drawn by the one script in the page.

In:  series and rows of a run. Out: Chart: plotly's JSON, a name and a description in words.
Colours are those of paper; the page replaces them by their partners on a dark screen (style.ON_DARK).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.units import format_bytes, format_size
from heddle.views.queuepicture import (
    LINES,
    Panel,
    by_label,
    coarser,
    drawn,
    lanes_of,
    panels,
    paused_ms,
    rates_title,
    shaded,
)
from heddle.views.style import DEPTH, FAULT, HELD, INK, MARKED, QUIET, SERIES_OF_RUNS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from heddle.runs.parts.part import TimeSpan
    from heddle.runs.rates import Rates
    from heddle.runs.runtable import SizeRow
    from heddle.runs.series import Recorded

_FONT: Final = "system-ui, sans-serif"
_UNITS: Final = {
    "paused": "% of the time",
    "marks": "packets marked",
    "drops": "packets dropped",
    "pauses": "pause frames",
}
_DASH: Final = {"kmin": "dot", "kmax": "dash", "xon": "dot", "xoff": "dash"}


@dataclass(frozen=True, slots=True)
class Chart:
    """key: the end of its element's ID. label: its name. told: what it shows, in a sentence. json: of plotly."""

    key: str
    label: str
    told: str
    json: str


def bandwidth(rows: Sequence[SizeRow], k: int) -> Chart:
    """busbw and algbw over the size, with the range of single iterations where they are known."""
    import plotly.graph_objects as go

    sizes = [row.size for row in rows]
    figure = _figure("bytes a rank", f"GB/s, emulated (k = {k})", height=340)
    for name, values, colour in (
        ("busbw", [row.busbw for row in rows], DEPTH),
        ("algbw", [row.algbw for row in rows], HELD),
    ):
        ranges = _ranges(rows, values)
        figure.add_trace(
            go.Scatter(
                x=sizes, y=values, name=name, mode="lines+markers", line={"color": colour, "width": 2},
                marker={"size": 7, "symbol": "circle" if name == "busbw" else "square"}, error_y=ranges,
                customdata=[[format_size(size)] for size in sizes],
                hovertemplate="%{customdata[0]}: %{y:.4g} GB/s emulated<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    ticks = {"type": "log", "tickvals": sizes, "ticktext": [format_size(size) for size in sizes]}
    figure.update_xaxes(**(ticks if len(sizes) <= 16 else {"type": "log"}))
    figure.update_yaxes(rangemode="tozero")
    best = max(rows, key=lambda row: row.busbw)
    told = f"Highest busbw: {best.busbw:.4g} GB/s emulated at {format_size(best.size)}."
    return Chart("bandwidth", "Bandwidth by size", told, figure.to_json())


def _ranges(rows: Sequence[SizeRow], values: Sequence[float]) -> dict[str, Any] | None:
    """From the slowest iteration to the fastest, as a range around the mean; None where one is not known."""
    if not all(row.iteration_us and min(row.iteration_us) > 0 for row in rows):
        return None
    fast = [value * row.time_us / min(row.iteration_us) - value for row, value in zip(rows, values, strict=True)]
    slow = [value - value * row.time_us / max(row.iteration_us) for row, value in zip(rows, values, strict=True)]
    return {"type": "data", "symmetric": False, "array": fast, "arrayminus": slow, "thickness": 1.2, "width": 4}


def iterations(rows: Sequence[SizeRow]) -> Chart | None:
    """The time of each iteration, a line for each size; None for runs that did not keep it."""
    import plotly.graph_objects as go

    kept = [row for row in rows if len(row.iteration_us) > 1]
    if not kept:
        return None
    figure = _figure("iteration", "ms", height=300)
    for number, row in enumerate(kept):
        times = [us / 1e3 for us in row.iteration_us]
        colour = SERIES_OF_RUNS[number % len(SERIES_OF_RUNS)]
        figure.add_trace(
            go.Scatter(
                x=list(range(1, len(times) + 1)), y=times, name=format_size(row.size), mode="lines+markers",
                line={"color": colour, "width": 1.6, "dash": "solid" if number < len(SERIES_OF_RUNS) else "dot"},
                hovertemplate="iteration %{x}: %{y:.4g} ms<extra>%{fullData.name}</extra>",
            )
        )  # fmt: skip
    figure.update_yaxes(type="log" if len(kept) > 1 else "linear", **({} if len(kept) > 1 else {"rangemode": "tozero"}))
    figure.update_xaxes(dtick=1 if max(len(row.iteration_us) for row in kept) <= 20 else None)
    widest = max(kept, key=lambda row: max(row.iteration_us) / max(1e-9, min(row.iteration_us)))
    told = (
        f"The iterations of {format_size(widest.size)} differ most: {min(widest.iteration_us) / 1e3:.4g} to "
        f"{max(widest.iteration_us) / 1e3:.4g} ms."
    )
    return Chart("iterations", "Time of each iteration", told, figure.to_json())


def queues(recorded: Recorded, marked: Sequence[TimeSpan] = ()) -> list[Chart]:
    """The queues and buffers that held most, over time. marked: times to shade."""
    fewer, again = coarser(recorded, panels(recorded))
    return [_queue(fewer, panel, number, marked) for number, panel in enumerate(again)]


def rates(found: Rates, k: int, marked: Sequence[TimeSpan] = ()) -> Chart:
    """The sending rates of the queue pairs that congestion control slowed most. marked: times to shade."""
    import plotly.graph_objects as go

    shown = drawn(found)
    figure = _figure(f"seconds since the run began, emulated (k = {k})", "Mb/s", height=300)
    for at, each in enumerate(shown):
        times = np.append(each.times_s, max(found.seconds, float(each.times_s[-1])))
        values = np.append(each.rates_bps, each.rates_bps[-1:]) / 1e6
        figure.add_trace(
            go.Scatter(
                x=np.round(times, 6), y=np.round(values, 6), name=each.qp.name, mode="lines",
                line={"shape": "hv", "width": 1.4, "color": LINES[at % len(LINES)]},
                hovertemplate="%{x:.3f} s: %{y:.4~g} Mb/s<extra>" + each.qp.name + "</extra>",
            )
        )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    _mark(figure, marked, found.seconds)
    least = min((float(each.rates_bps.min()) / 1e6 for each in shown), default=0.0)
    told = f"{found.controller}: down to {least:.3g} Mb/s." if shown else "No queue pair has sent."
    return Chart("rates", rates_title(found, shown), told, figure.to_json())


def _queue(recorded: Recorded, panel: Panel, number: int, marked: Sequence[TimeSpan]) -> Chart:
    """Depth and peak above; below them lanes for pauses, marks, drops or pause frames, where there are any."""
    import plotly.graph_objects as go

    series = recorded.series
    colour = DEPTH if panel.side == "egress" else HELD
    starts, ends = np.round(series.starts_s, 6), np.round(series.ends_s, 6)
    edges = np.concatenate([starts[:1], ends])
    lanes = [
        (name, (tint, values * 100) if name == "paused" else (tint, values), _UNITS[name])
        for name, (tint, values) in lanes_of(recorded, panel).items()
    ]
    figure = _figure(f"seconds since the run began, emulated (k = {recorded.k})", "bytes", height=240 + 62 * len(lanes))
    for name, values, style in (
        ("at the bucket's end", panel.level, {"fill": "tozeroy", "line": {"color": colour, "width": 0, "shape": "vh"}}),
        ("maximum within it", panel.peak, {"line": {"color": colour, "width": 1.4, "shape": "vh"}}),
    ):
        figure.add_trace(
            go.Scatter(
                x=edges, y=np.concatenate([values[:1], values]), name=name, mode="lines", yaxis="y",
                hovertemplate="%{x:.3f} s: %{y:,.0f} B<extra>" + name + "</extra>", **style,
            )
        )  # fmt: skip
    top = max(panel.most, 1.0) * 1.15
    _thresholds(figure, panel, top)
    share = 0.13 * len(lanes)
    figure.update_layout(yaxis={"domain": [share + (0.06 if lanes else 0), 1.0], "range": [0, top], "tickformat": "~s"})
    for at, (name, lane, unit) in enumerate(lanes):
        low = share - 0.13 * (at + 1)
        figure.add_trace(
            go.Bar(
                x=starts, width=np.maximum(ends - starts, ends[-1:] / 1200), offset=0, y=lane[1], name=name,
                yaxis=f"y{at + 2}", marker={"color": lane[0], "line": {"width": 0}},
                hovertemplate="%{x:.3f} s: %{y:,.4~g} " + unit + "<extra>" + name + "</extra>",
            )
        )  # fmt: skip
        axis = {"domain": [low + 0.015, low + 0.12], "showticklabels": False, "showgrid": False, "anchor": "x"}
        figure.update_layout({f"yaxis{at + 2}": {**axis, "zeroline": False, "title": None, "rangemode": "tozero"}})
        figure.add_annotation(
            text=name, xref="paper", x=-0.005, xanchor="right", yref="paper", y=low + 0.065, showarrow=False,
            font={"size": 11, "color": lane[0]},
        )  # fmt: skip
    figure.update_layout(
        bargap=0, xaxis={"anchor": f"y{len(lanes) + 1}" if lanes else "y", "range": [0, float(ends[-1])]}
    )
    _mark(figure, marked, float(ends[-1]))
    totals = [
        f"paused {paused_ms(recorded, panel):,.0f} ms in all" if name == "paused" else f"{int(lane[1].sum()):,} {name}"
        for name, lane, _ in lanes
    ]
    told = "; ".join([f"At most {format_bytes(panel.most)}", *totals])
    return Chart(f"queue-{number}", panel.title, f"{told}.", figure.to_json())


def _mark(figure: Figure, marked: Sequence[TimeSpan], last_s: float) -> None:
    """Shade these times, and write each label once, at its first time. last_s: the end of the axis."""
    for begin, end in shaded(marked):
        figure.add_shape(
            type="rect", x0=round(begin, 6), x1=round(end, 6), yref="paper", y0=0, y1=1, layer="below", fillcolor=FAULT,
            opacity=0.25, line={"width": 0},
        )  # fmt: skip
    for row, (what, spans) in enumerate(by_label(marked)):
        early = spans[0].begin_s + spans[0].end_s < last_s
        figure.add_annotation(
            text=what, x=round(spans[0].begin_s if early else spans[0].end_s, 6), xanchor="left" if early else "right",
            yref="paper", y=1, yanchor="top", yshift=-14 * row, showarrow=False, font={"size": 11},
        )  # fmt: skip


def _thresholds(figure: Figure, panel: Panel, top: float) -> None:
    above = []
    for name, value in panel.thresholds.items():
        said = f"{name.capitalize()} {format_bytes(value)}"
        if value <= top:
            figure.add_shape(
                type="line", xref="paper", x0=0, x1=1, y0=value, y1=value, yref="y",
                line={"color": INK, "width": 1, "dash": _DASH[name]},
            )  # fmt: skip
            figure.add_annotation(
                text=said, xref="paper", x=1.005, xanchor="left", y=value, yref="y", showarrow=False, font={"size": 11}
            )
        else:
            above.append(said)
    if above:
        figure.add_annotation(
            text=f"{', '.join(above)}: above", xref="paper", x=1, xanchor="right", yref="paper", y=1.01,
            yanchor="bottom", showarrow=False, font={"size": 11},
        )  # fmt: skip


def ratios(bars: Sequence[tuple[str, float, str]], told: str) -> Chart:
    """Bars of B / A, from 1 to both sides. bars: size, ratio, and whether noise explains it, in words."""
    import plotly.graph_objects as go

    figure = _figure("bytes a rank", "busbw of B / busbw of A", height=300)
    colours = dict(zip(dict.fromkeys(word for _, _, word in bars), (DEPTH, QUIET, MARKED, HELD), strict=False))
    for word, colour in colours.items():
        some = [(name, value) for name, value, verdict in bars if verdict == word]
        figure.add_trace(
            go.Bar(
                x=[name for name, _ in some], y=[value - 1 for _, value in some], base=1, name=word, showlegend=True,
                marker={"color": colour}, customdata=[[value] for _, value in some],
                hovertemplate="%{x}: %{customdata[0]:.3f}<extra>" + word + "</extra>",
            )
        )  # fmt: skip
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=1, y1=1, line={"color": INK, "width": 1})
    order = [name for name, _, _ in bars]
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    figure.update_layout(barmode="overlay")
    return Chart("ratios", "busbw of B relative to A", told, figure.to_json())


def _figure(x: str, y: str, *, height: int) -> Figure:
    import plotly.graph_objects as go

    font = {"family": _FONT, "size": 12, "color": INK}
    figure = go.Figure(
        layout={
            "template": None, "height": height, "font": font, "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)", "margin": {"l": 78, "r": 110, "t": 34, "b": 48}, "hovermode": "x unified",
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
            "hoverlabel": {"font": {"family": _FONT, "size": 12}},
        }
    )  # fmt: skip
    grid = {"gridcolor": "rgba(128,138,150,0.3)", "zerolinecolor": "rgba(128,138,150,0.6)", "linecolor": INK}
    figure.update_xaxes(title={"text": x, "standoff": 8}, showline=True, **grid)
    figure.update_yaxes(title={"text": y, "standoff": 8}, **grid)
    return figure
