"""`python -P -m heddle.lab.faults LAB KIND WHERE`: keep a fault going until its record is gone (kind.py)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from heddle.lab.faults import orders
from heddle.lab.faults.kind import KeptFault
from heddle.lab.faults.record import SetFault, read
from heddle.lab.faults.registry import KINDS
from heddle.lab.opening import open_lab

_SLICE_S: Final = 0.1


def main(words: Sequence[str]) -> None:
    """Keep the fault of these words going: lab, kind, place."""
    name, kind, where = words
    lab = open_lab(name)

    def found() -> SetFault | None:
        return next((each for each in read(lab.dir) if each.key == (kind, where)), None)

    def going(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, _SLICE_S))
            if found() is None:
                return False
        return found() is not None

    fault, kept = found(), KINDS[kind]
    if fault is not None and isinstance(kept, KeptFault) and kept.work(lab, fault, going):
        orders.forget(lab, fault)


if __name__ == "__main__":
    main(sys.argv[1:])
