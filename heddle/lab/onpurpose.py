"""Record of the faults that Heddle made on request: ports that were taken down, and faults of links.

    LABDIR/faults.json     {"down": ["rtsw1:eth3", ...], "links": {"rtsw1:eth3": {"loss": 0.01}, ...},
                            "run": {"rtsw1:eth3": {"loss": 0.5} or null, ...}}

down: the ends that were taken down. `up --repair` leaves them down; `up` and `status` report them. links: what
`./inv fault` set, by the port that packets leave by. run: ports of which the fault in `links` was set for one run, and
what `links` had before it (null: nothing). Whether a port is down now is read from its kernel, not from this file. The
caller holds the lab's lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base import state
from heddle.spec.impairments import LinkFault

_FILE: Final = "faults.json"


def taken_down(directory: Path) -> frozenset[str]:
    """The ports of a lab that were taken down on purpose. directory: the lab's. A damaged file counts as empty."""
    refs = _read(directory).get("down")
    return frozenset(each for each in refs if isinstance(each, str)) if isinstance(refs, list) else frozenset()


def note(directory: Path, refs: Collection[str], *, down: bool) -> None:
    """Record that these ports were taken down on purpose, or set up again."""
    before = taken_down(directory)
    after = before | set(refs) if down else before - set(refs)
    if after != before:
        _write(directory, after, link_faults(directory), before_run(directory))


def link_faults(directory: Path) -> dict[str, LinkFault]:
    """Port -> the fault that was set on its link; an empty one where the fault of the fabric file was cleared."""
    return {ref: fault for ref, fault in _faults(directory, "links").items() if fault is not None}


def before_run(directory: Path) -> dict[str, LinkFault | None]:
    """Port that has a fault for one run -> what `link_faults` had of it before the run; None: nothing."""
    return _faults(directory, "run")


def note_link_faults(
    directory: Path, faults: Mapping[str, LinkFault], before: Mapping[str, LinkFault | None] | None = None
) -> None:
    """Record the faults of all links that were set. before: of ports whose fault is for one run, see `before_run`."""
    _write(directory, taken_down(directory), faults, before or {})


def _faults(directory: Path, key: str) -> dict[str, LinkFault | None]:
    data = _read(directory).get(key)
    found: dict[str, LinkFault | None] = {}
    for ref, fields in data.items() if isinstance(data, dict) else ():
        try:
            found[ref] = None if fields is None else LinkFault.from_json(fields)
        except (ValueError, TypeError, AttributeError):
            continue
    return found


def _read(directory: Path) -> dict[str, Any]:
    try:
        data = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(
    directory: Path, down: Collection[str], links: Mapping[str, LinkFault], before: Mapping[str, LinkFault | None]
) -> None:
    data: dict[str, Any] = {"down": sorted(down)}
    if links:
        data["links"] = {ref: fault.to_json() for ref, fault in sorted(links.items())}
    if before:
        data["run"] = {ref: None if each is None else each.to_json() for ref, each in sorted(before.items())}
    state.write_json(directory / _FILE, data)
