"""One step of a path as a word: a port, or all ports over which packets of one flow are spread.

`rtsw1:eth1`; `rtsw1:{eth1,eth2}` if one switch spreads; `{ctsw1:eth2,ctsw2:eth2}` if several switches forward the flow.
Prediction and oracle write them, proofs read them.
"""

from __future__ import annotations

from collections.abc import Iterable


def element(ports: Iterable[str]) -> str:
    """One step as a word. ports: `rtsw1:eth1`, at least one; their order is kept."""
    by_switch: dict[str, list[str]] = {}
    for ref in ports:
        switch, _, port = ref.partition(":")
        if port not in by_switch.setdefault(switch, []):
            by_switch[switch].append(port)
    if len(by_switch) == 1:
        ((switch, names),) = by_switch.items()
        return f"{switch}:{names[0]}" if len(names) == 1 else f"{switch}:{{{','.join(names)}}}"
    return "{" + ",".join(f"{switch}:{name}" for switch, names in by_switch.items() for name in names) + "}"


def ports_of(word: str) -> tuple[str, ...]:
    """The ports of a step."""
    if word.startswith("{"):
        return tuple(word[1:-1].split(","))
    switch, _, port = word.partition(":")
    if port.startswith("{"):
        return tuple(f"{switch}:{name}" for name in port[1:-1].split(","))
    return (word,)


def spreads(path: Iterable[str]) -> bool:
    """Whether any step of a path is more than one port."""
    return any("{" in word for word in path)
