"""Read a user-supplied containerlab file, and report everything that is not supported, by line.

In:  the file, the lab's name, the runtime.
Out: a TopologyDescription. InputError with all kinds, keys and values that are not supported, each with file and line.
Inheritance is containerlab's (types/topology.go of 0.79): node, then group, kind, defaults; groups merge, lists add up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base.files import absent
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.base.tables import some_of
from heddle.lab.imported import grammar
from heddle.lab.imported.description import (
    BindDescription,
    EndDescription,
    LinkDescription,
    NodeDescription,
    TopologyDescription,
)
from heddle.lab.imported.grammar import (
    DIRECTORIES,
    END_KEYS,
    LINK_KEYS,
    OUTSIDE,
    Sections,
    as_text,
    drops_default,
    expand,
    lab_name,
    magic,
    main_process,
    no_command,
    resolved,
    sets_queue,
    with_sh,
)
from heddle.lab.imported.innamespace import absent_in_main, absent_program, no_view, reach_of, seen_anyway, with_bridges
from heddle.runtimes.netns_space import PROVIDED, WRITABLE, why_read_only
from heddle.runtimes.netns_topology import BIND_MODES, DEFAULT_MTU, NO_BIND, bind_target
from heddle.spec.yamlfile import Document, ReadOptions, Trail, parse, read_text

_READING: Final = ReadOptions(
    max_bytes=grammar.MOST_BYTES,
    values=grammar.MOST_VALUES,
    words=True,
    merges=True,
    kind="topology",
    example="docs/bring-your-own.md",
)
_SYSCTL: Final = re.compile(r"net(\.[A-Za-z0-9_-]+)+")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # a host's name has 63 letters at most (RFC 1123)
_OWN_FIELDS: Final = frozenset({"kind", "group", "binds", "exec", "sysctls", "labels", "env", "network-mode"})
_LEAST_MTU: Final = 1280  # minimum for IPv6, as in a fabric file
_RATES: Final = (10**6, 10**10)  # bit/s, as in a fabric file
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SHOWN: Final = 100  # characters of a value, in messages
_MOST_PROBLEMS: Final = 50  # of one file: each looks for similar words
_INTERFACE: Final = re.compile(r"[^\s/:]{1,15}")  # IFNAMSIZ, dev_valid_name
_MAC: Final = re.compile(r"[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}")  # unicast


def holds_topology(path: Path) -> bool:
    """True when a file has a group `topology`. InputError when it cannot be read or is no YAML."""
    template = grammar.is_template_of_topology(read_text(path, str(path), _READING))
    return template or isinstance(read_document(path, str(path)).data.get("topology"), dict)


def read_description(path: Path, runtime: str, name: str | None, source: str) -> TopologyDescription:
    """Read the file. name: the lab's name, instead of the file's. source: the file's name in errors."""
    document = read_document(path, source)
    if "racks" in document.data and "topology" not in document.data:
        hint = f"./inv up {shlex.quote(source)} brings it up"
        raise InputError(Problem(source, "the file", "is a fabric file, not a containerlab topology", hint))
    return _DescriptionReader(document, path.absolute(), runtime).description(name)


def read_document(path: Path, source: str) -> Document:
    """The topology as data. InputError when it cannot be read, or is a template."""
    text = read_text(path, source, _READING)
    grammar.check_rendered(text, source)
    return parse(expand(text, source), source, _READING)


