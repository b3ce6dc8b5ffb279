"""The comparison of two curves as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from heddle.base.units import format_size
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from heddle.runs.curve import BusbwCurve, Shapes


def shapes_text(found: Shapes) -> str:
    """All of it."""
    lines = [_which("A", found.a), _which("B", found.b), ""]
    lines.append(f"{'size':>10} {'A GB/s':>12} {'B GB/s':>12} {'A share':>9} {'B share':>9} {'B - A':>8}")
    lines += [
        f"{format_size(each.size):>10} {each.a:>12.4g} {each.b:>12.4g} {each.a_share:>9.1%} {each.b_share:>9.1%} "
        f"{100 * each.apart:>+8.1f}"
        for each in found.points
    ]
    halves, most = found.half_sizes, found.farthest
    said = [
        "Only the shapes are compared: a share is of the largest busbw of its own curve. Heights are of different "
        "machines. B - A is in percentage points.",
        f"Half of the largest busbw: A from {format_size(halves[0])} on, B from {format_size(halves[1])} on.",
        f"The shapes differ most at {format_size(most.size)}: {100 * abs(most.apart):.1f} points.",
    ]
    if found.left_out:
        sizes = ", ".join(map(format_size, found.left_out))
        said.append(f"not compared, because only one of them has it: {sizes}")
    said += [f"note: {each}" for each in found.notes]
    lines.append("")
    for text in said:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _which(name: str, curve: BusbwCurve) -> str:
    ranks = f", {curve.ranks} ranks" if curve.ranks else ""
    scale = f", emulated, k = {curve.k}" if curve.k else ""
    return f"{name} = {curve.name}: {curve.collective or 'collective not known'}{ranks}{scale}"
