"""The links of a user-supplied containerlab file, in the brief and in the extended form.

In:  the list as read, and the names of all nodes. Out: LinkDescriptions; problems and omissions go to the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from heddle.base.problems import did_you_mean
from heddle.lab.imported.description import EndDescription, LinkDescription
from heddle.lab.imported.grammar import END_KEYS, LINK_KEYS, OUTSIDE
from heddle.runtimes.netns_topology import DEFAULT_MTU
from heddle.spec.yamlfile import Trail

_LEAST_MTU: Final = 1280  # minimum for IPv6, as in a fabric file
_RATES: Final = (10**6, 10**10)  # bit/s, as in a fabric file
_INTERFACE: Final = re.compile(r"[^\s/:]{1,15}")  # IFNAMSIZ, dev_valid_name
_MAC: Final = re.compile(r"[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}")  # unicast


class LinkReader:
    """Reads links one by one. left: collects keys that are left out: why -> keys."""

    def __init__(self, add: Callable[..., None], left: dict[str, dict[str, None]], nodes: set[str]) -> None:
        self._add = add
        self._left = left
        self._nodes = nodes
        self._taken: dict[tuple[str, str], int] = {}

    def links(self, items: Any) -> tuple[LinkDescription, ...]:
        """All valid links."""
        if not isinstance(items, list):
            self._add(("topology", "links"), "links", "is no list")
            return ()
        found = (self._link(number, item) for number, item in enumerate(items))
        return tuple(link for link in found if link is not None)

    def _link(self, number: int, item: Any) -> LinkDescription | None:
        at: Trail = ("topology", "links", number)
        what = f"links[{number + 1}]"
        if not isinstance(item, dict):
            self._add(at, what, "is no link", 'endpoints: ["a:eth1", "b:eth1"]')
            return None
        kind = str(item.get("type") or "veth").lower()
        if kind not in ("veth", "brief"):
            why = OUTSIDE.get(kind, "is no type of link")
            why = f"{why}, but a link must connect two nodes of the lab" if kind in OUTSIDE else why
            self._add((*at, "type"), f"{what}.type: {kind}", why, "veth")
            return None
        for key in item:
            if key not in LINK_KEYS:
                self._add((*at, key), f"{what}.{key}", "is no key of a link", did_you_mean(key, sorted(LINK_KEYS)))
            elif key in ("ipv4", "ipv6"):
                self._left.setdefault("containerlab gives them to no node of kind linux either", {})[key] = None
        ends = item.get("endpoints")
        if not isinstance(ends, list) or len(ends) != 2:
            self._add((*at, "endpoints"), f"{what}.endpoints", "must be two", '["a:eth1", "b:eth1"]')
            return None
        a, b = (self._end((*at, "endpoints", i), f"{what}.endpoints[{i + 1}]", end) for i, end in enumerate(ends))
        mtu = self._number((*at, "mtu"), f"{what}.mtu", item.get("mtu"), (_LEAST_MTU, 65535))
        rate = self._rate(at, what, item.get("vars"))
        if a is None or b is None:
            return None
        return LinkDescription((a, b), mtu or DEFAULT_MTU, rate)

    def _rate(self, at: Trail, what: str, variables: Any) -> int | None:
        given = variables.get("rate_bps") if isinstance(variables, dict) else None
        return self._number((*at, "vars", "rate_bps"), f"{what}.vars.rate_bps", given, _RATES)

    def _number(self, trail: Trail, what: str, given: Any, bounds: tuple[int, int]) -> int | None:
        if given is None:
            return None
        low, high = bounds
        if not isinstance(given, str) or not given.isdigit() or not low <= int(given) <= high:
            self._add(trail, f"{what}: {given}", f"is not a number from {low:,} to {high:,}")
            return None
        return int(given)

    def _end(self, trail: Trail, what: str, raw: Any) -> EndDescription | None:
        if isinstance(raw, dict):
            for key in raw:
                if key not in END_KEYS:
                    hint = did_you_mean(key, sorted(END_KEYS))
                    self._add((*trail, key), f"{what}.{key}", "is no key of an endpoint", hint)
                elif key in ("ipv4", "ipv6"):
                    self._left.setdefault("containerlab gives them to no node of kind linux either", {})[key] = None
            node, interface, mac = (str(raw.get(key) or "") for key in ("node", "interface", "mac"))
        else:
            node, _, interface = str(raw or "").partition(":")
            mac = ""
        if node in OUTSIDE and node not in self._nodes:
            self._add(trail, f"{what}: {raw}", f"{OUTSIDE[node]}, but a link must connect two nodes of the lab")
            return None
        if not node or not interface:
            self._add(trail, what, "is not a node and an interface", "leaf1:eth1")
            return None
        if node not in self._nodes:
            self._add(
                trail, f"{what}: {node}", "is not a node of this topology", did_you_mean(node, sorted(self._nodes))
            )
            return None
        if not _INTERFACE.fullmatch(interface) or interface in (".", "..", "lo"):
            why = "is no valid interface name: 15 letters at most, no spaces, / or :"
            self._add(trail, f"{what}: {interface}", why)
            return None
        if mac and not _MAC.fullmatch(mac):
            self._add((*trail, "mac"), f"{what}.mac: {mac}", "is no unicast address", "02:00:00:00:00:01")
        if (node, interface) in self._taken:
            why = f"has a link already: links[{self._taken[node, interface]}]"
            self._add(trail, f"{what}: {node}:{interface}", why)
            return None
        self._taken[node, interface] = int(trail[2]) + 1
        return EndDescription(node, interface, mac.lower())
