"""Record of the faults that Heddle made on request: ports that were taken down, and faults of links.

    LABDIR/faults.json     {"down": ["rtsw1:eth3", ...], "links": {"rtsw1:eth3": {"loss": 0.01}, ...}}

down: the ends that were taken down. `up --repair` leaves them down; `up` and `status` report them. links: what
`./inv fault` set, by the port that packets leave by. Whether a port is down now is read from its kernel, not from this
file. The caller holds the lab's lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base import state
from heddle.fabric.linkfault import LinkFault

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
        _write(directory, after, link_faults(directory))


def link_faults(directory: Path) -> dict[str, LinkFault]:
    """Port -> the fault that was set on its link; an empty one where the fault of the fabric file was cleared."""
    data = _read(directory).get("links")
    found: dict[str, LinkFault] = {}
    for ref, fields in data.items() if isinstance(data, dict) else ():
        try:
            found[ref] = LinkFault.from_json(fields)
        except (ValueError, TypeError, AttributeError):
            continue
    return found


def note_link_faults(directory: Path, faults: Mapping[str, LinkFault]) -> None:
    """Record the faults of all links that were set."""
    _write(directory, taken_down(directory), faults)


def _read(directory: Path) -> dict[str, Any]:
    try:
        data = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(directory: Path, down: Collection[str], links: Mapping[str, LinkFault]) -> None:
    data: dict[str, Any] = {"down": sorted(down)}
    if links:
        data["links"] = {ref: fault.to_json() for ref, fault in sorted(links.items())}
    state.write_json(directory / _FILE, data)
