"""Fabric -> files: the containerlab topology and the files that it binds.

In:  Fabric, RenderOptions.
Out: a directory with `NAME.clab.yml` and one directory per switch (frr.conf, daemons, vtysh.conf, start.sh).
The same fabric and options give the same bytes. Every runtime starts from these files alone.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base import resources
from heddle.base.plugins import Registry
from heddle.base.problems import HeddleError, InputError, Problem, trouble
from heddle.base.userfiles import as_caller
from heddle.fabric.fabricfile import LoadedFabric
from heddle.fabric.model import Fabric
from heddle.fabric.nexthops import edges_of
from heddle.fabric.wiring import Node, Port
from heddle.render import dialects

if TYPE_CHECKING:
    from jinja2 import Environment

# `render --kind`: name -> the file's name and text, for another tool.
TOPOLOGIES: Final[Registry[Callable[[LoadedFabric], tuple[str, str]]]] = Registry(
    "topology", {}, lambda _, found: "" if callable(found) else f"{found!r} is not a function"
)
DEFAULT: Final = dialects.RenderOptions()
TEMPLATES: Final = resources.HERE.content(resources.TEMPLATES)
# The files of a switch's directory, and those that the topology binds; containerlab's FRR kind adds the others itself.
SWITCH_FILES: Final[Mapping[dialects.Dialect, Sequence[str]]] = {
    "linux": ("frr.conf", "daemons", "vtysh.conf", "start.sh"),
    "frr": ("frr.conf", "start.sh"),
    "c9s": ("frr.conf", "daemons", "vtysh.conf", "start.sh"),
}
BOUND_FILES: Final[Mapping[dialects.Dialect, Sequence[str]]] = {**SWITCH_FILES, "frr": ("start.sh",)}
# 90 MB of netlink receive buffer is Debian's own default: a burst of links and routes must not overrun zebra.
MGMTD_OPTIONS: Final = "-P 0"
ZEBRA_OPTIONS: Final = "-P 0 -s 90000000"
BGPD_OPTIONS: Final = "-P 0"
_SWITCHES_A_GROUP: Final = 16
# zebra's timer of router advertisements passes all ports of a process for each VRF (rtadv_timer): 2,048 ports in 16
# VRFs keep a processor busy.
_PORTS_A_GROUP: Final = 320
START: Final = "sh /etc/frr/start.sh"


def render(fabric: Fabric, out: Path, options: dialects.RenderOptions = DEFAULT) -> Path:
    """Write all files of the fabric into `out` and return the topology's path.

    All files are first written to a temporary directory beside `out`, so an error changes nothing. If `out` exists,
    files are moved into it one by one, the topology last. InputError when `out` cannot be such a directory.
    """
    files = rendered(fabric, options)
    with as_caller(out := Path(out)):
        _write_all(files, out)
    return out / topology_name(fabric.name)


def _write_all(files: Mapping[str, str], out: Path) -> None:
    try:
        if out.exists() and not out.is_dir():
            raise InputError(Problem("", f"--out {out}", "is a file", "name a directory; it is created if missing"))
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise _refused(error, out) from None
    try:
        for name, text in files.items():
            _write(staging / name, text)
        staging.chmod(0o755)
        _place(staging, out, list(files))
    except OSError as error:
        raise _refused(error, out) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _refused(error: OSError, out: Path) -> HeddleError:
    """The error for a failed write: a MachineError for a full disk, an InputError for a path that is not writable."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE):
        return trouble(error, str(out))
    return InputError(Problem("", f"--out {out}", f"cannot be written: {error.strerror}", "name another directory"))


def topology_name(lab: str) -> str:
    """`zone.clab.yml`: containerlab finds topologies by this suffix."""
    return f"{lab}.clab.yml"


