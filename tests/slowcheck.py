"""A worker in which rank 0 takes its time for the check of each size: `python -m tests.slowcheck`.

Each check adds a line to the file that LOG names: rank, size, and, by CLOCK_MONOTONIC in seconds, when the rank began
and ended that size and its check. It knows the transport of tests/stopandwait.py, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from heddle.endpoints import worker
from heddle.endpoints.ranks import Rank
from heddle.endpoints.transports import TRANSPORTS
from tests import stopandwait

CHECK_S = 0.5
LOG = "HEDDLE_TEST_CHECKS"  # environment variable

if __name__ == "__main__":
    _check = Rank.check

    def slowly(self: Rank) -> None:
        times = [self._began, self._ends[-1], time.monotonic()]
        time.sleep(CHECK_S if self.rank == 0 else 0.0)
        _check(self)
        if LOG in os.environ:
            row = {"rank": self.rank, "size": self.size, "times": [*times, time.monotonic()]}
            with Path(os.environ[LOG]).open("a") as file:
                file.write(json.dumps(row) + "\n")

    Rank.check = slowly  # type: ignore[method-assign]
    stopandwait.register(TRANSPORTS.core)
    sys.exit(worker.main())
