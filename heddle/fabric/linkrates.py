"""Rates of links that differ from the rate of their tier: `link.exceptions` of a fabric file.

In:  names of nodes and ports, and the built fabric (unknown), or the ends of a link (rate_of).
Out: the error in a name of the file, or the rate of one link.
An exception names a node (`ctsw2`: all its links) or a port (`rtsw1:eth3`: the link behind it, both ways).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric

_NAME: Final = re.compile(r"([a-z]+)([1-9][0-9]*)(?::eth([1-9][0-9]*))?")


def unknown(name: str, fabric: Fabric) -> tuple[str, str] | None:
    """The reason that `name` is not a node or port of the fabric, and a hint; None when it is one."""
    node, _, port = name.partition(":")
    found = fabric.by_name.get(node)
    if found is not None and (port in {each.name for each in found.ports} or name == node):
        return None
    words = {level.word: level.title for level in fabric.levels}
    parts = _NAME.fullmatch(name)
    if parts is None or parts[1] not in words:
        low, *above = [*words][1:]
        return "is neither a node nor a port", f"write a node as {above[0] if above else low}2, a port as {low}1:eth3"
    word = parts[1]
    level = [*words].index(word)
    title = words[word] if level else word
    count = sum(each.level == level for each in fabric.nodes)
    if not count:
        return f"is not a node: the fabric has no {title}", ""
    if found is None:
        return "is not a node of this fabric", f"use {word}1 to {word}{count}"
    return f"is not a port: a {title} has {len(found.ports)} ports", f"use eth1 to eth{len(found.ports)}"


def rate_of(exceptions: Mapping[str, int], a: tuple[str, str], b: tuple[str, str], usual: int) -> int:
    """bit/s of the link between two ports (node and port name): the ports' exception, else the nodes', else `usual`.

    If both ends have an exception, the lower rate counts.
    """
    if not exceptions:
        return usual
    for names in ((f"{a[0]}:{a[1]}", f"{b[0]}:{b[1]}"), (a[0], b[0])):
        named = [exceptions[name] for name in names if name in exceptions]
        if named:
            return min(named)
    return usual
