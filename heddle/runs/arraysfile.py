"""Arrays of a run in one compressed file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from heddle.base import state
from heddle.base.problems import machine_errors


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an .npz file atomically, for the user who called sudo. MachineError when the disk does not take it."""
    import numpy as np

    with machine_errors(str(path)):
        fd, name = tempfile.mkstemp(prefix=f".{path.stem}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                np.savez_compressed(file, **arrays)
            state.give_to_caller(Path(name))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