def rendered(fabric: Fabric, options: dialects.RenderOptions = DEFAULT) -> dict[str, str]:
    """Relative path -> text of every file, the topology last."""
    if options.dialect == "frr" and not fabric.policy.routing.by_bgp:
        why = "starts FRR itself, and the fabric has routing.control: static"
        raise InputError(Problem("", "--dialect frr", why, "use --dialect linux"))
    env = _environment()
    announced = _announced(fabric)
    shared = {
        "family": fabric.policy.ip,
        "fabric": fabric,
        "announced": announced,
        # The blocks of the configuration that only bgpd parses.
        "bgp_blocks": r"router bgp\|route-map\|ip prefix-list\|ipv6 prefix-list",
        "ra_interval": ra_interval(fabric),
        "hold_ms": hold_ms(fabric),
        "mgmtd_options": MGMTD_OPTIONS,
        "zebra_options": ZEBRA_OPTIONS if fabric.policy.routing.daemons == "own" else f"{ZEBRA_OPTIONS} -n",
        "bgpd_options": BGPD_OPTIONS,
    }
    files: dict[str, str] = {}
    own_files = SWITCH_FILES[options.dialect] if fabric.policy.routing.by_bgp else ()
    templates = {name: env.get_template(f"frr/{name}.j2") for name in own_files}
    groups = daemon_groups(fabric)
    for group, nodes in (groups or {node.name: [node] for node in fabric.switches}).items():
        members = [
            (node, _maximum_paths(fabric, node), [*filter(fabric.is_global, node.ports)], _is_stub(fabric, node))
            for node in nodes
        ]
        own = {"name": group, "members": members, "shared": bool(groups)}
        files |= {f"{group}/{name}": template.render(shared, **own) for name, template in templates.items()}
    files[topology_name(fabric.name)] = env.get_template("clab/topology.clab.yml.j2").render(
        shared,
        options=options,
        deploy=dialects.DEPLOY[options.dialect],
        kind_keys=options.takes(dialects.KIND_KEYS),
        skip_when_unused=options.takes(dialects.SKIP_WHEN_UNUSED),
        unprivileged=options.takes(dialects.PRIVILEGED),
        images=dialects.image_names(),
        switch_capabilities=dialects.SWITCH_CAPABILITIES,
        host_capabilities=dialects.HOST_CAPABILITIES,
        node_memory=dialects.NODE_MEMORY,
        level_of=fabric.level_of,
        # containerlab's graph sorts its rows by the names of groups.
        switch_groups=list(dict.fromkeys(fabric.level_of(node).group for node in reversed(fabric.switches))),
        host_group=fabric.host_level.group,
        daemon_groups=groups,
        group_of={node.name: group for group, nodes in groups.items() for node in nodes},
        labels=(dialects.DAEMONS_OF, dialects.DAEMONS_IN),
        mgmt_subnet=options.subnet or mgmt_subnet(fabric),
        switch_sysctls=switch_sysctls(fabric),
        host_sysctls=host_sysctls(fabric),
        bound_files=[name for name in BOUND_FILES[options.dialect] if name in own_files],
        switch_commands=lambda node: _plain(
            [*mac_commands(node, options.dialect), *switch_commands(node), *[START] * bool(own_files and not groups)]
        ),
        start_command=START,
        host_commands=lambda node: _plain([*mac_commands(node, options.dialect), *host_commands(fabric, node)]),
    )
    return files


