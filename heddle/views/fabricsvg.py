"""A fabric as SVG for the report and for the dashboard: an element for each link, which mouse and keyboard reach.

In:  Fabric, and (where there was a run) LinkLoads.
Out: `<svg>` text for HTML, its legend, and the styles that both need. The same input gives the same text.
Its links are `<g class="link" id="link-A-B" data-a="A" data-b="B">` with two halves, `class="half u7"
data-port="A"`, and a label (`aria-label`) that has the numbers; nodes are `<g class="node" id="node-NAME">`. One link
is a tab stop; script moves the focus between links. Places are those of picturelayout.py, classes of halves and their
colours those of loadscale.py, as in picture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from heddle.fabric.wiring import Link
from heddle.views.linkloads import LinkLoad, amount, use_text
from heddle.views.loadscale import BESIDE, COLOURS, MARKS, MEANING
from heddle.views.picture import LEVELS
from heddle.views.picturelayout import KEY, Box, Line, PictureLayout, Point, Text, legend

_UNIT: Final = 100  # of the picture, an inch
POINT: Final = _UNIT / 72  # of a font or a line


def _variables(dark: int) -> str:
    return " ".join(f"--load-{name}: {colours[dark]};" for name, colours in COLOURS.items())


_ON_DARK: Final = f"""{_variables(1)} --node-0: #1b2128; --node-1: #2b3541; --node-2: #3b4755; --node-3: #4c5a6b;
  --node-4: #26381f; --node-5: #35502b;
  --box: #171c22; --box-edge: #343d48; --area-edge: #7d8a99; --picture-ink: #e6ebf0; --mark: #ff8fa3;"""


def style(dark: str = "") -> str:
    """The styles. dark: the selector of an element around the picture that makes it dark; "": the browser decides."""
    on_dark = f"svg.fabric {{ {_ON_DARK} }}"
    nodes = " ".join(f"--node-{level}: {colour};" for level, colour in enumerate(LEVELS))
    return f"""
svg.fabric {{ {_variables(0)} {nodes}
  --box: #f6f7f9; --box-edge: #d5dae0; --area-edge: #8a97a6; --picture-ink: #1f2933; --mark: #b3123c; }}
{f"{dark} {on_dark}" if dark else f"@media screen and (prefers-color-scheme: dark) {{ {on_dark} }}"}
svg.fabric text {{ fill: var(--picture-ink); font-family: system-ui, sans-serif; pointer-events: none; }}
svg.fabric .box {{ fill: var(--box); stroke: var(--box-edge); }}
svg.fabric .area {{ fill: none; stroke: var(--area-edge); stroke-dasharray: 6 5; }}
svg.fabric .node rect {{ stroke: var(--picture-ink); }}
svg.fabric .reach {{ stroke: transparent; }}
svg.fabric .half {{ pointer-events: none; }}
svg.fabric .link {{ cursor: pointer; outline: none; }}
svg.fabric .link:hover .reach, svg.fabric .link:focus .reach, svg.fabric .link.chosen .reach {{
  stroke: var(--mark); stroke-opacity: 0.45; }}
{" ".join(f"svg.fabric .half.{name} {{ fill: var(--load-{name}); }}" for name in COLOURS)}
{" ".join(f"svg.fabric .level-{level} rect {{ fill: var(--node-{level}); }}" for level in range(len(LEVELS)))}
"""


def load_text(load: LinkLoad) -> str:
    """The numbers of a link, in a sentence for each end."""
    said = []
    ends = ((load.a, load.a_packets, load.a_bytes), (load.b, load.b_packets, load.b_bytes))
    for (port, packets, size), seconds in zip(ends, load.seconds, strict=True):
        use = use_text(seconds, load.run_s)
        of = f"{use} of line rate" if load.run_s else f"{use} at its rate"
        said.append(f"{port} sent {amount(size)} in {packets:,} packets, {of}" if packets else f"{port} sent nothing")
    return "; ".join(said)


