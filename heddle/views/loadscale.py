"""The one colour scale of loads: the share of a link's line rate, 0 to 100 %.

Dashboard, graph, report and heat map of a prediction use it.

The share is bytes * 8 / (line rate * seconds): of a run its mean, on the live page that of the last interval, of a
prediction that of the roofline's time. A prediction above 100 % is slower than its roofline; a measured load is at most
a little above 100 %, by a burst.
A step is 10 % wide. Steps differ in lightness (viridis), so colour-blind readers can tell them apart. On white paper
they become darker, and on a dark screen brighter, with more load; the ends that the background hides are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from heddle.views.style import ON_DARK, QUIET

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

_LIGHT: Final = (
    "#93d741", "#5cc863", "#32b67a", "#1fa187", "#228c8d",
    "#2a778e", "#34618d", "#3e4989", "#472e7c", "#471164",
)  # fmt: skip
_DARK: Final = (
    "#33638d", "#2b758e", "#24868e", "#1f988b", "#23a983",
    "#3aba76", "#5cc863", "#86d549", "#b8de29", "#e7e419",
)  # fmt: skip
LOAD_STEPS: Final = len(_LIGHT)
# Name of a step -> its colours on white and on dark. The name is also the CSS class.
COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "idle": (QUIET, ON_DARK[QUIET]),
    **{f"u{number}": each for number, each in enumerate(zip(_LIGHT, _DARK, strict=True))},
    "over": ("#d55e00", "#ff6b4a"),
}
MEANING: Final = "load: share of line rate"
MARKS: Final[Mapping[float, str]] = {0.0: "0 %", 0.5: "50 %", 1.0: "100 %"}
BESIDE: Final[Mapping[str, str]] = {"over": "above 100 %", "idle": "nothing sent, or not known"}


def step(share: float | None) -> str:
    """The name of a share's step. None: not known."""
    if not share:
        return "idle"
    return "over" if round(share, 9) > 1 else f"u{min(LOAD_STEPS - 1, int(share * LOAD_STEPS + 1e-9))}"


def colormap() -> Colormap:
    """The steps on white paper, for values of 0 to 1 and above."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(_LIGHT, name="load").with_extremes(over=COLOURS["over"][0])


def page_steps() -> list[tuple[int, str]]:
    """The least thousandths of each step, and its name, for a script."""
    return [(least, step(least / 1000)) for least in (0, 1, *range(100, 1000, 100), 1001)]
