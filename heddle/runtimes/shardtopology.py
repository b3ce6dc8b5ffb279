"""The topology of one shard: its part of a rendered topology, where a cut link is a VXLAN link, as in containerlab.

In:  the whole topology; the nodes of each shard, and their addresses; the ids of ports.
Out: NAME.clab.yml with the nodes of one shard. A VXLAN link of it has the id of the far port as `vni`, the address of
the far shard as `remote`, the port of the tunnels as `dst-port`, and the id of its own port as `vars.port`.
"""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

_FILES: Final = "utf-8"


def write_part(
    topology: Path,
    shards: Mapping[str, Sequence[str]],
    shard: str,
    addresses: Mapping[str, str],
    ids: Mapping[tuple[str, str], int],
    tunnel_port: int,
) -> None:
    """Replace the whole topology in a file by the part of one shard."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(topology.read_text(encoding=_FILES), Loader=loader)  # noqa: S506 - both are safe loaders
    home = {node: name for name, nodes in shards.items() for node in nodes}
    part = data["topology"]
    part["nodes"] = {name: own for name, own in part["nodes"].items() if home[name] == shard}
    links = []
    for link in part.get("links") or []:
        ends = [_end(each) for each in link["endpoints"]]
        here = [end for end in ends if home[end["node"]] == shard]
        if len(here) == len(ends):
            links.append(link)
        elif here:
            (own,), (far,) = here, [end for end in ends if end not in here]
            number, other = (ids[end["node"], end["interface"]] for end in (own, far))
            links.append({
                "type": "vxlan", "endpoint": own, "remote": addresses[home[far["node"]]], "vni": other,
                "dst-port": tunnel_port, "vars": {"port": number}, **({"mtu": link["mtu"]} if "mtu" in link else {}),
            })  # fmt: skip
    part["links"] = links
    topology.write_text(yaml.safe_dump(data, sort_keys=False), encoding=_FILES)


def change_addresses(topology: Path, moved: Mapping[str, str]) -> None:
    """Replace the addresses of far shards in the topology of a shard. moved: old address -> new one."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(topology.read_text(encoding=_FILES), Loader=loader)  # noqa: S506 - both are safe loaders
    for link in data["topology"]["links"]:
        if link.get("type") == "vxlan":
            link["remote"] = moved.get(str(link["remote"]), link["remote"])
    topology.write_text(yaml.safe_dump(data, sort_keys=False), encoding=_FILES)


def _end(raw: Any) -> dict[str, Any]:
    if isinstance(raw, str):
        node, _, interface = raw.partition(":")
        return {"node": node, "interface": interface}
    return {key: raw[key] for key in ("node", "interface", "mac") if key in raw}


def packed(directory: Path) -> str:
    """The files of a directory as text: a compressed tar in base85."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(directory).as_posix(), recursive=False)
    return base64.b85encode(content.getvalue()).decode()


def unpack(text: str, directory: Path) -> None:
    """Write the files of `packed` into a directory: plain files below it only."""
    with tarfile.open(fileobj=io.BytesIO(base64.b85decode(text)), mode="r:gz") as tar:
        tar.extractall(directory, filter="data")
