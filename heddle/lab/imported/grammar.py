"""Containerlab's grammar in user-supplied topologies: how each key is supported, what a node inherits, its commands.

In:  a key and the runtime. Out: KeySupport: taken, left out (reported once), or refused with the reason.
A key that a runtime cannot honour is refused: a lab must not start with part of its configuration. A key is left out
only if it makes no difference to a lab in namespaces, or if Heddle decides its value.
Sections: the parts of a file from which a node gets its keys, and how they are merged. Source: containerlab 0.79,
types/topology.go (GetNodeKind, GetNodeGroup, getField, mergeStringSliceFields).
Go templates and substitution of environment variables (core/file.go: envsubst, unset variables stay), magic variables
(core/config.go: magicVarReplacer) and lab names.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from heddle.base.files import read_regular
from heddle.base.problems import InputError, Problem
from heddle.base.state import caller_home
from heddle.kernel.devicetypes import SEPARATORS
from heddle.lab.imported import frr
from heddle.runtimes.netns_topology import HONOURED
from heddle.spec.yamlfile import Trail

_VARIABLE: Final = re.compile(
    r"\$(?:(?P<dollar>\$)"
    r"|\{(?P<name>[^\W\d]\w*)(?:(?P<how>:=|:-|:\+|=|-|\+)(?P<other>[^}\n]*))?\}"
    r"|(?P<open>\{(?=[^\W\d]))"
    r"|(?P<bare>[^\W\d]\w*))"
)
_REFERENCE: Final = re.compile(r"\$([^\W\d]\w*)")
_ACTION: Final = re.compile(r"\{\{(.{0,60}?\}\})?")  # of a Go template
NODE_NAME: Final = "__clabNodeName__"
LAB_NAME: Final = "__clabLabName__"
# Directories that containerlab creates; namespaces have none.
DIRECTORIES: Final = ("__clabNodeDir__", "__clabDir__")
LONGEST_LINE: Final = 1 << 15  # characters of a command
MOST_VALUES: Final = 400_000  # of a topology, with aliases and inherited values written out
_LAB_LENGTH: Final = 12
MOST_BYTES: Final = 1 << 20  # of a topology, and of each file of FRR and each script that it binds


def is_template_of_topology(text: str) -> bool:
    """True for a Go template of a topology: it has actions, `{{ ... }}`, and is no YAML before they are executed."""
    return _ACTION.search(text) is not None and re.search(r"^topology:", text, re.MULTILINE) is not None


def check_rendered(text: str, source: str) -> None:
    """InputError for a Go template. containerlab executes every topology as a template, of any name (core/file.go)."""
    if (found := _ACTION.search(text)) is None:
        return
    line = text.count("\n", 0, found.start()) + 1
    stem = re.sub(r"(\.clab)?\.(gotmpl|ya?ml)$", "", source)
    plain = f"{stem}.clab.yml" if source.endswith(".gotmpl") else f"{stem}.rendered.clab.yml"
    command = shlex.join(["containerlab", "deploy", "-t", source, "--dry-run", "--export-rendered", plain])
    why = "is an action of a Go template, which containerlab executes before it reads the file, and Heddle does not"
    hint = f"run {command}, which starts nothing, then ./inv up {shlex.quote(plain)}"
    raise InputError(Problem(f"{source}:{line}", found[0], why, hint))


def expand(text: str, source: str, variables: Mapping[str, str] | None = None) -> str:
    """`${VAR}`, `$VAR`, `${VAR:=default}` and `$$` as containerlab replaces them, in the whole text.

    A variable that is unset or empty and has no default stays, without its braces. InputError for an unclosed brace.
    """
    have = os.environ if variables is None else variables

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        if found["open"]:
            line = text.count("\n", 0, found.start()) + 1
            what = text[found.start() :].split("\n", 1)[0][:40]
            hint = "close it: ${NAME} or ${NAME:=default}; a dollar sign itself is $$"
            raise InputError(Problem(f"{source}:{line}", what, "is no valid variable", hint))
        name = found["bare"] or found["name"]
        if name == "_":
            return found[0]
        own = have.get(name, "")
        match found["how"]:
            case ":=" | ":-" | "=" | "-":
                unset = not own if found["how"] in (":=", ":-") else name not in have
                return _other(found["other"], have) if unset else own or f"${name}"
            case "+" | ":+":
                return _other(found["other"], have) if name in have else ""
            case _:
                return own or f"${name}"

    return _VARIABLE.sub(value, text)


def _other(text: str, have: Mapping[str, str]) -> str:
    """The default of a variable, which may be a variable itself."""
    found = _REFERENCE.fullmatch(text)
    return have.get(found[1], "") or text if found else text


def literal(text: str) -> str:
    """Text that `expand` turns back into the original."""
    return text.replace("$", "$$")


def magic(text: str, lab: str, node: str) -> str:
    """Replace the magic variables that do not depend on containerlab's directories."""
    return text.replace(NODE_NAME, node).replace(LAB_NAME, f"clab-{lab}")


