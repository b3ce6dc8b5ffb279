"""Cut a rendered topology: each shard gets its own nodes and links, and the files that they use.

In:  the topology, its fabric, the nodes and the address of each shard.
Out: a text for each shard (netns_topology.packed): its topology as JSON, and files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from heddle.fabric.model import Fabric
from heddle.runtimes.netns_topology import End, NodeDef, packed_files, read_topology
from heddle.switch.queues.classes import far_ids, port_ids


def parts(
    path: Path,
    fabric: Fabric,
    shards: Mapping[str, Collection[str]],
    addresses: Mapping[str, str],
    tunnel_port: int,
    only: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Shard -> its part, for those in `only`, one after the other. path: of the topology, beside its files."""
    whole, numbers = read_topology(path), port_ids(fabric)
    home = {node: name for name, nodes in shards.items() for node in nodes}
    links: dict[str, list[dict[str, Any]]] = {name: [] for name in shards}
    ids = {name: {**port_ids(part), **far_ids(part)} for name in only for part in [fabric.of_shard(shards[name])]}
    for link in whole.links:
        for own, far in ((link.a, link.b), (link.b, link.a)):
            name, there = home[own.node], home[far.node]
            if name == there:
                links[name] += [{"endpoints": [_end(own), _end(far)], "mtu": link.mtu}] if own is link.a else []
            elif name in ids:
                pair = [(each.node, each.interface) for each in (own, far)]
                near, its = (ids[name][each] for each in pair)
                links[name].append({
                    "type": "vxlan", "endpoint": _end(own), "mtu": link.mtu, "remote": addresses[there],
                    "vni": numbers[pair[1]], "dst-port": tunnel_port,
                    "vars": {"port": near, "peer": its, "vni": numbers[pair[0]]},
                })  # fmt: skip
    files = {
        file.relative_to(path.parent).as_posix(): file for file in sorted(path.parent.rglob("*")) if file.is_file()
    }
    for name in only:
        links[name].sort(key=lambda each: each.get("vars", {}).get("peer", 0))  # stubs share filters (cuts.py)
        nodes = {node: _node(whole.nodes[node], path.parent) for node in shards[name]}
        part = {"name": whole.name, "topology": {"nodes": nodes, "links": links[name]}}
        content = {where: file.read_bytes() for where, file in files.items()
                   if home.get(where.partition("/")[0]) == name}  # fmt: skip
        yield name, packed_files({path.name: json.dumps(part).encode(), **content})


def change_addresses(path: Path, moved: Mapping[str, str]) -> None:
    """Replace the addresses of far shards in the topology of a shard. moved: old address -> new one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for link in data["topology"]["links"]:
        if "remote" in link:
            link["remote"] = moved.get(link["remote"], link["remote"])
    path.write_text(json.dumps(data), encoding="utf-8")


def _node(node: NodeDef, directory: Path) -> dict[str, Any]:
    binds = [f"{b.source.relative_to(directory)}:{b.target}{':ro' * b.read_only}" for b in node.binds]
    plain = {name: dict(getattr(node, name)) for name in ("sysctls", "labels", "env")}
    return {**plain, "binds": binds, "exec": list(node.exec)}


def _end(end: End) -> dict[str, str]:
    return {"node": end.node, "interface": end.interface, **({} if end.mac is None else {"mac": end.mac})}
