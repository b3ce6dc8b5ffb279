"""What a lab in namespaces does not have of its topology: devices, routing software, and lines of its configuration.

In:  its nodes. Out: problems for `up` to report before anything starts: devices that commands create and this machine's
kernel does not have. Warnings where a shell decides whether such a command runs; of nodes whose routing software or its
configuration is in an image only; and of lines of frr.conf that FRR did not take.
FRR's own start loads the other lines and goes on, so Heddle's start script does too. It leaves vtysh's messages in
frr.REFUSED. Formats: vtysh_read_file in FRR's vtysh/vtysh.c.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from heddle.base.files import read_regular
from heddle.base.problems import MachineError, Problem
from heddle.base.tables import some_of
from heddle.kernel.devicetypes import HINT, created, missing
from heddle.lab.imported import frr
from heddle.lab.imported.commands import command_lines
from heddle.lab.imported.copy import is_heddles
from heddle.lab.imported.description import NodeDescription, TopologyDescription
from heddle.lab.imported.grammar import MOST_BYTES
from heddle.lab.lab import Lab

_SHOWN: Final = 100  # characters of a command


class _Use(NamedTuple):
    """A command that creates a device. certain: no shell decides whether it runs."""

    where: str
    line: str
    certain: bool


def missing_devices(nodes: Iterable[NodeDescription]) -> tuple[list[Problem], list[str]]:
    """Commands that must fail, one for each type, with its nodes; and warnings for those inside a shell script."""
    found: dict[tuple[str, ...], dict[str, _Use]] = {}
    for node in nodes:
        for command in node.commands:
            for words in command_lines(command, node.sources):
                if (kind := created(words)) and missing(*kind):
                    certain = command.split()[:1] == words[:1]
                    found.setdefault(kind, {}).setdefault(node.name, _Use(node.where, " ".join(words), certain))
    problems, warnings = [], []
    for kind, uses in found.items():
        first = next((use for use in uses.values() if use.certain), next(iter(uses.values())))
        what, why = f"exec: {first.line[:_SHOWN]}", f"is not possible here: {missing(*kind)}; nodes: {some_of([*uses])}"
        if first.certain:
            problems.append(Problem(first.where, what, why, HINT))
        else:
            warnings.append(f"{what} {why}; {HINT}")
    return problems, warnings


_ENGINE: Final = "use --runtime containerlab, which starts the image"


def unrouted(description: TopologyDescription) -> list[str]:
    """`leaf1, leaf2 will not route: ...`: nodes without FRR that an image makes routers, and FRR without a file."""
    links = Counter(end.node for link in description.links for end in link.ends)
    found: dict[tuple[str, str], list[str]] = {}
    for node in description.nodes.values():
        for why in _reasons(node, links[node.name]):
            found.setdefault((why, node.image), []).append(node.name)
    return [
        f"{some_of(names)} {why}, and namespaces do not use the image {image}; {_ENGINE}"
        for (why, image), names in found.items()
    ]


def _reasons(node: NodeDescription, links: int) -> Iterator[str]:
    if is_heddles(node.image):
        return
    if not node.frr:
        if frr.routes(node.image):
            yield "will not route: the file binds nothing below /etc/frr and no command starts FRR"
        elif links > 1 and not node.binds and not node.exec:
            yield "will not route: the file has several links for it, but no commands and no binds"
    elif not node.starts_itself and not _configured(node):
        yield "will start FRR without a configuration: the file binds no frr.conf, and no command runs vtysh"


def _configured(node: NodeDescription) -> bool:
    names = ("frr.conf", *(f"{daemon}.conf" for daemon in frr.DAEMONS))
    bound = any(frr.bound_file(node.sources, name) is not None for name in names)
    return bound or any("vtysh" in line or f"{frr.FRR_DIR}/" in line for line in node.exec)


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