def with_sh(command: str) -> str:
    """A command of Alpine's shell for a node without BusyBox: `ash` is a POSIX shell, as this machine's `sh`."""
    return _ASH.sub("sh", command, count=1)


def resolved(path: str, base: Path) -> Path:
    """A path of the file as an absolute path: `~` is the caller's home; others are relative to the file's directory."""
    if path == "~" or path.startswith("~/"):
        return caller_home() / path[2:]
    return Path(os.path.normpath(base / path))


def lab_name(wanted: str) -> str:
    """A valid lab name: lower-case letters and digits, a letter first, 12 at most. Empty when nothing is left."""
    word = re.sub(r"[^a-z0-9]", "", wanted.lower())
    return re.sub(r"^[0-9]+", "", word)[:_LAB_LENGTH]


Fate = Literal["taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class KeySupport:
    """How a key is handled. why: the reason why it is left out or refused."""

    fate: Fate
    why: str = ""
    hint: str = ""


_TAKEN: Final = KeySupport("taken")

# Keys that only a container engine applies to processes, file systems or its own network. No effect in namespaces.
_ENGINE_ONLY: Final = frozenset(
    [
        *("image", "image-pull-policy", "restart-policy", "auto-remove", "startup-delay", "healthcheck", "type"),
        *("cap-add", "privileged", "security-opts", "user", "cpu", "cpu-set", "memory", "shm-size"),
        *("cgroupns-mode", "cgroup-parent", "pid-mode", "hostname", "aliases", "dns", "link-apply-mode", "position"),
        *("credentials", "username", "password", "config", "certificate"),
    ]
)
_NO_FILES: Final = "needs a container's file system; a namespace uses this machine's files"
_IN_ENGINE: Final = "or use --runtime containerlab"
_REFUSED_IN_NAMESPACES: Final[Mapping[str, KeySupport]] = {
    "volumes": KeySupport("refused", _NO_FILES, f"use binds, {_IN_ENGINE}"),
    "tmpfs": KeySupport("refused", _NO_FILES, f"leave it out, {_IN_ENGINE}"),
    "devices": KeySupport(
        "refused", "needs a container's /dev; a namespace uses this machine's", f"leave it out, {_IN_ENGINE}"
    ),
    "stages": KeySupport(
        "refused", "makes nodes wait for each other, but namespaces start together", f"leave it out, {_IN_ENGINE}"
    ),
    "env-files": KeySupport("refused", "is not supported for namespaces", f"use env, {_IN_ENGINE}"),
}
_NO_MEANING: Final = "has no meaning for kind: linux"
# For all runtimes: these belong to other kinds than linux.
_REFUSED: Final[Mapping[str, KeySupport]] = {
    "startup-config": KeySupport("refused", _NO_MEANING, "bind the file below /etc/frr"),
    **dict.fromkeys(
        ("enforce-startup-config", "suppress-startup-config", "license", "components", "extras"),
        KeySupport("refused", _NO_MEANING, "leave it out"),
    ),
}
# Heddle gives every lab its own management network, without access to the outside.
_LEFT: Final[Mapping[str, KeySupport]] = {
    "ports": KeySupport("left", "Heddle's labs publish no ports"),
    "mgmt-ipv4": KeySupport("left", "the management network is Heddle's"),
    "mgmt-ipv6": KeySupport("left", "the management network is Heddle's"),
    "runtime": KeySupport("left", "Heddle's containers run in Docker, containerlab's default"),
}
_FOR_ALL: Final[Mapping[str, KeySupport]] = {
    **dict.fromkeys((*HONOURED, *_ENGINE_ONLY, "cmd", "entrypoint", "network-mode", *_REFUSED_IN_NAMESPACES), _TAKEN),
    **_REFUSED,
    **_LEFT,
}
_IN_NAMESPACES: Final[Mapping[str, KeySupport]] = {
    **_FOR_ALL,
    **dict.fromkeys(
        (*(_ENGINE_ONLY - HONOURED), "runtime"), KeySupport("left", "namespaces use this machine's files and programs")
    ),
    **_REFUSED_IN_NAMESPACES,
}
ALL_NODE_KEYS: Final = tuple(sorted(_FOR_ALL))

# Lists and groups that are merged from all levels; for all other keys the nearest level's value is used.
LISTS: Final = frozenset({"exec", "binds", "cap-add", "devices", "env-files", "volumes"})
GROUPS: Final = frozenset({"sysctls", "labels", "env"})


_READERS: Final = frozenset({"sleep", "tail", "cat", "true"})
_WAITING: Final = re.compile(
    r"(\S*/)?(sh|bash|ash|tini|sleep|tail|cat)|-\w*|--|/dev/null|infinity|inf|\d+[smhd]?|while|true|:|do|done|exec|wait|"
)


def only_waits(command: str) -> bool:
    """True for a container's command that does nothing but keep the container running, also inside `sh -c`."""
    words = [word.strip("\"'") for word in re.split(r"[\s;&]+", command)]
    alone = words[0].rpartition("/")[2] in _READERS and not re.search(r"[;&|\n]", command)
    return alone or all(_WAITING.fullmatch(word) for word in words)


def node_key(key: str, runtime: str, value: Any = None) -> KeySupport | None:
    """How a key of a node is handled; None when containerlab has no such key."""
    if key == "runtime" and runtime != "netns" and value not in (None, "", "docker"):
        return KeySupport("refused", f"is {value}, but Heddle's containers run in Docker", "leave it out")
    return (_IN_NAMESPACES if runtime == "netns" else _FOR_ALL).get(key)


TOP_KEYS: Final = ("name", "prefix", "mgmt", "topology", "settings", "debug")
TOP_LEFT: Final[Mapping[str, str]] = {
    "prefix": "Heddle finds containers by the name clab-LAB-NODE",
    "mgmt": "the management network is Heddle's: one per lab, without access to the outside",
    "settings": "it configures certificates",
    "debug": "it configures containerlab itself",
}
TOPOLOGY_KEYS: Final = ("defaults", "kinds", "groups", "nodes", "links")
LINK_KEYS: Final = frozenset({"type", "endpoints", "mtu", "vars", "labels", "ipv4", "ipv6"})
END_KEYS: Final = frozenset({"node", "interface", "mac", "ipv4", "ipv6", "vars"})
# Special node names and link types that lead outside of the lab.
OUTSIDE: Final[Mapping[str, str]] = {
    "host": "leads to this machine",
    "macvlan": "leads to an interface of this machine",
    "mgmt-net": "leads to the management network",
    "vxlan": "leads to another machine",
    "vxlan-stitch": "leads to another machine",
    "veth-stitch": "leads through this machine",
    "dummy": "has only one end",
}

_INSIDE: Final = "leave it out: nothing leads out of a lab"
# What to do without such a link.
LINK_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(OUTSIDE, _INSIDE),
    "dummy": "leave it out, and add the device in exec: ip link add NAME type dummy",
}

