"""Nodes whose routing software or its configuration is in an image only, which namespaces do not use.

In:  a TopologyDescription for namespaces.
Out: warnings for the user before anything starts, one for each image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from heddle.base.tables import some_of
from heddle.lab.imported import frr
from heddle.lab.imported.copy import is_heddles
from heddle.lab.imported.description import NodeDescription, TopologyDescription

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
