"""Record of the ports that Heddle took down on request. `up --repair` leaves them down; `up` and `status` report them.

    LABDIR/faults.json     {"down": ["rtsw1:eth3", ...]}, the ends that were taken down

Whether a port is down now is read from its kernel, not from this file. The caller holds the lab's lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from heddle.base import state

_FILE: Final = "faults.json"


def taken_down(directory: Path) -> frozenset[str]:
    """The ports of a lab that were taken down on purpose. directory: the lab's. A damaged file counts as empty."""
    try:
        refs = json.loads((directory / _FILE).read_text(encoding="utf-8"))["down"]
    except (OSError, ValueError, LookupError, TypeError):
        return frozenset()
    return frozenset(each for each in refs if isinstance(each, str)) if isinstance(refs, list) else frozenset()


def note(directory: Path, refs: Collection[str], *, down: bool) -> None:
    """Record that these ports were taken down on purpose, or set up again."""
    before = taken_down(directory)
    after = before | set(refs) if down else before - set(refs)
    if after != before:
        state.write_json(directory / _FILE, {"down": sorted(after)})