def fabric_svg(layout: PictureLayout, loads: Sequence[LinkLoad] = (), *, title: str, prefix: str = "") -> Markup:
    """The picture. loads: empty where nothing ran. title: its name for a screen reader. prefix: of all ids."""
    page = _Page((layout.left, layout.top + 0.15))
    links = layout.links(loads)
    first = layout.fabric.links[0] if links else None
    parts = [
        page.opened((layout.right, layout.bottom - 0.1), "group", title),
        *(page.box(box, prefix) for box in layout.frames()),
        *map(page.text, layout.titles()),
        *(page.link(*each, 0 if each[0] is first else -1, prefix) for each in links),
        *(page.box(box, prefix) for box in layout.nodes()),
        Markup("</svg>"),
    ]
    return Markup("\n").join(parts)


def legend_svg() -> Markup:
    """The scale of loads: the same words and colours in the report and on the dashboard."""
    page = _Page((-0.05, KEY[1]))
    lines, texts = legend()
    said = f"{MEANING}, {', '.join((*MARKS.values(), *BESIDE.values()))}"
    head = page.opened((KEY[0], 0.0), "img", said)
    return Markup("").join((head, *map(page.half, lines), *map(page.text, texts), Markup("</svg>")))


class _Page:
    """Turns places in inches to units of an SVG. corner: the upper left one."""

    def __init__(self, corner: Point) -> None:
        self._corner = corner

    def opened(self, other: Point, role: str, label: str) -> Markup:
        """The beginning. other: the lower right corner."""
        return Markup(
            '<svg class="fabric" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" '
            'role="{}" aria-label="{}">'
        ).format(*self._at(other), role, label)

    def _at(self, point: Point) -> Point:
        return (point[0] - self._corner[0]) * _UNIT, (self._corner[1] - point[1]) * _UNIT

    def text(self, text: Text) -> Markup:
        x, y = self._at(text.at)
        return Markup(
            '<text x="{:.1f}" y="{:.1f}" font-size="{:.1f}" text-anchor="{}" dominant-baseline="central">{}</text>'
        ).format(x, y, text.points * POINT, text.anchor, text.words)

    def box(self, box: Box, prefix: str) -> Markup:
        x, y = self._at((box.corner[0], box.corner[1] + box.size[1]))
        kind = f"node level-{box.shade}" if box.kind == "node" else ""
        rect = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="6"/>').format(
            "" if kind else box.kind, x, y, box.size[0] * _UNIT, box.size[1] * _UNIT
        )
        words = self.text(box.text) if box.text else Markup("<title>{}</title>").format(box.name.partition("-")[2])
        head = Markup('<g class="{}" id="{}{}">').format(kind or "frame", prefix, box.name)
        return head + rect + words + Markup("</g>")

    def _reach(self, line: Line) -> Markup:
        return Markup(
            '<line class="reach" data-port="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke-width="12"/>'
        ).format(line.port, *self._at(line.ends[0]), *self._at(line.ends[1]))

    def half(self, line: Line) -> Markup:
        corners = " ".join("{:.1f},{:.1f}".format(*self._at(corner)) for corner in line.corners)
        return Markup('<polygon class="half {}" data-port="{}" points="{}"/>').format(line.step, line.port, corners)

    def link(self, link: Link, load: LinkLoad | None, halves: tuple[Line, Line], tab: int, prefix: str) -> Markup:
        refs = ":".join(link.a), ":".join(link.b)
        label = f"link {refs[0]} to {refs[1]}" + (f": {load_text(load)}" if load else "")
        head = Markup(
            '<g class="link" id="{}link-{}-{}" data-a="{}" data-b="{}" tabindex="{}" role="img" aria-label="{}">'
        ).format(prefix, *refs, *refs, tab, label)
        lines = [*map(self._reach, halves), *map(self.half, halves)]
        return head + Markup("").join(lines) + Markup("</g>")
