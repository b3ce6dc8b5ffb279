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
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Interface, IPv4Network
from typing import Final, NamedTuple

from heddle.base.files import read_regular
from heddle.base.problems import MachineError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Port, Role
from heddle.kernel.devicetypes import HINT, created, missing
from heddle.lab.imported import frr
from heddle.lab.imported.commands import command_lines, text_of
from heddle.lab.imported.copy import is_heddles
from heddle.lab.imported.description import NodeDescription, TopologyDescription, addresses_of
from heddle.lab.imported.grammar import MOST_BYTES
from heddle.lab.lab import Lab

_SHOWN_OF_COMMAND: Final = 100  # characters of a command


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
        what, why = (
            f"exec: {first.line[:_SHOWN_OF_COMMAND]}",
            f"is not possible here: {missing(*kind)}; nodes: {some_of([*uses])}",
        )
        if first.certain:
            problems.append(Problem(first.where, what, why, HINT))
        else:
            warnings.append(f"{what} {why}; {HINT}")
    return problems, warnings


def unconfigured(description: TopologyDescription) -> tuple[str, ...]:
    """Switches whose FRR starts without a configuration."""
    nodes = description.nodes.values()
    return tuple(node.name for node in nodes if node.frr and not node.starts_itself and not _configured(node))


def unserved(description: TopologyDescription, fabric: Fabric, bare: Collection[str]) -> list[str]:
    """A line for each subnet of hosts in which no switch has an address. bare: switches that another line is about."""
    own = [each.network for node in fabric.switches for each in addresses_of(description.nodes[node.name])]
    found: dict[IPv4Network, list[Port]] = {}
    for port in fabric.host_ports:
        if port.address is not None and port.peer_node not in bare and isinstance(port.address, IPv4Interface):
            found.setdefault(port.address.network, []).append(port)
    return [
        f"{some_of([port.ref for port in ports])} are in {network}, behind {some_of(switches)}: the file gives no"
        " switch an address there, so no route to them comes, and up waits for none; an overlay can connect them"
        for network, ports in found.items()
        if (switches := [*dict.fromkeys(p.peer_node for p in ports if fabric.by_name[p.peer_node].role is Role.SWITCH)])
        and not any(port.address.ip in each for port in ports if port.address is not None for each in own)
    ]


_ENGINE: Final = "use --runtime containerlab, which starts the image"


def unrouted(description: TopologyDescription) -> list[str]:
    """`leaf1, leaf2 will not route: ...`: nodes without FRR that an image makes routers, and FRR without a file."""
    links = Counter(end.node for link in description.links for end in link.ends)
    found: dict[str, list[str]] = {}
    for name, node in description.nodes.items():
        scripts = "; ".join(f"./inv exec {{}} -- {each}" for each in _scripts(node))
        image = f", and namespaces do not use the image {node.image}; {_ENGINE}"
        whys = [f"{_UNRUN} {scripts}"] if scripts else [f"{why}{image}" for why in _reasons(node, links[name])]
        for why in whys:
            found.setdefault(why, []).append(name)
    return [f"{some_of(names)} {why.replace('{}', names[0])}" for why, names in found.items()]


_UNRUN: Final = "will not route: no command of the file runs the bound scripts. After up, run on each, as"


def _scripts(node: NodeDescription) -> list[str]:
    """`sh /etc/config/01-initial.sh`, in the order of their names: scripts of a node that nothing configures."""
    if node.main or (_configured(node) if node.frr else node.exec):
        return []
    texts = {target: (text_of(source) or "").partition("\n")[0] for target, source in sorted(node.sources.items())}
    shells = {target: "bash" if "bash" in first else "sh" for target, first in texts.items()}
    return [f"{shells[t]} {t}" for t, first in texts.items() if first.startswith("#!") or t.endswith(".sh")]


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


_CONFIGURES: Final = re.compile(rf"vtysh|{frr.FRR_DIR}/(?!daemons)")


def _configured(node: NodeDescription) -> bool:
    names = ("frr.conf", *(f"{daemon}.conf" for daemon in frr.DAEMONS))
    bound = any(frr.bound_file(node.sources, name) is not None for name in names)
    lines = (" ".join(words) for command in node.commands for words in command_lines(command, node.sources))
    return bound or any(_CONFIGURES.search(line) for line in (*node.commands, *lines))


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
