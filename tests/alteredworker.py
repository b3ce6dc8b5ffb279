"""A worker without one of the measures that make packets cheap, to compare with: `python -m tests.alteredworker`.

Or one whose data are wrong. The environment variable HEDDLE_TEST_ALTERED names what is altered. `altered` starts the
workers of a run this way.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final
from unittest import mock

from heddle.endpoints import crew, elements, nicloop, worker
from heddle.endpoints.fastpath import fastloop
from heddle.endpoints.transports import rc

NAMED: Final = "HEDDLE_TEST_ALTERED"
_CALLS: Final = itertools.count()
_MIXED: Final = elements._mixed


def _other_input(*given: Any) -> Any:
    """Numbers behind inputs that are others each time: what was sent is not what is expected."""
    return _MIXED(*given) ^ (next(_CALLS) % 7)


# Name -> constants of the modules of a worker.
ALTERATIONS: Final[Mapping[str, Mapping[ModuleType, Mapping[str, object]]]] = {
    "no time between passes": {nicloop: {"_MODERATION_FRAMES": 0}},
    "passes one frame apart": {nicloop: {"_MODERATION_FRAMES": 1}},
    "passes six frames apart": {nicloop: {"_MODERATION_FRAMES": 6, "_MODERATION_S": 6 * nicloop._MODERATION_S}},
    "an ACK for each packet": {rc: {"_ACK_EVERY": 1}},
    "wrong data": {elements: {"_mixed": _other_input}},
    "CRC of zlib": {fastloop: {"_CRCS": fastloop._CRCS[-1:]}},
}


@contextmanager
def altered(name: str) -> Iterator[None]:
    """The runs of this process have workers that are altered so; the empty name alters nothing."""
    if not name:
        yield
        return
    with mock.patch.object(crew, "_WORKER", "tests.alteredworker"), mock.patch.dict(os.environ, {NAMED: name}):
        yield


if __name__ == "__main__":
    for module, constants in ALTERATIONS[os.environ[NAMED]].items():
        assert constants.keys() <= vars(module).keys(), constants
        vars(module).update(constants)
    sys.exit(worker.main())
