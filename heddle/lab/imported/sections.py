"""Inheritance in a containerlab file: the sections from which a node gets its keys, and how they are merged.

Source: containerlab 0.79, types/topology.go (GetNodeKind, GetNodeGroup, getField, mergeStringSliceFields).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from heddle.lab.imported.grammar import GROUPS, LISTS
from heddle.spec.yamlfile import Trail

Add = Callable[..., None]
Layer = tuple[Trail, Mapping[str, Any]]
_NODES: Final = ("topology", "nodes")


class Sections:
    """`defaults`, `kinds`, `groups` and `nodes` of one file; a value of the wrong type is reported and ignored."""

    def __init__(self, part: Mapping[str, Any], add: Add) -> None:
        self._add = add
        self._nodes = self._group(part.get("nodes"), _NODES)
        self._kinds = self._group(part.get("kinds"), ("topology", "kinds"))
        self._groups = self._group(part.get("groups"), ("topology", "groups"))
        self._defaults = self._group(part.get("defaults"), ("topology", "defaults"))
        self._seen: dict[Trail, Mapping[str, Any]] = {}

    def _group(self, value: Any, trail: Trail) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._add(trail, ".".join(map(str, trail[1:])), "is no group of keys")
            return {}
        return value

    def _own(self, node: str) -> Mapping[str, Any]:
        return self._section(self._nodes, (*_NODES, node))

    def _section(self, sections: Mapping[str, Any], trail: Trail) -> Mapping[str, Any]:
        """One section, checked once."""
        if trail not in self._seen:
            self._seen[trail] = self._group(sections.get(str(trail[-1])), trail)
        return self._seen[trail]

    def kind_of(self, node: str) -> str:
        """The node's kind: its own, its group's, the default group's, or the default kind."""
        return str(self._kind(node)[1] or "")

    def kind_trail(self, node: str) -> Trail:
        """The key that sets the node's kind."""
        return self._kind(node)[0]

    def _kind(self, node: str) -> tuple[Trail, Any]:
        own = self._own(node)
        for group in (own.get("group"), self._defaults.get("group")):
            if own.get("kind"):
                return (*_NODES, node, "kind"), own["kind"]
            trail: Trail = ("topology", "groups", str(group))
            if group in self._groups and (kind := self._section(self._groups, trail).get("kind")):
                return (*trail, "kind"), kind
        if kind := self._defaults.get("kind"):
            return ("topology", "defaults", "kind"), kind
        return (*_NODES, node), None

    def group_of(self, node: str) -> str:
        """The node's group: its own, its kind's, or the default group."""
        kind = self._section(self._kinds, ("topology", "kinds", self.kind_of(node)))
        return str(self._own(node).get("group") or kind.get("group") or self._defaults.get("group") or "")

    def layers(self, node: str) -> list[Layer]:
        """The sections that a node inherits from, and its own; least specific first."""
        kind: Trail = ("topology", "kinds", self.kind_of(node))
        group: Trail = ("topology", "groups", self.group_of(node))
        return [
            (("topology", "defaults"), self._defaults),
            (kind, self._section(self._kinds, kind)),
            (group, self._section(self._groups, group)),
            ((*_NODES, node), self._own(node)),
        ]

    def merged(self, layers: list[Layer]) -> dict[str, Any]:
        """Key -> value: groups are merged, lists concatenated without duplicates; else the nearest value is used."""
        found: dict[str, Any] = {}
        for trail, layer in layers:
            for key, value in layer.items():
                if key in GROUPS:
                    found[key] = {**found.get(key, {}), **self._texts((*trail, key), value)}
                elif key in LISTS:
                    have = found.setdefault(key, [])
                    have += [text for _, text in self._items((*trail, key), value) if text not in have]
                elif value not in (None, ""):
                    found[key] = value
        return found

    def listed(self, layers: list[Layer], key: str) -> list[tuple[Trail, str]]:
        """The items of a list from all levels, each with its place in the file, without duplicates."""
        found: dict[str, Trail] = {}
        for trail, layer in layers:
            for where, text in self._items((*trail, key), layer.get(key)):
                found.setdefault(text, where)
        return [(where, text) for text, where in found.items()]

    def _items(self, trail: Trail, value: Any) -> list[tuple[Trail, str]]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self._once(trail, "is no list of texts", "a text with ': ' in it needs quotes")
            return []
        return [((*trail, i), str(each)) for i, each in enumerate(value)]

    def _texts(self, trail: Trail, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
            self._once(trail, "is no group of texts")
            return {}
        return {str(k): "" if v is None else str(v) for k, v in value.items()}

    def _once(self, trail: Trail, why: str, hint: str = "") -> None:
        """Report a problem once, although a section is read for every node that inherits from it."""
        if trail not in self._seen:
            self._seen[trail] = {}
            self._add(trail, ".".join(map(str, trail[1:])), why, hint)
