"""The queues of a run over time: `series.npz` in the run's directory.

In:  a Series, and a label for each of its rows: port, class, thresholds.
Out: Recorded, for the picture; UnreadableError with the reason where there is none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.runs.files import UnreadableError, read_arrays, undamaged, write_arrays
from heddle.runs.series import Series

SERIES: Final = "series.npz"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RowLabel:
    """The label of a row of a series. Thresholds in bytes at the end of the run; 0 where the class has none.

    host: the port belongs to a host. Its queue holds what sockets send, which is no congestion.
    """

    port: str
    traffic_class: int
    kind: str  # control, lossless, lossy
    rate_bps: int
    kmin: int = 0
    kmax: int = 0
    xoff: int = 0
    xon: int = 0
    host: bool = False

    @property
    def name(self) -> str:
        """`rtsw1:eth3 class 3`."""
        return f"{self.port} class {self.traffic_class}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run's queues over time. labels: one per row of the series. what: a description of the run. k: the scale."""

    lab: str
    what: str
    k: int
    labels: tuple[RowLabel, ...]
    series: Series


def write_series(directory: Path, recorded: Recorded) -> None:
    """Write series.npz atomically."""
    about: dict[str, Any] = {"format": _FORMAT, "lab": recorded.lab, "what": recorded.what, "k": recorded.k}
    about["labels"] = [asdict(label) for label in recorded.labels]
    write_arrays(directory / SERIES, about, recorded.series.arrays())


def read_series(directory: Path) -> Recorded:
    """Read series.npz. UnreadableError with the reason when that is not possible."""
    path = directory / SERIES
    if not path.exists():
        raise UnreadableError(f"{SERIES} is missing, so its queues were not recorded")
    with undamaged(SERIES):
        about, arrays = read_arrays(path, _FORMAT)
        series = Series.of_arrays(arrays)
        labels = tuple(RowLabel(**label) for label in about["labels"])
        if len(labels) != len(series.rows):
            raise ValueError("rows without labels")
        return Recorded(str(about["lab"]), str(about["what"]), int(about["k"]), labels, series)
