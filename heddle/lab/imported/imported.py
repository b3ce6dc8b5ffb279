"""The Blueprint of a lab from a user-supplied containerlab file.

In:  the file (import_topology), or a record of a running lab (of_record).
Out: ImportedLab: its fabric, the copy that runs, and its expected state as far as its files define it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from heddle.base.ethernet import LARGEST_PFC_MTU
from heddle.base.events import Observer
from heddle.base.files import read_regular
from heddle.base.problems import MachineError, Problem
from heddle.base.state import Record, check_name
from heddle.base.sysctls import is_sysctl_number
from heddle.base.tables import some_of
from heddle.base.units import format_rate
from heddle.fabric import hashmodes
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policydata import fabric_from_json, fabric_to_json
from heddle.fabric.wiring import Bridge, Port
from heddle.kernel.devicetypes import HINT, created, missing
from heddle.kernel.namespace import NodeHandle
from heddle.lab.daemons import SessionEnd, awaited
from heddle.lab.imported import frr
from heddle.lab.imported import reachability as convergence
from heddle.lab.imported.copy import (
    copy_data,
    daemons_by_commands,
    heddle_starts,
    is_heddles,
    settings_of,
    without_admin,
    write_copy,
)
from heddle.lab.imported.description import DEFAULT_RATE_BPS, NodeDescription, TopologyDescription, addresses_of, derive
from heddle.lab.imported.grammar import MOST_BYTES, OUTPUT, command_lines, text_of
from heddle.lab.imported.innamespace import lines_of
from heddle.lab.imported.reader import read_description
from heddle.lab.inventory import Interfaces, read_interfaces
from heddle.lab.lab import Blueprint, Difference, Lab, Setting
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.render.dialects import RenderOptions
from heddle.runtimes.netns_topology import read_topology

_ADDRESSES_COME_S: Final = 20.0  # an image that starts FRR itself may do so after its node is up
_PAUSE_S: Final = 0.2
_FRR_FILES: Final = ("daemons", "frr.conf", "vtysh.conf")  # the files that daemons read at start
_SHOWN: Final = 70  # letters of a value that differs, in messages
_HASHING: Final = "net.ipv4.fib_multipath_hash_"


def import_topology(path: Path, runtime: str, name: str | None = None, shown: str = "") -> ImportedLab:
    """Read a user-supplied topology for a runtime. InputError lists everything that is not supported, by line.

    name: the lab's name, instead of the file's. shown: the file's name in errors.
    """
    if name is not None:
        check_name(name)
    description = read_description(path, runtime, name, shown or str(path))
    fabric = derive(description)
    daemons = {node.name: _daemons(description.nodes[node.name], runtime) for node in fabric.switches}
    settings = {name: settings_of(node) for name, node in description.nodes.items()}
    owners = {str(p.address.ip): p.node for n in fabric.nodes for p in n.ports if p.address is not None}
    notes = (*description.notes, *_notes(description, fabric, settings, runtime))
    nodes = description.nodes.values() if runtime == "netns" else ()
    bare = tuple(node.name for node in nodes if node.frr and not node.starts_itself and not _configured(node))
    parts = _parts(description, fabric, runtime)
    return ImportedLab(
        fabric, runtime, daemons, settings, owners, parts, bare=bare, notes=notes, description=description
    )


@dataclass(frozen=True, slots=True)
class _Own:
    """What a lab's record has of an ImportedLab, beside its fabric."""

    known_daemons: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Mapping[str, tuple[Setting, ...]]]
    owners: Mapping[str, str]
    parts: Mapping[str, str]
    bare: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()


_OWN: Final = TypeAdapter(_Own)


