"""The part of containerlab's grammar that the netns runtime supports.

In:  a `*.clab.yml`, as rendered.
Out: Topology, frozen; inherited keys (node, then group, kind, defaults) are resolved as in containerlab.
Keys that only a container engine can use (images, capabilities, the management network) are ignored. Any other key is
an error in namespaces, since ignoring it would change the meaning of the topology. The containerlab runtime uses the
same reader, and lets containerlab check the keys.
A shard has its part of the topology, as JSON (shardparts.py): a link to a node of another shard is a VXLAN link there,
as in containerlab. It has the number of the far port in the whole fabric as `vni`, the address of the far shard as
`remote`, the port of the tunnels as `dst-port`; as `vars` the number of its own port, and the ids of both in the shard.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from heddle.base import state
from heddle.base.families import Address
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, Problems, did_you_mean
from heddle.base.untrusted import PATH_LENGTH, UNPACKED_BYTES, UNPACKED_FILES, inflated, is_safe_name
from heddle.render.dialects import DAEMONS_IN, DAEMONS_OF

HONOURED: Final = frozenset({"sysctls", "binds", "exec", "labels", "env", "group", "kind"})
_LEFT_ALONE: Final = frozenset(
    {"image", "image-pull-policy", "cap-add", "privileged", "restart-policy", "network-mode", "cpu", "memory"}
)
_LINK_KEYS: Final = frozenset({"type", "endpoints", "mtu", "vars", "labels"})
NO_BIND: Final = "is not SOURCE:/TARGET or SOURCE:/TARGET:ro, with a target without .."
# Modes after a bind's target. SELinux labels and propagation are for engines; here they have no effect.
BIND_MODES: Final = frozenset({"", "ro", "rw", "z", "Z", "shared", "slave", "private", "rshared", "rslave", "rprivate"})
# Label of nodes with their own view of all files: OWN, or READ_ONLY where the kernel has no overlayfs.
OWN_FILES: Final = "heddle-files"
OWN: Final = "own"
READ_ONLY: Final = "read-only"
DEFAULT_MTU: Final = 9500  # containerlab's default
_CUT: Final = "vxlan"  # the type of cut links
_START_SCRIPT: Final = "start.sh"  # how the names of start scripts end, in rendered and in imported labs


def bind_target(text: str) -> str:
    """A bind's target as `/one/path`; empty when it is not absolute or has a `..`, which leaves a node's directory."""
    words = [word for word in text.split("/") if word not in ("", ".")]
    return "/" + "/".join(words) if text.startswith("/") and words and ".." not in words else ""


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of this machine that a node sees at another path."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeDef:
    """A node in the topology."""

    name: str
    sysctls: Mapping[str, str]
    binds: tuple[Bind, ...]
    exec: tuple[str, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_files(self) -> str:
        """OWN or READ_ONLY for a node with its own view of all files; empty for one that uses this machine's."""
        return self.labels.get(OWN_FILES, "")

    @property
    def daemons_of(self) -> tuple[str, ...]:
        """The switches whose daemons it runs, if it is no node of the fabric."""
        return tuple(self.labels.get(DAEMONS_OF, "").split())

    @property
    def daemons_in(self) -> str:
        """The node that runs the daemons of this switch; empty for one that runs its own."""
        return self.labels.get(DAEMONS_IN, "")

    @property
    def start(self) -> tuple[str, ...]:
        """The command that starts the node's daemons by a start script; empty without one."""
        words = (tuple(line.split()) for line in self.exec)
        return next((each for each in words if each[:1] == ("sh",) and "".join(each[1:2]).endswith(_START_SCRIPT)), ())


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link; without a mac the kernel chooses one."""

    node: str
    interface: str
    mac: str | None = None


@dataclass(frozen=True, slots=True)
class LinkDef:
    """A veth pair. mtu in bytes."""

    a: End
    b: End
    mtu: int


@dataclass(frozen=True, slots=True)
class CutDef:
    """The end of a link whose other end is in another shard (shardparts.py). number, far: ids of both ports here.

    remote: the address of the other shard, where its tunnel listens. mtu in bytes. vni, own_vni: the numbers of the far
    port, and of this one, in the whole fabric.
    """

    end: End
    mtu: int
    remote: Address
    tunnel_port: int
    number: int
    far: int
    vni: int
    own_vni: int


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole containerlab topology, as far as namespaces support it.

    foreign: keys that namespaces cannot honour. shared: further nodes, which run the daemons of several switches.
    """

    name: str
    nodes: Mapping[str, NodeDef]
    links: tuple[LinkDef, ...]
    cuts: tuple[CutDef, ...] = ()
    foreign: tuple[Problem, ...] = ()
    shared: Mapping[str, NodeDef] = field(default_factory=dict)

    @property
    def spaces(self) -> Mapping[str, NodeDef]:
        """Everything that has a namespace."""
        return {**self.nodes, **self.shared}

    def home(self, node: str) -> str:
        """The node whose daemons are those of this one: itself, except for a switch that shares them."""
        found = self.nodes.get(node)
        return node if found is None else found.daemons_in or node

    def check_honoured(self) -> None:
        """InputError when it has keys that namespaces do not support."""
        if self.foreign:
            raise InputError(*self.foreign)


