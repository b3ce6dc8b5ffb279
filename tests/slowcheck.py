"""A worker in which rank 0 takes its time for the check of each size: `python -m tests.slowcheck`.

It knows the transport of tests/stopandwait.py, too.
"""

from __future__ import annotations

import sys
import time

from heddle.endpoints import worker
from heddle.endpoints.ranks import Rank
from heddle.endpoints.transports import TRANSPORTS
from tests import stopandwait

CHECK_S = 0.5

if __name__ == "__main__":
    _check = Rank.check

    def slowly(self: Rank) -> None:
        time.sleep(CHECK_S if self.rank == 0 else 0.0)
        _check(self)

    Rank.check = slowly  # type: ignore[method-assign]
    stopandwait.register(TRANSPORTS)
    sys.exit(worker.main())
