"""The containers of a lab, and whether Heddle deployed them.

A lab is Heddle's when its containers carry our label (every topology that Heddle renders gives them one), or when
/run/heddle-containerlab/LAB says that Heddle deployed it (an imported topology has no such label).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base import state
from heddle.base.problems import HeddleError, MachineError, machine_errors
from heddle.host.engine import docker as engine
from heddle.kernel.namespace import NETNS_DIR

CLAB_DIR: Final = Path("/run/heddle-containerlab")  # a directory per lab: our marker, and what containerlab writes
LABEL: Final = "heddle-lab"
_FIELDS: Final = ("{{.ID}}", "{{.Names}}", "{{.State}}", "{{.Status}}")
_LABELS: Final = ("clab-node-name", LABEL, "clab-topo-file")


@dataclass(frozen=True, slots=True)
class Container:
    """One node of a containerlab lab. status: as the engine reports it, `Exited (137) 2 minutes ago`."""

    id: str
    name: str
    running: bool
    status: str
    node: str
    owner: str  # the lab that our label names; empty without one
    topology: str  # the file that it was deployed from


def marker(lab: str) -> Path:
    """The marker file: the topology and its nodes. Written before Heddle deploys, removed when nothing is left."""
    return CLAB_DIR / lab / "containerlab.json"


def mark(lab: str, topology: Path, nodes: Iterable[str]) -> None:
    """Write the marker: the deployment belongs to Heddle from here on."""
    with machine_errors(str(CLAB_DIR / lab)):
        marker(lab).parent.mkdir(parents=True, exist_ok=True)
        newest = max(number for number, _ in socket.if_nameindex())
        text = json.dumps({"topology": str(topology), "nodes": list(nodes), "newest_link": newest})
        marker(lab).write_text(text, encoding="utf-8")


def marked_topology(lab: str) -> Path | None:
    """The topology of a lab that Heddle deployed, or None."""
    found = _marked(lab).get("topology")
    return Path(found) if isinstance(found, str) else None


def marked_nodes(lab: str) -> list[str]:
    """The nodes that Heddle deployed, whether or not they exist now."""
    found = _marked(lab).get("nodes")
    return [str(name) for name in found] if isinstance(found, list) else []


def marked_link(lab: str) -> int | None:
    """The highest ifindex of this machine before Heddle deployed that lab, or None."""
    found = _marked(lab).get("newest_link")
    return found if isinstance(found, int) else None


def _marked(lab: str) -> dict[str, object]:
    try:
        data = json.loads(marker(lab).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def containers_of(lab: str) -> list[Container]:
    """All containers of a containerlab lab of that name, of any user.

    Empty without an engine; MachineError if there is no engine but Heddle has deployed that lab.
    """
    row = "\t".join([*_FIELDS, *(f'{{{{.Label "{label}"}}}}' for label in _LABELS)])
    argv = ["ps", "-a", "--no-trunc", "--filter", f"label=containerlab={lab}", "--format", row]
    try:
        out = engine.docker(argv).out
    except MachineError:
        if marker(lab).exists() or _recorded(lab):
            raise
        return []
    return [_container(line) for line in out.splitlines() if line]


def _recorded(lab: str) -> bool:
    """Whether this user's Heddle made it: the marker is lost after a restart of the machine, since /run is empty."""
    try:
        record = state.read_record(lab)
    except HeddleError:  # `down` removes such a record
        return False
    return record is not None and record.runtime == "containerlab"


def ours(container: Container, lab: str) -> bool:
    """Whether Heddle deployed it."""
    topology = marked_topology(lab)
    return container.owner == lab or (topology is not None and container.topology == str(topology))


def namespace_of(container: Container) -> Path:
    """The path at which containerlab names the node's network namespace: a link to /proc/PID/ns/net."""
    return NETNS_DIR / container.name


def own_namespaces(containers: Sequence[Container]) -> dict[str, Path]:
    """Container's name -> /proc/PID/ns/net of its first process, for running containers.

    The links below /run/netns are not reliable: one of a removed container leads to the process that has its PID now.
    """
    if not containers:
        return {}
    form = "{{.Name}}\t{{.State.Pid}}"
    # A container that is removed meanwhile is not an error: the output has the others.
    done = engine.docker(["inspect", "--format", form, *(each.id for each in containers)], check=False)
    rows = (line.removeprefix("/").split("\t") for line in done.out.splitlines() if "\t" in line)
    return {name: Path("/proc", pid, "ns/net") for name, pid in rows if pid != "0"}


def same_space(one: Path, other: Path) -> bool:
    """Whether both exist and are the same namespace."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _container(line: str) -> Container:
    identity, name, state, status, node, owner, topology = line.split("\t")
    return Container(identity, name, state == "running", status, node, owner, topology)
