"""What all pictures and tables have in common."""

from __future__ import annotations

import logging
from typing import Final, Literal

PictureKind = Literal["svg", "png"]
PICTURES: Final[tuple[PictureKind, ...]] = ("svg", "png")
DPI: Final = 150  # of a PNG
INK: Final = "#1f2933"
# It warns where it cannot keep its caches, as in a read-only home; a picture needs none.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
WIDTH: Final = 100  # letters of a line, where a table is drawn
