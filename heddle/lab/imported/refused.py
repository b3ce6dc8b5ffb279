"""Lines of frr.conf that the FRR of a node did not take, with both releases: the one that runs, and the image's.

FRR's own start loads the other lines and goes on, so Heddle's start script does too. It leaves vtysh's messages in
frr.REFUSED; this module turns them into warnings. Formats: vtysh_read_file in FRR's vtysh/vtysh.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from heddle.base.files import read_regular
from heddle.base.problems import MachineError
from heddle.lab.imported import frr
from heddle.lab.imported.description import NodeDescription
from heddle.lab.imported.grammar import MOST_BYTES
from heddle.lab.lab import Lab

_LINE: Final = re.compile(r"^line (\d+): (.*?)(?:\[\d+\])?(?: to (\w+), line)?: ?(.*)$")
_VERSION: Final = re.compile(r"^FRRouting (\S+)", re.MULTILINE)


def refused_lines(lab: Lab, nodes: Mapping[str, NodeDescription]) -> list[str]:
    """A warning for each line that a node's FRR refused; equal ones of several nodes together."""
    found: dict[tuple[str, str], dict[str, None]] = {}  # vtysh of FRR 10 reports a line more than once
    first = ""
    for name, node in nodes.items():
        for place, text, why in _lines(lab, node):
            image = f"; the image is {node.image}" if ":" in node.image else ""
            found.setdefault((text, why + image), {})[f"{name}: {place}"] = None
            first = first or name
    if not found:
        return []
    release = _release(lab, first)
    warnings = []
    for (text, why), places in found.items():
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        warnings.append(f"{next(iter(places))}{more}  {text}  {why.replace('FRR', f'FRR {release}', 1)}")
    hint = "all other lines are loaded; change these, or use --runtime containerlab for the FRR of the image"
    return [*warnings, f"hint: {hint}"]


def _lines(lab: Lab, node: NodeDescription) -> Iterator[tuple[str, str, str]]:
    """(file and line, text, why) of each refused line of a node."""
    path = lab.runtime.find(lab.name, lab.topology, node.name, frr.REFUSED)
    if path is None:
        return
    with suppress(OSError):
        source = frr.bound_file(node.sources, "frr.conf")
        name = f"{frr.FRR_DIR}/frr.conf" if source is None else source.name
        for match in map(_LINE.match, read_regular(path, MOST_BYTES).decode(errors="replace").splitlines()):
            if match is not None:
                unknown = match[2].startswith("% Unknown")
                why = "is unknown to FRR" if unknown else f"was refused by {match[3] or 'a daemon'} of FRR"
                yield f"{name}:{match[1]}", " ".join(match[4].split()), why


def _release(lab: Lab, node: str) -> str:
    """The release of FRR that runs in a node."""
    try:
        match = _VERSION.search(lab.output(node, ["vtysh", "-c", "show version"]))
    except MachineError:
        return "of this node"
    return match[1] if match else "of this node"
