"""htsim's `.topo` files: tiers of a fat tree by their radix and speed.

Source: FatTreeTopologyCfg of ultraethernet/uet-htsim (sim/datacenter/fat_tree_topology.cpp). Keys are case-insensitive.
In three tiers, a switch of tier 1 is linked to only a part of tier 2, unless its pod has no other one: a `fat-tree` if
all counts are those of one radix. In a `clos` it is linked to all. A switch's latency is given half to each link at its
side: every path has the same sum as in htsim.
"""

from __future__ import annotations

from typing import Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration
from heddle.fabric.fabricfile import LoadedFabric
from heddle.spec.yamlfile import ReadOptions, read_text
from heddle_plugins.readers.fabrics.graph import OtherShape
from heddle_plugins.readers.fabrics.own import hardware, own_line, own_values

_FILE: Final = ReadOptions(kind="topology")
_HEADER: Final = ("nodes", "tiers", "podsize")
_TIER: Final = (
    "downlink_speed_gbps", "radix_down", "radix_up", "queue_up", "queue_down", "oversubscribed", "bundle",
    "switch_latency_ns", "downlink_latency_ns",
)  # fmt: skip
_MOST: Final = 10**6


class _Topo:
    """The values of a file. (tier, key) -> value and line; the header is tier -1."""

    def __init__(self, file: str) -> None:
        self.file, self._values = file, dict[tuple[int, str], tuple[int, int]]()
        lines = read_text(real(file), file, _FILE).split("\n")
        self.own, tier = own_values(lines), -1
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            key, value = words[0].lower(), words[1] if len(words) == 2 else ""
            if not value.isdecimal() or int(value[:20]) > _MOST:
                raise self.wrong(number, line.strip(), f"is not a key and a whole number up to {_MOST}")
            if key == "tier":
                tier = int(value)
                if tier > 2:
                    raise self.wrong(number, f"Tier {tier}", "is above 2: tiers are 0, 1 and 2")
                continue
            known = _HEADER if tier < 0 else _TIER
            if key not in known:
                raise self.wrong(number, words[0], "is not a key here", f"keys are {', '.join(known)}")
            if (tier, key) in self._values:
                raise self.wrong(number, words[0], f"is there twice, first in line {self._values[tier, key][1]}")
            self._values[tier, key] = int(value), number

    def wrong(self, line: int, what: str, why: str, hint: str = "") -> InputError:
        where = f"{self.file}:{line}" if line else self.file
        return InputError(Problem(where, what[:60], why, hint))

    def line(self, tier: int, key: str) -> int:
        return self._values.get((tier, key), (0, 0))[1]

    def get(self, tier: int, key: str, default: int | None = None) -> int:
        """A value; 0 is as if it were not there, as in htsim's reader."""
        value, line = self._values.get((tier, key), (0, 0))
        if value or default is not None:
            return value or default or 0
        word = key if tier < 0 else f"{key} of tier {tier}"
        raise self.wrong(line, word, "is 0" if line else "is missing", "htsim needs a number above 0")