class _DescriptionReader:
    """Collects problems while reading; raises all of them at the end."""

    def __init__(self, document: Document, path: Path, runtime: str) -> None:
        self.document = document
        self.path = path
        self.runtime = runtime
        self.problems = Problems()
        self.left: dict[str, dict[str, None]] = {}  # why -> keys, in order of appearance
        self.read_only = why_read_only() if runtime == "netns" else ""
        self._judged: set[Trail] = set()
        self._values = 0
        self._commands: dict[str, str | None] = {}  # why each is no command: many nodes inherit the same ones

    def description(self, name: str | None) -> TopologyDescription:
        """The whole file, or InputError."""
        for key in self.document.data:
            if key not in grammar.TOP_KEYS:
                self.add((key,), key, "is no key of a topology", did_you_mean(key, grammar.TOP_KEYS))
            elif key in grammar.TOP_LEFT:
                self.left.setdefault(grammar.TOP_LEFT[key], {})[key] = None
        notes: list[str] = []
        lab = name or self._name(notes)
        part = self.document.data.get("topology")
        if not isinstance(part, dict) or not isinstance(part.get("nodes"), dict) or not part["nodes"]:
            self.add(("topology",), "topology.nodes", "has no nodes", "docs/bring-your-own.md has an example")
            self.problems.raise_if_any()
            raise AssertionError
        for key in part:
            if key not in grammar.TOPOLOGY_KEYS:
                hint = did_you_mean(key, grammar.TOPOLOGY_KEYS)
                self.add(("topology", key), f"topology.{key}", "is no key of a topology", hint)
        part, bridges = with_bridges(part)
        if bridges:
            notes.append(f"each bridge is one in a node of its own, not one of this machine: {some_of(bridges)}")
        sections = Sections(part, self.add, bridges)
        nodes = {each: node for each in part["nodes"] if (node := self._node(each, sections, lab)) is not None}
        links = _LinkReader(self.add, self.left, set(part["nodes"])).links(part.get("links") or [])
        self.problems.raise_if_any()
        notes += [f"left out: {', '.join(keys)} ({why})" for why, keys in self.left.items()]
        if self.read_only:
            why = f"this kernel cannot give them an own view: {self.read_only}"
            notes.append(f"nodes can write only below {', '.join((*WRITABLE, *PROVIDED))} ({why})")
        return TopologyDescription(lab, self.path, nodes, links, tuple(notes), self.read_only)

    def _name(self, notes: list[str]) -> str:
        """The file's own name, converted to a valid lab name."""
        own = self.document.data.get("name")
        if not isinstance(own, str) or not own:
            self.add(("name",), "name", "is missing", "name: mylab, or --name mylab")
            return ""
        lab = lab_name(own)
        if not lab:
            why = "has no letter for the start of a lab's name"
            self.add(("name",), f"name: {own}", why, "set the lab's name with --name")
        elif lab != own:
            notes.append(f"the lab of {own} is named {lab}: lower-case letters and digits, 12 at most")
        return lab

    def add(self, trail: Trail, what: str, why: str, hint: str = "") -> None:
        """Add a problem at the line of a key, or of the nearest key above it; once, although nodes inherit keys.

        InputError when there are too many.
        """
        if Problem(self.document.where(trail), what, why, hint) in self.problems.found:
            return
        self.problems.add(where=self.document.where(trail), what=what, why=why, hint=hint)
        if len(self.problems.found) >= _MOST_PROBLEMS:
            self.problems.add(where=self.path.name, what="the rest of the file", why="was not read: too many problems")
            self.problems.raise_if_any()

    def _node(self, name: str, sections: Sections, lab: str) -> NodeDescription | None:
        at: Trail = ("topology", "nodes", name)
        if _NODE_NAME.fullmatch(name) is None:
            why = "is no valid node name: use 63 letters, digits, - and _ at most, since BPF programs are pinned by it"
            self.add(at, f"nodes.{name}", why)
        kind = sections.kind_of(name)
        if kind != grammar.LINUX:
            trail = sections.kind_trail(name)
            what = f"nodes.{name}: kind {kind}" if kind else f"nodes.{name}"
            why, hint = grammar.kind_refused(kind) if kind else ("has no kind", "kind: linux")
            self.add(trail, what, why, hint)
            return None
        layers = sections.layers(name)
        for trail, layer in layers:
            self._judge(trail, layer)
        self._values += sum(len(each) if isinstance(each, list | dict) else 1 for _, d in layers for each in d.values())
        if self._values > grammar.MOST_VALUES:
            why = f"has more than {grammar.MOST_VALUES:,} values when inherited ones are written out"
            raise InputError(Problem(self.document.where(at), "the topology", why, "write a smaller topology"))
        merged = sections.merged(layers)
        supports = {key: grammar.node_key(key, self.runtime) for key in merged}
        passed = {k: v for k, v in merged.items() if (found := supports[k]) is not None and found.fate == "taken"}
        passed |= {key: as_text(passed[key]) for key in ("entrypoint", "cmd") if passed.get(key)}
        command = " ".join(passed[key] for key in ("entrypoint", "cmd") if passed.get(key))
        binds = [self._bind(*each, name, lab) for each in sections.listed(layers, "binds")]
        return NodeDescription(
            name=name,
            where=self.document.where(at),
            # By target, so that a node's own bind replaces its group's.
            binds=tuple({bind.target: bind for bind in binds if bind is not None}.values()),
            exec=tuple(self._exec(sections.listed(layers, "exec"), name, lab, [b.target for b in binds if b])),
            sysctls=merged.get("sysctls", {}),
            labels=merged.get("labels", {}),
            env=merged.get("env", {}),
            group=sections.group_of(name),
            image=str(merged.get("image") or ""),
            command=command,
            main=self._main(command, layers, [b.target for b in binds if b]) if self.runtime == "netns" else "",
            isolated=merged.get("network-mode") == "none",
            passed={k: v for k, v in passed.items() if k not in _OWN_FIELDS},
            reach=reach_of(merged, name, lab, self.path.parent, self.runtime),
        )

    def _judge(self, trail: Trail, layer: Mapping[str, Any]) -> None:
        """Check every key of a section, once even if many nodes inherit from it."""
        if trail in self._judged:
            return
        self._judged.add(trail)
        for key, value in layer.items():
            what = ".".join(str(step) for step in (*trail[1:], key))
            verdict = grammar.node_key(key, self.runtime, value)
            if verdict is None:
                hint = did_you_mean(key, grammar.ALL_NODE_KEYS)
                self.add((*trail, key), what, "is no key of a node", hint if "did you" in hint else "")
            elif verdict.fate == "refused":
                self.add((*trail, key), what, verdict.why, verdict.hint)
            elif verdict.fate == "left":
                self.left.setdefault(verdict.why, {})[key] = None
            elif key == "network-mode" and value not in ("none", "bridge"):
                why = "shares another network, but every node needs its own"
                self.add((*trail, key), f"{what}: {value}", why, "network-mode: none, or leave it out")
            elif key in ("cmd", "entrypoint") and isinstance(value, dict):
                self.add((*trail, key), what, "is a group of keys, but must be a command")
            elif key == "sysctls" and self.runtime == "netns":
                for name in value if isinstance(value, dict) else ():
                    if not _SYSCTL.fullmatch(name):
                        why = "is one value for the whole machine; a namespace has its own only below net."
                        hint = f"sysctl -w {name} on the machine, or leave it out"
                        self.add((*trail, key, name), f"{what}.{name}", why, hint)

    def _main(self, command: str, layers: list[grammar.Layer], targets: list[str]) -> str:
        """What a namespace runs of a container's command: Heddle starts FRR, and idle commands are left out."""
        keys = [((*trail, k), k) for trail, layer in layers for k in ("entrypoint", "cmd") if layer.get(k)]
        try:
            main = main_process(with_sh(command))
        except ValueError as error:
            hint = "use --runtime containerlab"
            self.add(keys[-1][0], f"{keys[-1][1]}: {command[:_SHOWN]}", str(error).lower(), hint)
            return ""
        if command and not main:
            self.left.setdefault("a namespace needs no main process", {}).update(dict.fromkeys(k for _, k in keys))
        elif main and (program := absent_in_main(main, targets)):
            self._absent(keys[-1][0], f"{keys[-1][1]}: {command[:_SHOWN]}", program)
        return main

    def _absent(self, trail: Trail, what: str, program: str) -> None:
        why = f"needs the program {program}, which this machine does not have; the image may have it"
        self.add(trail, what, why, "install it, leave it out, or use --runtime containerlab")

    def _bind(self, trail: Trail, text: str, node: str, lab: str) -> BindDescription | None:
        source, _, rest = magic(text, lab, node).partition(":")
        typed, _, mode = rest.partition(":")
        what, target = f"binds: {text[:_SHOWN]}", bind_target(typed)
        if not source or not target or set(mode.split(",")) - BIND_MODES:
            self.add(trail, what, NO_BIND)
            return None
        if any(word in source for word in DIRECTORIES):
            if self.runtime == "netns":
                why = "is in a directory that containerlab creates; a namespace has none"
                self.add(trail, what, why, "bind a file of your own, or use --runtime containerlab")
            return BindDescription(Path(source), target, mode)
        path = resolved(source, self.path.parent)
        if target.startswith("/var/run/"):  # a link to /run, everywhere
            target = target.removeprefix("/var")
        if self.runtime == "netns" and seen_anyway(path, target):
            return None
        if why := absent(path):
            self.add(trail, what, f"names {path}, which {why}", "paths are relative to the topology file")
        elif self.runtime == "netns" and (refused := no_view(path, target, self.read_only)):
            self.add(trail, what, *refused)
        return BindDescription(path, target, mode)

    def _exec(self, lines: list[tuple[Trail, str]], node: str, lab: str, targets: list[str]) -> list[str]:
        kept: list[str] = []
        for trail, line in lines:
            text = magic(with_sh(line) if self.runtime == "netns" else line, lab, node)
            if text not in self._commands:
                self._commands[text] = no_command(text)
            if (why := self._commands[text]) is not None:
                self.add(trail, f"exec: {line[:_SHOWN]}", why, "put it into a script, and bind that")
            elif any(word in text for word in DIRECTORIES) and self.runtime == "netns":
                self.add(trail, f"exec: {line}", "names a directory that containerlab creates; a namespace has none")
            elif self.runtime == "netns" and (program := absent_program(text, kept, targets)):
                self._absent(trail, f"exec: {line[:_SHOWN]}", program)
            elif sets_queue(text):
                why = "sets a queue, but Heddle installs its own at the root of every port"
                hint = "set a link's rate with vars: {rate_bps: 100000000}; other queues are not supported"
                self.add(trail, f"exec: {line}", why, hint)
            elif drops_default(text):
                why = "nodes have no default route out of the lab"
                self.left.setdefault(why, {})[line] = None
            else:
                kept.append(text)
        return kept


class _LinkReader:
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
            self._add((*at, "type"), f"{what}.type: {kind}", why, grammar.LINK_HINTS.get(kind, "veth"))
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
        if not isinstance(given, str) or not _NUMBER.fullmatch(given) or not low <= int(given) <= high:
            self._add(trail, f"{what}: {str(given)[:_SHOWN]}", f"is not a number from {low:,} to {high:,}")
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
            why = f"{OUTSIDE[node]}, but a link must connect two nodes of the lab"
            self._add(trail, f"{what}: {raw}", why, grammar.LINK_HINTS[node])
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
