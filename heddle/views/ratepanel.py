"""The panel of a picture over time with the sending rates of queue pairs that congestion control limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.runs.rates import RateCourse, Rates
from heddle.views.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN: Final = 32  # queue pairs; more lines would hide each other
_NAMED: Final = 6  # queue pairs with a legend
# Colours of lines that differ also in lightness (Okabe and Ito).
LINES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def drawn(rates: Rates) -> list[RateCourse]:
    """The queue pairs to draw: those that have sent, the most slowed ones first."""
    sent = [each for each in rates.courses if len(each.times_s)]
    sent.sort(key=lambda each: float(each.rates_bps.min()) / each.qp.line_bps)
    slowed = [each for each in sent if float(each.rates_bps.min()) < each.qp.line_bps]
    return (slowed or sent)[:DRAWN]


def rates_title(rates: Rates, shown: list[RateCourse]) -> str:
    """The title: how many of how many."""
    sent = sum(1 for each in rates.courses if len(each.times_s))
    return f"{rates.controller}: sending rates of {len(shown)} of {sent} QPs that sent, Mb/s (emulated)"


def draw_rates(axes: Axes, rates: Rates, last_s: float) -> None:
    """Draw the rates as steps. last_s: the end of the time axis, seconds."""
    import numpy as np

    shown = drawn(rates)
    top = max((each.qp.line_bps for each in shown), default=1) / 1e6
    for at, each in enumerate(shown):
        times = np.concatenate([each.times_s, [max(last_s, float(each.times_s[-1]))]])
        values = np.concatenate([each.rates_bps, each.rates_bps[-1:]]) / 1e6
        axes.step(
            times, values, where="post", linewidth=0.9, color=LINES[at % len(LINES)],
            alpha=1.0 if len(shown) <= _NAMED else 0.5, label=each.qp.name if len(shown) <= _NAMED else None, zorder=3,
        )  # fmt: skip
    axes.axhline(top, color=INK, linewidth=0.8, linestyle=":", zorder=2)
    axes.annotate(
        f"line {top:g}", (1.008, 1 / 1.12), xycoords="axes fraction", fontsize=7.5, color=INK, va="center",
        annotation_clip=False,
    )  # fmt: skip
    if 0 < len(shown) <= _NAMED:
        axes.legend(fontsize=6.5, loc="upper right", bbox_to_anchor=(1.0, 0.88), frameon=False)
    axes.set_ylim(0, top * 1.12)
    axes.set_xlim(0, last_s)
    axes.tick_params(labelsize=7.5, colors=INK, labelbottom=False)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    axes.set_title(rates_title(rates, shown), fontsize=9, color=INK, loc="left", pad=4)