def read(file: str, together: int | None = None) -> OtherShape:
    """The shape of a file. together: NICs of a host, where the user sets it. InputError."""
    topo = _Topo(file)
    nodes, tiers, pod = (topo.get(-1, key) for key in _HEADER)
    if tiers not in (2, 3):
        raise topo.wrong(topo.line(-1, "tiers"), f"Tiers {tiers}", "is not 2 or 3")
    down = [topo.get(tier, "radix_down") for tier in range(tiers)]
    up = [topo.get(tier, "radix_up") for tier in range(tiers - 1)]
    speed = [topo.get(tier, "downlink_speed_gbps") * 10**9 for tier in range(tiers)]
    for tier in range(tiers):
        if (bundle := topo.get(tier, "bundle", 1)) != 1:
            why = "puts several links between two switches: Heddle has one"
            line, hint = topo.line(tier, "bundle"), "multiply the speed by the bundle, and divide the radix by it"
            raise topo.wrong(line, f"Bundle {bundle}", why, hint)
    each = together or int(topo.own.get("nics_per_host", "1"))
    pods, racks = nodes // pod, pod // down[0]
    keys: dict[str, int | str] = {"shape": "clos"}
    fits = [
        (nodes % pod == 0, -1, "podsize", f"does not divide the {nodes} nodes"),
        (pod % down[0] == 0, 0, "radix_down", f"does not divide the {pod} nodes of a pod"),
        (tiers == 3 or pods == 1, -1, "podsize", f"is not the {nodes} nodes: two tiers are one pod"),
        (racks == down[1], 1, "radix_down", f"is not {racks}, the switches of tier 0 in a pod"),
        (down[0] % each == 0, 0, "radix_down", f"is not a multiple of nics_per_host, {each}"),
    ]
    if tiers == 3:
        why = (
            f"makes {up[0]} switches of tier 1 in a pod, each with its own part of tier 2, but no fat tree of one radix"
        )
        tree = up[0] == up[1] == racks > 1 and pods == 2 * racks
        fits += [
            (down[2] == pods, 2, "radix_down", f"is not {pods}, the switches of tier 1"),
            (up[0] == 1 or tree, 0, "radix_up", why),
            (pods > 1, -1, "podsize", "makes one pod, so that tier 2 joins nothing: write two tiers"),
        ]
        keys["zones"] = pods
    for good, tier, key, why in fits:
        if not good:
            hint = "write two tiers, or one switch of tier 1 in each pod" if "its own part" in why else ""
            raise topo.wrong(topo.line(tier, key), f"{key} {topo.get(tier, key)}", why, hint)
    if tiers == 3 and tree:
        keys = {"shape": "fat-tree", "radix": pods, "hosts_per_edge": down[0] // each, "nics_per_host": each}
    else:
        keys |= {"racks": racks, "ctsw": up[0], **({"atsw": up[1]} if tiers == 3 else {})}
        keys |= {"hosts_per_rack": down[0] // each, "nics_per_host": each}
    delays = _delays(topo, tiers)
    found = OtherShape({**keys, **delays}, tuple(speed), {}, [], topo.own)
    queues = [key for tier in range(tiers) for key in ("queue_up", "queue_down") if topo.line(tier, key)]
    if queues:
        found.notes.append(f"{len(queues)} sizes of queues are left out: set queues.buffer")
    return found


def _delays(topo: _Topo, tiers: int) -> dict[str, str]:
    half = [topo.get(tier, "switch_latency_ns", 0) / 2 for tier in range(tiers)]
    links = [topo.get(tier, "downlink_latency_ns") + half[tier] for tier in range(tiers)]
    links = [link + (half[tier - 1] if tier else 0) for tier, link in enumerate(links)]
    if links[2:] and links[2] != links[1]:
        line = topo.line(2, "downlink_latency_ns")
        why = f"makes links of {links[2]:g} ns, and those of tier 1 have {links[1]:g} ns: Heddle has one delay for both"
        raise topo.wrong(line, "tier 2", why, "write the same latencies in tier 1 and 2")
    words = {"host": round(links[0]), "fabric": round(links[1])}
    return {f"link.delay.{word}": format_duration(ns) for word, ns in words.items() if ns}


def topo(loaded: LoadedFabric) -> tuple[str, str]:
    """The file's name and text. InputError for what htsim's reader refuses."""
    fabric, spec = loaded.fabric, loaded.spec
    links = [*hardware(loaded)]

    def refuse(what: str, why: str, hint: str) -> InputError:
        return InputError(Problem("", what, f"cannot be a .topo file: {why}", hint))

    tree = spec.shape == "fat-tree"
    counts = ("radix", "half", "half", "half") if tree else ("zones", "racks", "ctsw", "atsw")
    zones, racks, spines, tops = (getattr(spec, key, 0) or 0 for key in counts)
    if spec.shape == "rail":
        raise refuse(f"shape {spec.shape}", "htsim has no rails", "use shape: clos")
    if tops and spines > 1 and not tree:
        raise refuse(f"ctsw {spines}", "htsim links a switch of tier 1 to a part of tier 2 only", "use ctsw: 1")
    rates = [{link.rate_bps for link in links if link.tier == level} for level in range(3)]
    if any(len(each) > 1 for each in rates):
        raise refuse("link.exceptions", "htsim has one speed for each tier", "remove link.exceptions")
    if any(link.loss for link in links):
        raise refuse("link.loss", "htsim's links lose nothing", "remove link.loss")
    speeds = [each.pop() for each in rates if each]
    if (odd := next((rate for rate in speeds if rate % 10**9), 0)) or not speeds:
        raise refuse(
            f"a link of {odd / 10**9:g} Gbit/s", "htsim has whole Gbit/s", "set scale, or link.host and link.fabric"
        )
    down = [len(fabric.nics) // (zones * racks), racks, zones]
    up = [spines, tops]
    text = [
        f"Nodes {len(fabric.nics)}",
        f"Tiers {len(speeds)}",
        f"Podsize {len(fabric.nics) // zones}",
        own_line(loaded),
    ]
    for tier, speed in enumerate(speeds):
        last = tier == len(speeds) - 1
        ratio = 1 if last else down[tier] // up[tier]
        if not last and down[tier] * speed != up[tier] * speeds[tier + 1] * ratio:
            why = f"tier {tier} has {down[tier]} links down and {up[tier]} up: htsim needs a whole ratio of their rates"
            raise refuse(fabric.name, why, "make links down a multiple of links up, at one rate")
        if not (delay := next(link.delay_ns for link in links if link.tier == tier)):
            raise refuse("link.delay: 0", "htsim needs a latency of every link", "add --set link.delay=1us")
        text += ["", f"Tier {tier}", f"Downlink_speed_Gbps {speed // 10**9}", f"Radix_Down {down[tier]}"]
        text += [] if last else [f"Radix_Up {up[tier]}", f"Oversubscribed {ratio}"]
        text += [f"Downlink_Latency_ns {delay}", "Switch_Latency_ns 0"]
    return f"{fabric.name}.topo", "\n".join([*text, ""])