LINUX: Final = "linux"


def kind_refused(kind: str) -> tuple[str, str]:
    """(why, hint) for a kind other than linux."""
    if kind in ("bridge", "ovs-bridge"):
        return "is known on a node itself only", f"kind: {kind} at the node"
    if kind in ("host", "ext-container"):
        return "is an object of this machine, which Heddle does not change", _INSIDE
    if kind == "frr":
        return "is containerlab's FRR node, new in 0.80", "use kind: linux, and bind frr.conf and daemons"
    why = "is not supported: Heddle runs nodes of kind linux, bridge and ovs-bridge"
    return why, "use containerlab deploy, without Heddle"


Add = Callable[..., None]
Layer = tuple[Trail, Mapping[str, Any]]
_NODES: Final = ("topology", "nodes")


class Sections:
    """`defaults`, `kinds`, `groups` and `nodes` of one file; a value of the wrong type is reported and ignored."""

    def __init__(self, part: Mapping[str, Any], add: Add, alone: Collection[str] = ()) -> None:
        """alone: nodes that inherit nothing."""
        self._add = add
        self._alone = alone
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
        if node in self._alone:
            return [((*_NODES, node), self._own(node))]
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
                    items = [text for _, text in self._items((*trail, key), value)]
                    found[key] = list(dict.fromkeys([*found.get(key, ()), *items]))
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


OUTPUT: Final = "/run/heddle-cmd.log"  # of a main process; /run is the node's own
_ASH: Final = re.compile(r"^\s*(?:(?:\S*/)?busybox\s+a?sh|(?:\S*/)?ash)(?=\s|$)")
SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "busybox", ".", "source"})
_BEFORE: Final = frozenset({"then", "else", "do", "{", "(", "!", "sudo", "exec", "command"})  # a command follows
_REAPER: Final = re.compile(r"(\S*/)?(tini|tini-static|dumb-init|catatonit)(\s+-\S+)*\s+")  # starts the next words
_SYSTEMS: Final = frozenset({"init", "systemd", "openrc-init", "runit-init", "s6-svscan"})
_LAST: Final = re.compile(r"(?:^|[;&\n]+)\s*([^;&\n'\"]*)[\s;]*$")  # command of a script
_SCRIPT: Final = r"-\w*c"
_WAITED_S: Final = 5  # until `exec` follows, where the main process prepares FRR


