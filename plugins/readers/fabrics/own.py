"""What a file of another tool needs of a fabric: links as on hardware, and a comment with what the format cannot say.

In:  LoadedFabric. Out: values and lines. The comment `# heddle: name=zone nics_per_host=2 k=8000` is read back on an
import, so that a fabric that Heddle wrote comes back unchanged; other tools skip it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import LoadedFabric

_OWN: Final = re.compile(r"# heddle:((?: [a-z_]+=[a-z0-9]{1,12})+)")
_SHAPES: Final = ("clos", "rail", "fat-tree")


class HardwareLink(NamedTuple):
    """A link with node and port of both ends; bit/s, nanoseconds one way and share of lost packets on hardware.

    tier: 0 for a link of a host, as other tools count.
    """

    a: tuple[str, str]
    b: tuple[str, str]
    rate_bps: int
    delay_ns: int
    loss: float
    tier: int


def hardware(loaded: LoadedFabric) -> Iterator[HardwareLink]:
    """The links: first those of hosts in the order of NICs, then upwards, as other tools list them."""
    fabric, link = loaded.fabric, loaded.spec.link
    if loaded.spec.shape not in _SHAPES:
        hint = f"use {', '.join(_SHAPES)}"
        raise InputError(Problem("", f"shape {loaded.spec.shape}", "has no form in other tools", hint))
    delays = fabric.policy.delays
    for each in sorted(fabric.links, key=lambda each: fabric.by_name[each.a[0]].level):  # stable
        tier = fabric.by_name[each.a[0]].level
        loss = getattr(link, "loss")  # noqa: B009 - made from the table of faults
        share = loss.fabric if tier else loss.host
        yield HardwareLink(
            each.a, each.b, each.rate_bps * loaded.spec.k, delays[tier] if delays else 0, share, tier
        )  # fmt: skip


def own_line(loaded: LoadedFabric) -> str:
    """The comment."""
    each = len(loaded.fabric.nics) // len(loaded.fabric.hosts)
    rail = " shape=rail" if loaded.spec.shape == "rail" and each == 1 else ""  # in other tools it is a clos
    return f"# heddle: name={loaded.fabric.name} nics_per_host={each} k={loaded.spec.k}{rail}"


def own_values(lines: Iterable[str]) -> dict[str, str]:
    """The values of the comment, where a file has one. Numbers are digits."""
    found = next((match for line in lines if (match := _OWN.fullmatch(line.strip()))), None)
    values = dict(pair.split("=", 1) for pair in found[1].split()) if found else {}
    return {key: value for key, value in values.items() if key in ("name", "shape") or value.isdecimal()}