@cache
def _environment() -> Environment:
    """It keeps compiled templates: to compile them takes longer than to render a small fabric."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML and FRR configuration, not HTML
    )


def daemon_groups(fabric: Fabric) -> dict[str, Sequence[Node]]:
    """Node that runs the daemons of several switches -> these switches; empty where each runs its own.

    Switches of a group are of one level: they have the same number of sessions and routes.
    """
    if fabric.policy.routing.daemons == "own" or not fabric.policy.routing.by_bgp:
        return {}
    levels: dict[str, list[Node]] = {}
    for node in fabric.switches:
        levels.setdefault(fabric.level_of(node).word, []).append(node)
    some: list[Sequence[Node]] = []
    for nodes in levels.values():
        size = min(_SWITCHES_A_GROUP, max(1, _PORTS_A_GROUP // max(len(node.ports) for node in nodes)))
        some += [nodes[at : at + size] for at in range(0, len(nodes), size)]
    return {f"frr{number}": part for number, part in enumerate(some, 1)}


def ra_interval(fabric: Fabric) -> str:
    """Seconds between router advertisements, from which unnumbered BGP learns its peers. FRR's default is 10.

    Short intervals bring sessions up sooner; on thousands of ports they are a load themselves.
    """
    ports = sum(len(node.ports) for node in fabric.switches)
    return "1" if ports <= 1024 else "2" if ports <= 4096 else "10"


def hold_ms(fabric: Fabric) -> int:
    """Milliseconds for which bgpd and zebra collect changes before they pass them on; 0: not at all.

    A small fabric is up sooner without. In a large one a route would change once for each of its next hops, as they
    come in one after the other, and each change costs bgpd, zebra and the kernel as much as the last.
    """
    ports = sum(len(node.ports) for node in fabric.switches)
    return 0 if ports <= 2048 else 3000


def mgmt_subnet(fabric: Fabric) -> IPv4Network:
    """The lab's own management network: derived from its name, with an address for each node, outside the pools.

    172.24.0.0/13 avoids the networks that Docker assigns first. If the pool is in it, 192.168.0.0/16 is used.
    """
    space = IPv4Network("172.24.0.0/13")
    if any(isinstance(pool, IPv4Network) and space.overlaps(pool) for pool in fabric.policy.pools):
        space = IPv4Network("192.168.0.0/16")
    length = min(24, 32 - (len(fabric.nodes) + 3).bit_length())
    slots = 2 ** (length - space.prefixlen)
    slot = zlib.crc32(fabric.name.encode()) % slots
    return IPv4Network((int(space.network_address) + (slot << (32 - length)), length))


def switch_sysctls(fabric: Fabric) -> Mapping[str, str]:
    """The sysctls that turn a namespace into a router; the hash seed is set per switch, at the node.

    In mode `flow` the kernel hashes the five-tuple. In other modes a BPF program sets the packet's hash, which policy 1
    uses.
    """
    hashing = _hashing_sysctls(fabric)
    if fabric.policy.ip_version == 6:
        return {
            "net.ipv6.conf.all.forwarding": "1",
            "net.ipv6.conf.all.disable_ipv6": "0",
            "net.ipv6.conf.all.accept_dad": "0",
            "net.ipv6.conf.default.accept_dad": "0",
            **_KEPT_ADDRESSES,
            "net.ipv6.conf.all.ignore_routes_with_linkdown": "1",
            "net.ipv6.conf.default.ignore_routes_with_linkdown": "1",
            **hashing,
        }
    return {
        "net.ipv4.ip_forward": "1",
        "net.ipv6.conf.all.forwarding": "1",
        "net.ipv6.conf.all.disable_ipv6": "0",  # unnumbered BGP uses link-local addresses
        # Duplicate address detection would delay every link-local address, and so every session, by a second.
        "net.ipv6.conf.all.accept_dad": "0",
        "net.ipv6.conf.default.accept_dad": "0",
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
        "net.ipv4.conf.all.ignore_routes_with_linkdown": "1",
        "net.ipv4.conf.default.ignore_routes_with_linkdown": "1",
        **hashing,
    }


def _hashing_sysctls(fabric: Fabric) -> dict[str, str]:
    from heddle.base.sysctls import HASH_SEED
    from heddle.fabric.hashmodes import POLICY_CUSTOM, sysctls

    routing = fabric.policy.routing
    rules = sysctls(routing.ecmp, 1, routing.hash, fabric.policy.ip_version)
    custom = str(POLICY_CUSTOM) in (value for key, value in rules.items() if key.endswith("policy"))
    return {key: value for key, value in rules.items() if key != HASH_SEED and (custom or not key.endswith("fields"))}


# A port must keep its IPv6 addresses when its link goes down and up again; IPv4 addresses stay anyway.
_KEPT_ADDRESSES: Final[Mapping[str, str]] = {
    "net.ipv6.conf.all.keep_addr_on_down": "1",
    "net.ipv6.conf.default.keep_addr_on_down": "1",
}


def host_sysctls(fabric: Fabric) -> Mapping[str, str]:
    """The sysctls that turn a namespace into a host."""
    return _HOST_SYSCTLS if fabric.policy.ip_version == 4 else {**_HOST_SYSCTLS, **_KEPT_ADDRESSES}


# A host with several NICs answers by the NIC that received the request, so no reverse path filter. IPv6 stays on, since
# containerlab forces it, but hosts ignore the switches' router advertisements.
_HOST_SYSCTLS: Final[Mapping[str, str]] = {
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv6.conf.all.disable_ipv6": "0",
    "net.ipv6.conf.default.accept_ra": "0",
    "net.ipv6.conf.default.router_solicitations": "0",
    "net.ipv6.conf.all.accept_dad": "0",
    "net.ipv6.conf.default.accept_dad": "0",
}


def _plain(commands: list[str]) -> list[str]:
    """Quote commands that YAML would not read as text: `via fd00:: dev eth1` would be a key and its value."""
    return [f'"{command}"' if ": " in command else command for command in commands]


def mac_commands(node: Node, dialect: dialects.Dialect) -> list[str]:
    """The `ip` commands that set the MACs of a node's ports, in dialects whose links cannot define them.

    The port goes down and up again, so that its link-local address is derived from the new MAC: zebra computes a
    neighbour's MAC from its link-local address (zebra/interface.c, ipv6_ll_address_to_mac), and would send IPv4 to the
    old MAC.
    """
    if dialect != "c9s":
        return []
    return [f"ip link set dev {p.name} {word}" for p in node.ports for word in (f"address {p.mac} down", "up")]


def switch_commands(switch: Node) -> list[str]:
    """The `ip` commands for the switch's loopback and its ends of the routed host links."""
    length = 32 if switch.loopback is None else switch.loopback.max_prefixlen
    addresses = [f"ip addr add {switch.loopback}/{length} dev lo"]
    addresses += [f"ip addr add {p.address} dev {p.name}" for p in switch.ports if p.address is not None]
    return addresses


