"""Record of the faults that Heddle made on request: ports that were taken down, and faults of links.

    LABDIR/faults.json     {"down": ["rtsw1:eth3", ...], "links": {"rtsw1:eth3": {"loss": 0.01}, ...},
                            "run": {"rtsw1:eth3": {"loss": 0.5} or null, ...}}

Whether a port is down now is read from its kernel, not from this file. The caller holds the lab's lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from heddle.base import state
from heddle.spec.impairments import LinkFault

_FILE: Final = "faults.json"


@dataclass(frozen=True, slots=True)
class Requested:
    """The record of one lab.

    down: ports that were taken down. `up --repair` leaves them down; `up` and `status` report them. links: port that
    packets leave by -> the fault that was set on its link, an empty one where that of the fabric file was cleared.
    before_run: port whose fault in `links` is for one run -> what `links` had of it before; None: nothing.
    """

    down: frozenset[str] = frozenset()
    links: Mapping[str, LinkFault] = field(default_factory=dict)
    before_run: Mapping[str, LinkFault | None] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """directory: the lab's. A damaged file, or a damaged part of it, counts as empty."""
        try:
            data = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(data, dict):
            return cls()
        refs = data.get("down")
        down = frozenset(each for each in refs if isinstance(each, str)) if isinstance(refs, list) else frozenset()
        links = {ref: fault for ref, fault in _faults(data.get("links")).items() if fault is not None}
        return cls(down, links, _faults(data.get("run")))

    def write(self, directory: Path) -> None:
        """Replace the record."""
        data: dict[str, Any] = {"down": sorted(self.down)}
        if self.links:
            data["links"] = {ref: fault.to_json() for ref, fault in sorted(self.links.items())}
        if self.before_run:
            run = sorted(self.before_run.items())
            data["run"] = {ref: None if fault is None else fault.to_json() for ref, fault in run}
        state.write_json(directory / _FILE, data)


def _faults(data: Any) -> dict[str, LinkFault | None]:
    found: dict[str, LinkFault | None] = {}
    for ref, values in data.items() if isinstance(data, dict) else ():
        try:
            found[ref] = None if values is None else LinkFault.from_json(values)
        except (ValueError, TypeError, AttributeError):
            continue
    return found
