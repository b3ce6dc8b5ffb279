"""A worker whose receivers never grant a message, for tests of admission: `python -m tests.silentreceiver`."""

from __future__ import annotations

import sys

from heddle.endpoints.admission.admitted import RankWants


def _grant_nothing(self: RankWants) -> None:
    """The slots stay as they are."""


if __name__ == "__main__":
    from heddle.endpoints import worker

    RankWants._grant = _grant_nothing  # type: ignore[method-assign]
    sys.exit(worker.main())
