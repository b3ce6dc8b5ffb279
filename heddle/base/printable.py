"""What a terminal may get: texts of files, nodes, kernels and servers that others wrote must not steer it.

In:  any text. Out: the same with `?` for every character that is not printable: escape sequences, other control
characters, marks that turn the direction of writing, bytes that are no UTF-8. All text for people passes through
`shown` where it is printed: in `tables.written` (stdout), `Problem.__str__`, the observers (stderr) and the console.
Names also pass through `printable` where they are read, since a line feed in a name would begin another line.
"""

from __future__ import annotations

import re
from typing import Final

from heddle.base.progname import as_started

_DOUBTFUL: Final = re.compile(r"[^\n\t -~]")


def printable(text: str, most: int | None = None) -> str:
    """The text as part of one line, cut to `most` characters."""
    return (text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text))[:most]


def shown(text: str) -> str:
    """The text as it is printed, with its lines and tabs, and the program's name as the user started it."""
    return _DOUBTFUL.sub(lambda found: found[0] if found[0].isprintable() else "?", as_started(text))
