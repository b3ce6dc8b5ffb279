"""The queues of a lab's last run over time, kept beside its record: one .npz file, which goes when the lab goes.

In:  a Series, and what each of its rows is: port, class, thresholds.
Out: Recorded, for the picture; InputError where there is none.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base import state
from heddle.base.problems import InputError, Problem, machine_errors
from heddle.runs.series import Series

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RowLabel:
    """What a row of a series is. Thresholds in bytes, as they were when the run ended; 0 where the class has none.

    host: the port is a host's, whose queue is what its sockets hand over, and no congestion.
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
    """A run's queues over time. labels: one a row of the series. what: the run, in words. k: the scale."""

    lab: str
    what: str
    k: int
    labels: tuple[RowLabel, ...]
    series: Series


def series_path(lab: Lab) -> Path:
    """Where the last run's queues are kept."""
    return lab.dir / "runs" / "queues.npz"


def clear(lab: Lab) -> None:
    """Forget them."""
    series_path(lab).unlink(missing_ok=True)


def save(lab: Lab, what: str, labels: Sequence[RowLabel], series: Series) -> None:
    """Keep them, as a whole or not at all."""
    import numpy as np

    path = series_path(lab)
    about = {"format": _FORMAT, "lab": lab.name, "what": what, "k": lab.fabric.policy.k}
    text = json.dumps({**about, "labels": [asdict(label) for label in labels]})
    arrays: dict[str, Any] = {"about_json": np.array(text), **series.arrays()}
    state.make_dir(path.parent)
    with machine_errors(str(path)):
        fd, name = tempfile.mkstemp(prefix=".queues.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                np.savez_compressed(file, **arrays)
            state.give_to_caller(Path(name))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def load(lab: Lab) -> Recorded:
    """The last run's; InputError when there was no run, or its file cannot be read."""
    import numpy as np

    path = series_path(lab)
    if not path.exists():
        hint = "./inv run --collective all-reduce makes one"
        raise InputError(Problem("", f"lab {lab.name}", "has no run whose queues could be drawn", hint))
    try:
        with np.load(path, allow_pickle=False) as data:
            about = json.loads(str(data["about_json"]))
            if about["format"] != _FORMAT:
                raise ValueError("another format")
            series = Series.of_arrays(data)
        labels = tuple(RowLabel(**label) for label in about["labels"])
        if len(labels) != len(series.rows):
            raise ValueError("rows without labels")
        return Recorded(str(about["lab"]), str(about["what"]), int(about["k"]), labels, series)
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
        why = "are of another version of Heddle, or damaged"
        hint = "./inv run --collective all-reduce makes new ones"
        raise InputError(Problem("", f"the queues of lab {lab.name}'s last run", why, hint)) from None
