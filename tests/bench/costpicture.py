"""A picture of what a packet costs: `./inv bench packets --format json | python -m tests.bench.costpicture FILE.svg`.

In:  the figures of `bench packets`. Out: an SVG with a bar for each case: workers, and the forwarding beside them.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Final

_CASES: Final = ("paced, 1 QP", "paced, 16 QPs", "ring at 10 Gb/s", "one way at 10 Gb/s")
_PARTS: Final = (("in the workers' time", "#3b6ea8"), ("outside of it", "#e0a030"))
_WIDTH, _ROW, _LEFT, _TOP = 760, 34, 250, 44


def svg(figures: dict[str, float]) -> str:
    """The picture. figures: name -> us of processor."""
    rows = [(case, kind, _bar(figures, case, kind)) for case in _CASES for kind in ("Python", "compiled")]
    most = max(sum(bar) for _, _, bar in rows)
    scale = (_WIDTH - _LEFT - 70) / most
    height = _TOP + len(rows) * _ROW + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        f' font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    x = 12
    for text, colour in _PARTS:
        lines.append(f'<rect x="{x}" y="14" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{x + 20}" y="26">{escape(text)}</text>')
        x += 240
    for place, (case, kind, bar) in enumerate(rows):
        y = _TOP + place * _ROW
        lines.append(f'<text x="12" y="{y + 18}">{escape(f"{case}, {kind} NICs")}</text>')
        at = float(_LEFT)
        for part, (_, colour) in zip(bar, _PARTS, strict=True):
            lines.append(
                f'<rect x="{at:.1f}" y="{y + 3}" width="{max(0.0, part * scale):.1f}" height="22" fill="{colour}"/>'
            )
            at += part * scale
        lines.append(f'<text x="{at + 6:.1f}" y="{y + 19}">{sum(bar):.0f} us</text>')
    return "\n".join([*lines, "</svg>\n"])


def _bar(figures: dict[str, float], case: str, kind: str) -> tuple[float, float]:
    total = figures[f"{case}: a packet, {kind} NICs"]
    workers = min(total, figures[f"{case}: of that in workers, {kind} NICs"])
    return workers, total - workers


def main(argv: list[str]) -> int:
    """Write the picture."""
    rows = json.load(sys.stdin)["figures"]
    Path(argv[0]).write_text(svg({row["name"]: row["value"] for row in rows}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
