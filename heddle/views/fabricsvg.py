"""A fabric as SVG for a web page: an element for each link, which the mouse and the keyboard reach.

In:  Fabric, and (where there was a run) LinkLoads.
Out: `<svg>` text for HTML, and the styles that it needs (`STYLE`). The same input gives the same text.
Its links are `<g class="link" id="link-A-B" data-a="A" data-b="B">` with two halves, `class="half u7"`, and a label
(`aria-label`) that has the numbers; nodes are `<g class="node" id="node-NAME">`. One link is a tab stop; script moves
the focus between links. Classes u0 to u9 are the use of a half, relative to the busiest port; `idle` carried nothing.
As in picture.py, the half at a node is what that node sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Link
from heddle.views.linkloads import LinkLoad, amount, use_text
from heddle.views.picturelayout import PictureLayout, thickest_of, thinned, width_of

USE_STEPS: Final = 10  # classes of use, u0 to u9
_THINNEST: Final = 1.8  # in the same units; a thinner line would vanish on a small screen
_UNIT: Final = 100  # of the picture, an inch
# viridis, without the end that the page's colour swallows: light for little on paper, bright for much on a dark screen.
_LIGHT: Final = (
    "#93d741", "#5cc863", "#32b67a", "#1fa187", "#228c8d",
    "#2a778e", "#34618d", "#3e4989", "#472e7c", "#471164",
)  # fmt: skip
_DARK: Final = (
    "#33638d", "#2b758e", "#24868e", "#1f988b", "#23a983",
    "#3aba76", "#5cc863", "#86d549", "#b8de29", "#e7e419",
)  # fmt: skip


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--use-{step}: {colour};" for step, colour in enumerate(colours))


STYLE: Final = f"""
svg.fabric {{ {_variables(_LIGHT)} --node-0: #fff; --node-1: #dfe5ec; --node-2: #c5cfdb; --node-3: #abb9c9;
  --box: #f6f7f9; --box-edge: #d5dae0; --area-edge: #8a97a6; --idle: #b8c0c9;
  --picture-ink: #1f2933; --mark: #b3123c; }}
@media screen and (prefers-color-scheme: dark) {{ svg.fabric {{ {_variables(_DARK)}
  --node-0: #1b2128; --node-1: #2b3541; --node-2: #3b4755; --node-3: #4c5a6b; --box: #171c22; --box-edge: #343d48;
  --area-edge: #7d8a99; --idle: #4b5663; --picture-ink: #e6ebf0; --mark: #ff8fa3; }} }}
svg.fabric text {{ fill: var(--picture-ink); font-family: system-ui, sans-serif; }}
svg.fabric .box {{ fill: var(--box); stroke: var(--box-edge); }}
svg.fabric .area {{ fill: none; stroke: var(--area-edge); stroke-dasharray: 6 5; }}
svg.fabric .node rect {{ stroke: var(--picture-ink); }}
svg.fabric .half {{ stroke: var(--idle); }}
svg.fabric .reach {{ stroke: transparent; stroke-width: 12; }}
svg.fabric .link {{ cursor: pointer; outline: none; }}
svg.fabric .link:hover .reach, svg.fabric .link:focus .reach, svg.fabric .link.chosen .reach {{
  stroke: var(--mark); stroke-opacity: 0.45; }}
{" ".join(f"svg.fabric .u{step} {{ stroke: var(--use-{step}); }}" for step in range(USE_STEPS))}
{" ".join(f"svg.fabric .level-{level} rect {{ fill: var(--node-{level}); }}" for level in range(4))}
"""


def load_text(load: LinkLoad) -> str:
    """The numbers of a link, in a sentence for each end."""
    said = []
    ends = ((load.a, load.a_packets, load.a_bytes), (load.b, load.b_packets, load.b_bytes))
    for (port, packets, size), seconds in zip(ends, load.seconds, strict=True):
        use = use_text(seconds, load.run_s)
        of = f"{use} of the run" if load.run_s else f"{use} at its rate"
        said.append(f"{port} sent {amount(size)} in {packets:,} packets, {of}" if packets else f"{port} sent nothing")
    return "; ".join(said)


def fabric_svg(fabric: Fabric, loads: Sequence[LinkLoad] = (), *, title: str = "", prefix: str = "") -> Markup:
    """The picture. loads: empty where nothing ran. title: its name for a screen reader. prefix: of all ids."""
    layout = PictureLayout(fabric)
    left, right, low, high = layout.left, layout.right, layout.bottom - 0.1, layout.top + 0.15
    size = f"{(right - left) * _UNIT:.0f} {(high - low) * _UNIT:.0f}"
    parts = [
        Markup('<svg class="fabric" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {}" role="group" aria-label="{}">')
        .format(size, title or f"fabric {fabric.name}"),
        *_frames(layout),
        *_links(layout, loads, prefix),
        *_nodes(layout, prefix),
        Markup("</svg>"),
    ]  # fmt: skip
    return Markup("\n").join(parts)


def _x(layout: PictureLayout, x: float) -> str:
    return f"{(x - layout.left) * _UNIT:.1f}"


def _y(layout: PictureLayout, y: float) -> str:
    return f"{(layout.top + 0.15 - y) * _UNIT:.1f}"


def _rect(layout: PictureLayout, kind: str, corner: tuple[float, float], size: tuple[float, float]) -> Markup:
    """corner: the lower left one, in inches."""
    top = corner[1] + size[1]
    return Markup('<rect class="{}" x="{}" y="{}" width="{:.1f}" height="{:.1f}" rx="6"/>').format(
        kind, _x(layout, corner[0]), _y(layout, top), size[0] * _UNIT, size[1] * _UNIT
    )


def _text(layout: PictureLayout, at: tuple[float, float], text: str, points: float, anchor: str = "middle") -> Markup:
    return Markup(
        '<text x="{}" y="{}" font-size="{:.1f}" text-anchor="{}" dominant-baseline="central">{}</text>'
    ).format(_x(layout, at[0]), _y(layout, at[1]), points * _UNIT / 72, anchor, text)


def _frames(layout: PictureLayout) -> Iterator[Markup]:
    """Boxes with their numbers, areas, and the names of the levels at the left."""
    word, area_word = layout.fabric.box, layout.fabric.area
    top = layout.box_top + 0.32
    room = layout.box_width * 72 / (0.62 * 8 * len(f"{word} {len(layout.box)}"))
    for number, (x, width) in layout.box.items():
        yield _rect(layout, "box", (x, layout.bottom + 0.3), (width, top - layout.bottom - 0.3))
        if not number or (number - 1) % (1 if room >= 1 else 4) == 0:
            text = f"{word} {number}" if number else f"in no {word}"
            yield _text(layout, (x + width / 2, layout.bottom + 0.14), text, 8)
    for number, (x, width, whole) in layout.areas.items():
        above, beside = layout.area_row, 0.04 if whole else -0.08
        low, high = (layout.bottom + 0.22 if whole else above - 0.42), above + 0.42
        yield _rect(layout, "area", (x - beside, low), (width + 2 * beside, high - low))
        yield _text(layout, (x - beside + 0.1, high - 0.12), f"{area_word} {number}", 8, "start")
    for level, y in layout.rows.items():
        if layout.members[level]:
            yield _text(layout, (layout.left + 0.1, y), layout.fabric.levels[level].title, 8, "start")


def _links(layout: PictureLayout, loads: Sequence[LinkLoad], prefix: str) -> Iterator[Markup]:
    """Links with little first: heavy ones are drawn above them. The first in the fabric's order is the tab stop."""
    by_ports = {(load.a, load.b): load for load in loads}
    most = max((seconds for load in loads for seconds in load.seconds), default=0.0)
    thickest = thickest_of(layout.fabric) * _UNIT / 72
    drawn: list[tuple[float, Markup]] = []
    for number, link in enumerate(layout.fabric.links):
        load = by_ports.get((":".join(link.a), ":".join(link.b)))
        times = load.seconds if load else (0.0, 0.0)
        parts = [seconds / most if most else 0.0 for seconds in times]
        drawn.append((max(parts), _link(layout, link, load, parts, thickest, 0 if number == 0 else -1, prefix)))
    drawn.sort(key=lambda each: each[0])
    yield from (text for _, text in drawn)


def _link(
    layout: PictureLayout, link: Link, load: LinkLoad | None, parts: Sequence[float], thickest: float, tab: int,
    prefix: str,
) -> Markup:  # fmt: skip
    a, b = layout.ends(link)
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    points = [(_x(layout, x), _y(layout, y)) for x, y in (a, middle, b)]
    refs = ":".join(link.a), ":".join(link.b)
    label = f"link {refs[0]} to {refs[1]}" + (f": {load_text(load)}" if load else "")
    classes = [f"u{min(USE_STEPS - 1, int(part * USE_STEPS))}" if part else "idle" for part in parts]
    halves = [
        Markup('<line class="half {}" x1="{}" y1="{}" x2="{}" y2="{}" stroke-width="{:.1f}"/>').format(
            use_class, *one, *other, max(_THINNEST, width_of(part, thickest))
        )
        for part, use_class, (one, other) in zip(parts, classes, pairwise(points), strict=True)
    ]
    reach = Markup('<line class="reach" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*points[0], *points[2])
    head = Markup('<g class="link" id="{}" data-a="{}" data-b="{}" tabindex="{}" role="img" aria-label="{}">').format(
        f"{prefix}link-{refs[0]}-{refs[1]}", *refs, tab, label
    )
    return head + reach + Markup("").join(halves) + Markup("</g>")


def _nodes(layout: PictureLayout, prefix: str) -> Iterator[Markup]:
    for level, members in layout.members.items():
        if not members:
            continue
        width, height = layout.size(level)
        font = layout.font(level)
        step = 1 if font else thinned(len(members), layout.width)
        for place, node in enumerate(members):
            x, y = layout.at[node.name]
            yield Markup('<g class="node level-{}" id="{}node-{}">').format(min(level, 3), prefix, node.name)
            yield _rect(layout, "", (x - width / 2, y - height / 2), (width, height))
            if font:
                yield _text(layout, (x, y), node.name, font)
            elif place % step == 0:
                yield _text(layout, (x, y - height / 2 - 0.08 if level == layout.hosts else y), node.name, 7)
            yield Markup("</g>")


def legend(loads: Sequence[LinkLoad]) -> list[tuple[str, str]]:
    """Class and words of each step of use, from little to much; empty without numbers."""
    most = max((seconds for load in loads for seconds in load.seconds), default=0.0)
    if not most:
        return []
    run_s = loads[0].run_s
    steps = [(f"u{step}", f"up to {use_text(most * (step + 1) / USE_STEPS, run_s)}") for step in range(USE_STEPS)]
    return [("idle", "nothing"), *steps]