@dataclass(frozen=True)
class ImportedLab(Blueprint):
    """The expected state, as far as the files of the topology define it.

    known_daemons: switch -> daemons that its files enable; settings: node -> sysctls that its configuration sets;
    owners: address -> node; parts: values that distinguish two labs. bare, apart: see WaitScope in reachability.py.
    description: None for a reopened lab.
    """

    runtime: str
    known_daemons: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Mapping[str, tuple[Setting, ...]]]
    owners: Mapping[str, str]
    parts: Mapping[str, str]
    bare: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    description: TopologyDescription | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Nodes that do not route in namespaces (missing.py), and what reaches this machine (innamespace.py)."""
        if self.description is None:
            return ()
        silent = unrouted(self.description) if self.runtime == "netns" else []
        silent += unserved(self.description, self.fabric, self.bare)
        return (*silent, *lines_of({name: node.reach for name, node in self.description.nodes.items()}))

    @classmethod
    def of_record(cls, record: Record) -> ImportedLab:
        """From a lab's record; MachineError when this version cannot read it."""
        try:
            own = _OWN.validate_python(record.imported)
            fabric = fabric_from_json(record.imported["fabric"])
            rest = (own.known_daemons, own.settings, own.owners, own.parts, own.bare, own.apart)
            return cls(fabric, record.runtime, *rest)
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "was created by another version of Heddle, and this one cannot read its fabric"
            raise MachineError(
                Problem("", f"lab {record.name}", why, f"./inv down {record.name}, then up again")
            ) from None

    def kernel_faults(self) -> tuple[list[Problem], list[str]]:
        """Types of devices that its commands create (devices.py)."""
        return missing_devices(() if self.description is None else self.description.nodes.values())

    def recorded(self) -> Mapping[str, Any]:
        own = _Own(self.known_daemons, self.settings, self.owners, self.parts, self.bare, self.apart)
        return {"fabric": fabric_to_json(self.fabric), **_OWN.dump_python(own, mode="json")}

    def write(self, out: Path, options: RenderOptions) -> Path:
        if self.description is None:
            raise ValueError("a reopened lab has no description to write")
        return write_copy(self.description, self.fabric, out, options, self.runtime)

    def differences(self, record: Record) -> list[Difference]:
        if not record.imported:
            return [("the lab's source", f"{record.source}, rendered", "an imported topology")]
        old = record.imported.get("parts", {})
        keys = [key for key in dict.fromkeys([*old, *self.parts]) if old.get(key) != self.parts.get(key)]
        return [(key, _cut(old.get(key, "nothing")), _cut(self.parts.get(key, "nothing"))) for key in keys]

    def own_hashing(self) -> Mapping[str, Mapping[str, str]]:
        return {node.name: _of_hashing(self.settings.get(node.name, {})) for node in self.fabric.switches}

    def own_sysctls(self) -> Mapping[str, Mapping[str, Sequence[Setting]]]:
        return self.settings

    def sysctls(self, topology: Path) -> Mapping[str, Mapping[str, str]]:
        return {node.name: node.sysctls for node in read_topology(topology).nodes.values()}

    def daemons(self, switch: str) -> tuple[str, ...]:
        return self.known_daemons.get(switch, ())

    def completed(self, handles: Mapping[str, NodeHandle]) -> ImportedLab:
        """With the actual addresses and MACs of the nodes; waits up to 20 s for addresses that the files define."""
        end = time.monotonic() + _ADDRESSES_COME_S
        promised = {port.ref for node in self.fabric.nodes for port in node.ports if port.address is not None}
        while True:
            found = self._alive(handles)
            here = {port.ref for node in found.fabric.nodes for port in node.ports if port.address is not None}
            if promised <= here or time.monotonic() > end:
                return found
            time.sleep(_PAUSE_S)

    def refreshed(self, handles: Mapping[str, NodeHandle]) -> ImportedLab:
        """With the addresses and MACs of now: a user may have changed them."""
        return replace(self._alive(handles), apart=self.apart)

    def _alive(self, handles: Mapping[str, NodeHandle]) -> ImportedLab:
        owners: dict[str, str] = {}
        nodes, networks = [], set[IPv4Network]()
        for node in self.fabric.nodes:
            now = read_interfaces(handles[node.name])
            owners |= {str(a.ip): node.name for rows in now.addresses.values() for a in rows if not a.is_loopback}
            nodes.append(replace(node, ports=tuple(_as_running(port, now) for port in node.ports)))
            if node.role is Role.SWITCH:
                networks |= {each.network for rows in now.addresses.values() for each in rows}
        fabric = replace(self.fabric, nodes=tuple(nodes))
        hosts = [address for address, _ in convergence.host_addresses(fabric)]
        apart = tuple(str(each) for each in hosts if not any(each in network for network in networks))
        return replace(self, fabric=fabric, owners=owners, apart=apart)

    @property
    def timeout(self) -> float:
        """A failed BGP connect is repeated after 120 s, FRR's default."""
        return 180 + len(self.fabric.links) / 20

    def wait(self, lab: Lab, observer: Observer, timeout: float) -> None:
        """Warn of lines that FRR refused, then wait until sessions are established and hosts can be reached."""
        for line in refused_lines(lab, self.description.nodes) if self.description else ():
            observer.warn(line)
        convergence.wait(lab, convergence.WaitScope(self.owners, self.bare, self.apart), observer, timeout)

    @property
    def gap_parts(self) -> LabPart:
        """Routes, to find hosts without one, neighbours, and sessions, without which a switch may be idle."""
        return LabPart.FIBS | LabPart.ADJACENCIES | LabPart.SESSIONS

    def gaps(self, now: Snapshot) -> list[Problem]:
        """Neighbours of OSPF and IS-IS that are not up, and switches without a route to a host."""
        unreached = convergence.unreached(self.fabric, now, self.apart)
        routes = [Problem(switch, f"no route to {address}", f"({port})") for switch, address, port in unreached]
        what, why = "the configuration", "was not run: there is neither an address nor a BGP session"
        idle = [
            Problem(switch, what, why) for switch in sorted(convergence.WaitScope(self.owners, self.bare).idle(now))
        ]
        return [*(Problem(e.port, e.what, e.why) for e in awaited(self.fabric, now.adjacencies)), *routes, *idle]

    def routes_checked(self) -> str:
        hosts = convergence.host_addresses(self.fabric)
        return f"{len(hosts)} addresses of hosts have routes in every switch's kernel" if hosts else ""

    def routing(self, now: Snapshot) -> bool:
        idle = convergence.WaitScope(self.owners, self.bare).idle(now)
        return any(switch.name not in idle for switch in self.fabric.switches)

    def session_pairs(self, now: Snapshot) -> list[tuple[SessionEnd, SessionEnd]]:
        """One for each session over the lab's own links and addresses."""
        return convergence.pairs_of(self.fabric, self._sessions(now))

    def _sessions(self, now: Snapshot) -> convergence.Sessions:
        speakers = [switch for switch, names in self.known_daemons.items() if "bgpd" in names]
        return convergence.sessions_of(self.fabric, speakers, self.owners, now)


