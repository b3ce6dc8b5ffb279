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

from heddle.base.untrusted import UNPACKED_BYTES, UNPACKED_FILES, inflated, is_safe_name

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


def unpack(text: str, directory: Path, most: int = UNPACKED_BYTES) -> int:
    """Write the files of `packed` into a directory: plain files below it only, and not executable.

    The text may come from a pod: ValueError for anything else, and for more than `most` bytes, before a file is
    written. Returns their bytes.
    """
    whole, found = inflated(base64.b85decode(text), min(most, UNPACKED_BYTES), gzip=True), dict[Path, slice]()
    try:
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
            for member in tar:
                names, end = member.name.split("/"), member.offset_data + member.size
                path = directory.joinpath(*names)
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
                if (
                    not plain
                    or not all(map(is_safe_name, names))
                    or path in found
                    or not 0 <= member.size <= end <= len(whole)
                ):
                    raise ValueError(f"has a file that is not plain, whole and alone: {member.name!r}")
                if len(found) >= UNPACKED_FILES:
                    raise ValueError(f"has more than {UNPACKED_FILES} files")
                found[path] = slice(member.offset_data, end)
    except (tarfile.TarError, EOFError, RecursionError) as error:
        raise ValueError(f"is not an archive: {error}") from None
    for path, part in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole[part])
        path.chmod(0o644)  # whatever the umask is: daemons read them as another user
    return len(whole)
