"""Rates of links that differ from their tier's: `link.exceptions` of a fabric file.

In:  how many nodes of each kind a fabric has, and how many ports each of them.
Out: what is wrong with a name in the file, or the rate of one link.
An exception names a node (`ctsw2`: all its links) or a port (`rtsw1:eth3`: the link behind it, both ways).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME: Final = re.compile(r"(rtsw|ctsw|atsw|host)([1-9][0-9]*)(?::eth([1-9][0-9]*))?")


def unknown(name: str, kinds: Mapping[str, tuple[int, int]]) -> tuple[str, str] | None:
    """Why `name` is no node or port of the fabric, and a hint; None when it is one.

    kinds: kind (`rtsw`) -> how many there are, and how many ports each of them has.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return "is neither a node nor a port", "a node is ctsw2, a port rtsw1:eth3"
    kind, index, port = found[1], int(found[2]), int(found[3] or 1)
    count, ports = kinds.get(kind, (0, 0))
    if not count:
        return f"is no node: the fabric has no {kind.upper()}", ""
    if index > count:
        return "is no node of this fabric", f"{kind}1 to {kind}{count} are"
    if port > ports:
        return f"is no port: a {kind.upper() if kind != 'host' else kind} has {ports} of them", f"eth1 to eth{ports}"
    return None


def rate_of(exceptions: Mapping[str, int], a: tuple[str, str], b: tuple[str, str], usual: int) -> int:
    """bit/s of the link between two ports (node and port name): its ports' exception, else its nodes', else the usual.

    Where both ends are named, the lower rate counts.
    """
    if not exceptions:
        return usual
    for names in ((f"{a[0]}:{a[1]}", f"{b[0]}:{b[1]}"), (a[0], b[0])):
        named = [exceptions[name] for name in names if name in exceptions]
        if named:
            return min(named)
    return usual