_FIRST_TABLE: Final = 101  # of the routes by one port of a host with several


def host_commands(fabric: Fabric, host: Node) -> list[str]:
    """The `ip` commands for the host's addresses and its routes to the pool.

    There is no default route: traffic to addresses outside the fabric must fail at once. Each network has routes to its
    own pool, by its own ports. With several ports the route to the pool uses all of them, and a socket bound to one
    port's address sends by that port (one table per port). Where no path connects the ports' leaves, as in planes, each
    edge is reached by the ports of its own plane.
    """
    commands: list[str] = []
    table = _FIRST_TABLE
    for network in dict.fromkeys(port.network for port in host.ports):
        ports = [port for port in host.ports if port.network == network]
        commands += _network_commands(fabric, ports, table)
        table += len(ports)
    return commands


def _network_commands(fabric: Fabric, ports: Sequence[Port], first_table: int) -> list[str]:
    pool = fabric.policy.of(ports[0].network).pool
    nics: list[tuple[str, str, str]] = []
    parts: dict[int | None, list[str]] = {}
    for port in ports:
        peer = fabric.by_name[port.peer_node].port(port.peer_port)
        if port.address is not None and peer.address is not None:
            nics.append((port.name, str(port.address), str(peer.address.ip)))
            parts.setdefault(fabric.part_of.get(port.peer_node), []).append(f"via {peer.address.ip} dev {port.name}")
    commands = [f"ip addr add {address} dev {name}" for name, address, _ in nics]
    ip = "ip" if fabric.policy.ip_version == 4 else "ip -6"
    if len(nics) == 1:
        return [*commands, f"{ip} route add {pool} via {nics[0][2]} dev {nics[0][0]}"]
    edges = {part: [n.prefix for n in fabric.edges if fabric.part_of[n.name] == part] for part in parts}
    for part, hops in parts.items():
        over = hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)
        commands += [f"{ip} route add {prefix} {over}" for prefix in ([pool] if len(parts) == 1 else edges[part])]
    for table, (name, address, gateway) in enumerate(nics, first_table):
        commands.append(f"{ip} route add {pool} via {gateway} dev {name} table {table}")
        commands.append(f"{ip} rule add from {address.split('/')[0]} table {table}")
    return commands


def _announced(fabric: Fabric) -> dict[str, list[dict[str, Any]]]:
    """Port -> the bandwidth that BGP announces for it: prefixes, and Mbit/s. Empty without `routing.ucmp`."""
    return {
        ref: [
            {"mbit": rule.mbit, "prefixes": [fabric.prefixes[edge] for edge in edges_of(rule.edges)]} for rule in rules
        ]
        for ref, rules in fabric.announcements.items()
    }


def _maximum_paths(fabric: Fabric, node: Node) -> int:
    """The largest number of equal-cost next hops to any edge; not larger, since FRR sizes its next-hop tables by it."""
    if fabric.level_of(node).prepends:  # when a link fails, more paths can be equal than before
        return max(1, fabric.uplinks_of(node))
    return max((len(hops) for hops in fabric.expected_next_hops[node.name].values()), default=1)


def _is_stub(fabric: Fabric, node: Node) -> bool:
    """Whether all neighbours of a switch are in one AS: no path leads through it (RFC 4271, 9.1.2: an AS loop)."""
    return len({fabric.by_name[port.peer_node].asn for port in node.ports if port.address is None}) == 1


def _write(path: Path, text: str) -> None:
    """Write one file, with modes that do not depend on the user's umask."""
    if not path.parent.exists():
        path.parent.mkdir()
        path.parent.chmod(0o755)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def _place(staging: Path, out: Path, names: list[str]) -> None:
    """Move the finished files to `out`."""
    if not out.exists():
        staging.rename(out)
        return
    for name in names:
        target = out / name
        target.parent.mkdir(exist_ok=True)
        os.replace(staging / name, target)  # noqa: PTH105 - atomic
