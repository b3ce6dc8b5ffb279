"""The last minutes of every port: use, depth and pauses, for the chart of a link on the live page.

In:  readings with their figures. Out: lists for one port. Memory is bounded: 2 minutes, 13 bytes a port and reading.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from heddle.dashboard.livefigures import PortFigures
from heddle.dashboard.livesource import LiveReading

KEPT: Final = 240  # readings: two minutes at two a second


class LiveHistory:
    """A ring of readings. ports: how many there are."""

    def __init__(self, ports: int) -> None:
        self._whens: deque[float] = deque(maxlen=KEPT)
        self._taken: deque[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = deque(maxlen=KEPT)
        self.ports = ports

    def add(self, reading: LiveReading, figures: PortFigures) -> None:
        """One reading."""
        self._taken.append((figures.use.astype(np.float32), figures.depth.copy(), figures.flags.astype(np.uint8)))
        self._whens.append(reading.when)

    def of(self, port_id: int) -> dict[str, list[float]]:
        """`when` in UNIX seconds, `use` in thousandths, `depth` in bytes, `flags`: oldest reading first."""
        taken, whens = tuple(self._taken), tuple(self._whens)
        count = min(len(taken), len(whens))  # the reader may be adding one
        return {
            "when": [round(each, 3) for each in whens[-count:]],
            "use": [round(float(use[port_id]) * 1000) for use, _, _ in taken[-count:]],
            "depth": [int(depth[port_id]) for _, depth, _ in taken[-count:]],
            "flags": [int(flags[port_id]) for _, _, flags in taken[-count:]],
        }
