"""docs/demo.svg from the output of `./inv demo`: `./inv docs --pictures` makes it (tests/browser/docpictures.py).

The second run looks like the first one, so only its heading is drawn. Remarks about the machine are left out: they are
about the one that ran the demo for the picture.
"""

from __future__ import annotations

import io
import re

from rich.console import Console
from rich.text import Text

from heddle.runs.parts.part import MARK

_REMARKS = (MARK, "(The host CPU", "#slowest  : not named: the host CPU")
_WIDTH = 104  # columns; the longest line of a run has 103


def styled(line: str) -> Text:
    """A line in the colours of the picture."""
    if line.startswith("$"):
        return Text(line, "bold green")
    if line.startswith("──"):
        return Text(line, "bold cyan")
    if line.startswith("#"):
        return Text(line, "bright_black")
    text = Text(line)
    text.highlight_regex(r"█+", "yellow")
    return text


def shortened(lines: list[str]) -> list[str]:
    """The lines of a run, without those of the second act, and without remarks about the machine."""
    lines = [line for line in lines if not line.startswith(_REMARKS)]
    heads = [at for at, line in enumerate(lines) if line.startswith("──")]
    return [*lines[: heads[1] + 1], "...", "", *lines[heads[2] :]]


def picture(output: str) -> str:
    """The picture as SVG."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in ["$ ./inv demo", *shortened(output.rstrip().splitlines())]:
        console.print(styled(line), no_wrap=True, crop=False)
    svg = console.export_svg(title="./inv demo", unique_id="demo")
    # Fonts by their names only: the picture loads nothing from elsewhere.
    return re.sub(r"\s*(@font-face \{.*?\}|<!--.*?-->)", "", svg, flags=re.DOTALL)