def _of_hashing(settings: Mapping[str, Sequence[Setting]]) -> dict[str, str]:
    """The last value of each hashing sysctl, which is the one in the kernel."""
    last = {key: rows[-1].value for key, rows in settings.items() if key.startswith(_HASHING)}
    return {key: value for key, value in last.items() if is_sysctl_number(value)}


def _as_running(port: Port, now: Interfaces) -> Port:
    """With the MAC and address of the running node; a port in a bridge has the address of the bridge."""
    name = now.bridges.get(port.name)
    bridge = None if name is None else Bridge(name, now.macs[name])
    address = _first(now.addresses.get(port.name if name is None else name))
    return replace(port, address=address, mac=now.macs.get(port.name) or port.mac, bridge=bridge)


def _first(addresses: tuple[IPv4Interface, ...] | None) -> IPv4Interface | None:
    return addresses[0] if addresses else None


def _daemons(node: NodeDescription, runtime: str) -> tuple[str, ...]:
    """Daemons that must answer, without mgmtd and staticd, which not every FRR has."""
    text = node.text("daemons")
    if text is None and not heddle_starts(node, runtime):
        return ()  # the file in the image decides, and cannot be read here
    names = {*frr.daemons_of(text), *daemons_by_commands(node)}
    return tuple(each for each in frr.DAEMONS if each in names and each not in ("mgmtd", "staticd"))


def _parts(description: TopologyDescription, fabric: Fabric, runtime: str) -> dict[str, str]:
    """Path -> value, as text, of everything that defines the lab; independent of its directory and subnet."""
    data = copy_data(description, fabric, Path("/"), RenderOptions(), runtime)
    found = {"links": json.dumps(data["topology"]["links"])}
    for name, node in data["topology"]["nodes"].items():
        found |= {f"nodes.{name}.{key}": json.dumps(value) for key, value in node.items()}
    for name, described in description.nodes.items():
        texts = {file: text for file in _FRR_FILES if (text := described.text(file)) is not None}
        found |= {f"nodes.{name}.{frr.FRR_DIR}/{file}": _digest(text) for file, text in texts.items()}
    return found


def _digest(text: str) -> str:
    """A short text that identifies a file's content."""
    return f"{len(text.splitlines())} lines, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _notes(
    description: TopologyDescription,
    fabric: Fabric,
    settings: Mapping[str, Mapping[str, Sequence[Setting]]],
    runtime: str,
) -> list[str]:
    """Notes on what Heddle adds or assumes."""
    notes = []
    if unrated := sum(link.rate_bps is None for link in description.links):
        rate = format_rate(DEFAULT_RATE_BPS)
        notes.append(f"{unrated} links have no rate and get {rate} each way; set vars: {{rate_bps: N}} of a link")
    if not fabric.policy.queues.lossless:
        notes.append(f"no class is lossless: a link's mtu is above {LARGEST_PFC_MTU}, the maximum for PFC")
    own = [node.name for node in fabric.switches if _of_hashing(settings.get(node.name, {}))]
    if fabric.switches and len(own) < len(fabric.switches):
        rules = hashmodes.sysctls("flow", 1)
        notes.append(
            f"{len(fabric.switches) - len(own)} switches get Heddle's hashing: policy "
            f"{rules['net.ipv4.fib_multipath_hash_policy']} over the 5-tuple, a seed for each"
        )
    if own:
        words = ", ".join(own[:4]) + (", ..." if own[4:] else "")
        notes.append(f"{len(own)} switches keep the hashing sysctls that the topology sets: {words}")
    bare = [node.name for node in description.nodes.values() if not node.image]
    if bare and runtime != "netns":
        notes.append(f"{len(bare)} nodes have no image and get Heddle's")
    if runtime != "netns" and (less := [node.name for node in description.nodes.values() if without_admin(node)]):
        notes.append(
            f"no SYS_ADMIN, which FRR needs, on {some_of(less)}: where the image has FRR, set cap-add: [SYS_ADMIN]"
        )
    if runtime == "netns" and (mains := [node.name for node in description.nodes.values() if node.main]):
        notes.append(f"a background process of {some_of(mains)} is the container's; its output: exec NODE cat {OUTPUT}")
    started = [n for n in description.nodes.values() if n.frr and heddle_starts(n, runtime)]
    if started and any(not is_heddles(node.image) for node in started):
        notes.append(f"Heddle starts this machine's FRR on {len(started)} switches, instead of an image's")
    return notes


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