def main_process(text: str) -> str:
    """What is left to run of the command of a container; empty when it only waits, or only starts FRR as a service.

    ValueError with the reason, for what is no command, or the start of a whole system.
    """
    words = shlex.split(_REAPER.sub("", text, count=1) if _REAPER.match(text) else text)
    if words and re.fullmatch(_SCRIPT, words[0]):  # of an entrypoint `sh` in the image
        words.insert(0, "sh")
    if words and words[0].startswith("-"):
        raise ValueError("has options only, for the program that the image starts")
    program = words[0].rpartition("/")[2] if words else ""
    if program in _SYSTEMS:
        raise ValueError("starts a whole system, which needs a container of its own")
    inner = next((i + 1 for i, word in enumerate(words[1:4], 1) if re.fullmatch(_SCRIPT, word)), len(words))
    if program in SHELLS and inner < len(words):
        script = words[inner]
        while script and (last := _LAST.search(script)) and only_waits(last[1]):
            script = words[inner] = script[: last.start()].rstrip()
    else:
        script = shlex.join(words)
    return "" if not script.strip() or frr.is_service(script) or only_waits(script) else shlex.join(words)


def as_main(command: str, *, waits: bool) -> str:
    """The line of `exec` that starts a main process in the background, as a container does: its end is no error.

    waits: for its end, but not long, since `exec` may need what it prepares.
    """
    wait = "n=0; while kill -0 $! && [ $n -lt {} ]; do n=$((n+1)); sleep 0.1; done 2> /dev/null; true"
    script = f"{command} > {OUTPUT} 2>&1 < /dev/null & {wait.format(10 * _WAITED_S) if waits else ''}"
    return shlex.join(["sh", "-c", script.rstrip()])


def command_lines(command: str, sources: Mapping[str, Path]) -> Iterator[list[str]]:
    """The words of each command line, including those inside `sh -c` and inside bound scripts."""
    words = _words(command)
    shell = bool(words) and words[0].rpartition("/")[2] in SHELLS
    if shell and "-c" in words[:-1]:
        words = _words(words[words.index("-c") + 1], comments=True)
    yield from _split(words)
    for script in (word for word in (words if shell else words[:1]) if word in sources):
        for line in (text_of(sources[script]) or "").splitlines():
            if len(line) <= LONGEST_LINE:  # the time of shlex grows with the square
                yield from _split(_words(line, comments=True))


def _split(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if SEPARATORS.fullmatch(word):
            yield part
            part = []
        elif part or word not in _BEFORE:
            part.append(word)
    yield part


def _words(text: str, *, comments: bool = False) -> list[str]:
    """Words as a shell reads them, separators and redirections as words; none where quotes do not match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|><\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = "#" if comments else ""
    try:
        return list(lexer)
    except ValueError:
        return []


def text_of(path: Path) -> str | None:
    """The text of a bound file; None where it cannot be read."""
    try:
        return read_regular(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def as_text(value: Any) -> str:
    """A command as a text: containerlab's form; as a list, as Docker has it, it is quoted."""
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def no_command(line: str) -> str | None:
    """Why a line of `exec` cannot be run: containerlab divides it into words without a shell."""
    if len(line) > LONGEST_LINE:
        return f"is longer than {LONGEST_LINE:,} characters"
    try:
        return None if shlex.split(line) else "is empty"
    except ValueError as error:
        return f"is no command: {str(error).lower()}"  # no closing quotation, no escaped character


def sets_queue(command: str) -> bool:
    """True for a command of tc that changes a queue."""
    words = command.replace(";", " ").replace("&", " ").split()
    places = [i for i, word in enumerate(words) if word.rpartition("/")[2].strip("'\"") == "tc"]
    return any({"qdisc", "class", "filter"} & set(words[i + 1 : i + 4]) and "show" not in words for i in places)


def drops_default(command: str) -> bool:
    """True for a command that deletes the default route."""
    words = [word for word in command.split() if not word.startswith("-")]
    routes = words[:2] in (["ip", "route"], ["ip", "r"])
    return routes and words[2:3] in (["del"], ["delete"]) and words[3:4] == ["default"]