def read_topology(path: Path) -> Topology:
    """Read a topology; InputError with all errors in it."""
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        hint = "./inv down removes what is left of its lab"
        raise InputError(Problem("", str(path), "is not there", hint)) from None
    return _read(path, stamp)


def known_node(lab: str, topology: Path, node: str) -> NodeDef:
    """A node of a lab's topology; MachineError when it has none of that name."""
    nodes = read_topology(topology).spaces
    if node not in nodes:
        raise MachineError(Problem("", node, f"is not a node of {lab}", "its nodes: " + ", ".join(nodes)))
    return nodes[node]


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: int) -> Topology:
    problems = Problems()
    try:
        data = _parsed(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.add(where=path.name, what="topology", why=f"is not YAML: {error}".replace("\n", " "))
        problems.raise_if_any()
    if not isinstance(data, dict) or not isinstance(data.get("topology"), dict) or "name" not in data:
        problems.add(where=path.name, what="topology", why="needs `name` and `topology`", hint="render it again")
        problems.raise_if_any()
    reader = _TopologyReader(path, data["topology"], problems)
    nodes = {str(name): reader.node(str(name), own or {}) for name, own in (reader.part.get("nodes") or {}).items()}
    rows = [*enumerate(reader.part.get("links") or [], 1)]
    cuts = tuple(reader.cut(number, item, nodes) for number, item in rows if item.get("type") == _CUT)
    links = tuple(reader.link(number, item, nodes) for number, item in rows if item.get("type") != _CUT)
    foreign = reader.foreign.found
    if problems.found:
        raise InputError(*foreign, *problems.found)
    shared = {name: node for name, node in nodes.items() if node.daemons_of}
    own = {name: node for name, node in nodes.items() if name not in shared}
    return Topology(
        str(data["name"]), own, tuple(filter(None, links)), tuple(filter(None, cuts)), tuple(foreign), shared
    )  # fmt: skip


def _parsed(path: Path) -> Any:
    """The data of a file. That of a lab is also kept as JSON beside it: YAML of 4,788 links takes two seconds."""
    text = path.read_text(encoding="utf-8")
    if text.startswith("{"):  # a shard's part
        return json.loads(text)
    # As in containerlab; variables are replaced before this module reads the topology.
    text = text.replace("$$", "$")
    twin, digest = path.with_suffix(".json"), hashlib.sha256(text.encode()).hexdigest()
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(twin.read_text(encoding="utf-8"))
        if kept["sha256"] == digest:
            return kept["data"]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # an order of magnitude on thousands of links
    data = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe loaders
    if path.is_relative_to(state.state_dir()):
        with suppress(OSError, ValueError, TypeError, HeddleError):  # data that JSON has not, a full disk
            shown = json.dumps({"sha256": digest, "data": data})
            if json.loads(shown)["data"] == data:
                state.write_file(twin, shown)
    return data


class _TopologyReader:
    """Resolves nodes and links of one file, noting problems as it goes."""

    def __init__(self, path: Path, part: Mapping[str, Any], problems: Problems) -> None:
        self.path = path
        self.part = part
        self.problems = problems
        self.foreign = Problems()

    def node(self, name: str, own: Mapping[str, Any]) -> NodeDef:
        """A node with its inherited keys, least specific first."""
        group = (self.part.get("groups") or {}).get(own.get("group", ""), {})
        kind = (self.part.get("kinds") or {}).get(own.get("kind", group.get("kind", "")), {})
        layers = [self.part.get("defaults") or {}, kind or {}, group or {}, own]
        for key in sorted({key for layer in layers for key in layer} - HONOURED - _LEFT_ALONE):
            self._unknown(self.foreign, f"nodes.{name}.{key}", key, HONOURED)
        binds = [self._bind(name, str(text)) for layer in layers for text in layer.get("binds") or []]
        return NodeDef(
            name=name,
            sysctls=_merged(layers, "sysctls"),
            # By target, so that a node's own bind replaces its group's.
            binds=tuple({bind.target: bind for bind in binds}.values()),
            exec=tuple(str(line) for layer in layers for line in layer.get("exec") or []),
            labels=_merged(layers, "labels"),
            env=_merged(layers, "env"),
        )

    def _bind(self, node: str, text: str) -> Bind:
        source, _, rest = text.partition(":")
        typed, _, mode = rest.partition(":")
        target = bind_target(typed)
        if not target or set(mode.split(",")) - BIND_MODES:
            self._add(f"nodes.{node}.binds: {text}", NO_BIND)
        return Bind(self.path.parent / source, target, "ro" in mode.split(","))

    def link(self, number: int, item: Mapping[str, Any], nodes: Mapping[str, NodeDef]) -> LinkDef | None:
        """One link, in the extended or the brief form."""
        for key in sorted(set(item) - _LINK_KEYS):
            self._unknown(self.problems, f"links[{number}].{key}", key, _LINK_KEYS)
        if item.get("type", "veth") != "veth":
            self._add(f"links[{number}].type: {item['type']}", "is not supported in namespaces", "use veth")
            return None
        ends = [_end(raw) for raw in item.get("endpoints") or []]
        if len(ends) != 2 or None in ends:
            self._add(f"links[{number}].endpoints", "must be two ends, each a node and an interface")
            return None
        a, b = (end for end in ends if end is not None)
        for end in (a, b):
            if end.node not in nodes:
                self._add(
                    f"links[{number}]: {end.node}", "is not a node of this topology", did_you_mean(end.node, nodes)
                )
        return LinkDef(a, b, int(item.get("mtu", DEFAULT_MTU)))

    def cut(self, number: int, item: Mapping[str, Any], nodes: Mapping[str, NodeDef]) -> CutDef | None:
        """The end of a cut link: a VXLAN link as shardparts.py writes it."""
        end = _end(item.get("endpoint"))
        try:
            remote, port = ip_address(str(item["remote"])), int(item["dst-port"])
            own = item["vars"]
            ids = int(own["port"]), int(own["peer"]), int(item["vni"]), int(own["vni"])
        except (KeyError, TypeError, ValueError):
            end = None
        if end is None or end.node not in nodes:  # of a user's topology
            self._add(f"links[{number}].type: {_CUT}", "is not supported in namespaces", "use veth")
            return None
        return CutDef(end, int(item.get("mtu", DEFAULT_MTU)), remote, port, *ids)

    def _unknown(self, found: Problems, what: str, key: str, legal: frozenset[str]) -> None:
        why, hint = "is not supported by the netns runtime", did_you_mean(key, sorted(legal))
        found.add(where=self.path.name, what=what, why=why, hint=hint)

    def _add(self, what: str, why: str, hint: str = "") -> None:
        self.problems.add(where=self.path.name, what=what, why=why, hint=hint)


def _end(raw: Any) -> End | None:
    if isinstance(raw, str):
        node, colon, interface = raw.partition(":")
        return End(node, interface) if colon else None
    if isinstance(raw, dict) and "node" in raw and "interface" in raw:
        return End(str(raw["node"]), str(raw["interface"]), raw.get("mac"))
    return None


def _merged(layers: list[Mapping[str, Any]], key: str) -> dict[str, str]:
    return {str(k): str(v) for layer in layers for k, v in (layer.get(key) or {}).items()}


def start_timeout(nodes: int) -> float:
    """Seconds: 250 switches take half a minute on two cores, 12 take more than a minute in a VM on a busy machine."""
    return 120 + 10 * nodes


def packed(directory: Path) -> str:
    """The files of a directory as text: `packed_files`."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return packed_files({path.relative_to(directory).as_posix(): path.read_bytes() for path in files})


def packed_files(files: Mapping[str, bytes]) -> str:
    """Files by their paths as text: a compressed tar in base85."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, each in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(each)
            tar.addfile(member, io.BytesIO(each))
    return base64.b85encode(content.getvalue()).decode()


def unpack(text: str, directory: Path, most: int = UNPACKED_BYTES) -> int:
    """Write the files of `packed` into a directory: plain files below it only, and not executable.

    The text may come from a pod: ValueError for anything else, and for more than `most` bytes, before a file is
    written. Returns their bytes.
    """
    whole, found = (
        inflated(base64.b85decode(text), min(most, UNPACKED_BYTES), gzip=True),
        dict[tuple[str, ...], slice](),
    )
    try:
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
            for member in tar:
                names, end = tuple(member.name.split("/")), member.offset_data + member.size
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
                safe = len(member.name) <= PATH_LENGTH and all(map(is_safe_name, names)) and names not in found
                if not (plain and safe and 0 <= member.size <= end <= len(whole)):
                    raise ValueError(f"has a file that is not plain, whole and alone: {member.name[:PATH_LENGTH]!r}")
                if len(found) >= UNPACKED_FILES:
                    raise ValueError(f"has more than {UNPACKED_FILES} files")
                found[names] = slice(member.offset_data, end)
    except (tarfile.TarError, EOFError, RecursionError) as error:
        raise ValueError(f"is not an archive: {error}") from None
    ordered = sorted(found)  # what is below a name follows it
    if both := next((one for one, other in pairwise(ordered) if other[: len(one)] == one), None):
        raise ValueError(f"has a file that is also a directory: {'/'.join(both)!r}")
    for names, part in found.items():
        path = directory.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole[part])
        path.chmod(0o644)  # whatever the umask is: daemons read them as another user
    return len(whole)
