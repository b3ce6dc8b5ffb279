"""Run `containerlab deploy`: its flags, its progress, and its error messages.

In:  a lab's name and its topology.
Out: nothing, or MachineError. containerlab exits with 0 even if commands of a node failed, so its log is read.
A lab is Heddle's when its containers carry our label (every topology that Heddle renders gives them one), or when
/run/heddle-containerlab/LAB says that Heddle deployed it (an imported topology has no such label).
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from heddle.base import state
from heddle.base.problems import HeddleError, MachineError, Problem, machine_errors
from heddle.base.process import Journal, dying_with_us, follow
from heddle.host.engine import binary
from heddle.host.engine import docker as engine
from heddle.kernel.devicetypes import explained
from heddle.kernel.namespace import NETNS_DIR
from heddle.runtimes.netns_topology import read_topology

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


# One worker per node makes a deployment fast (each waits for the engine); beyond this number the engine only queues.
_MOST_WORKERS: Final = 128
_DEPLOY_S: Final = 1200.0  # it may have to pull the user's images; zone takes 10 s
_STEP: Final = re.compile(r"Creating container|Created link")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# `ERRO Failed to execute command command="sh x" node=rtsw1 rc=5`; what the command printed follows, indented.
_FAILED: Final = re.compile(
    r"Failed to execute command\s+command=(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))\s+node=(\S+)\s+rc=(\d+)(.*)"
)
_PRINTED: Final = re.compile(r"^\s*(?:stdout=|stderr=)?\s*│?\s*(.*)$")
_ERROR: Final = re.compile(r"(?:^|\s)(?:ERRO\b|FATA\b|Error:)\s*(.*)")
_SHOWN: Final = 5  # failures that are printed in full
_KNOWN: Final = {
    r"no space left": "free some space; docker system df shows what uses it",
    r"subnet|pool overlaps": "run ./inv up again to use another subnet; docker network ls shows what uses this one",
    r"/proc/modules": "run ./inv setup containerlab to build one that accepts this kernel, which has no modules",
    r"no such image|pull access|manifest|failed to pull": "run ./inv image to build Heddle's, or docker pull IMAGE",
    r"already in use|already exist": "docker ps -a shows what has that name; ./inv down {lab} removes Heddle's lab",
    r"unable to apply caps": "this engine may not grant every capability: set privileged: false in the topology",
    r"cannot connect to the docker": "run ./inv doctor: it shows how to start the engine",
}


def environment(lab: str) -> dict[str, str]:
    """Without the check for newer versions, which takes seconds without a network; files go below /run."""
    return {"CLAB_VERSION_CHECK": "disable", "CLAB_LABDIR_BASE": str(CLAB_DIR / lab)}


def _command(lab: str, topology: Path) -> list[str]:
    """The whole command. `--name` is Heddle's name of the lab; an imported topology may have another one."""
    workers = min(_MOST_WORKERS, len(read_topology(topology).nodes))
    variables = [f"{name}={value}" for name, value in environment(lab).items()]
    flags = ["--name", lab, "--max-workers", str(workers), "--skip-labdir-acl", "--log-level", "info"]
    return ["env", *variables, str(binary.find() or "containerlab"), "deploy", "-t", str(topology), *flags]


def note(lab: str, topology: Path, journal: Journal) -> None:
    """Record the command in the journal."""
    journal.note(_command(lab, topology))


def deploy(lab: str, topology: Path, step: Callable[[], None]) -> None:
    """Deploy the topology; `step` is called for every container and link. MachineError with containerlab's errors."""
    printed: list[str] = []

    def line(text: str) -> None:
        printed.append(_COLOUR.sub("", text))
        if _STEP.search(printed[-1]):
            step()

    def late() -> Problem:
        why = f"did not end within {_DEPLOY_S:g} s; its last line: {printed[-1].strip() if printed else 'nothing'}"
        hint = "start daemons in a node's `exec` in the background, with their output in a file: each command must end"
        return Problem("", f"containerlab deploy of {lab}", why, hint)

    # TERM, not KILL: containerlab then removes its objects, including links that are not yet in a container.
    done = follow(dying_with_us(_command(lab, topology), "TERM"), line, timeout=_DEPLOY_S, late=late)
    raise_failures(lab, topology, done.code, printed)


def raise_failures(lab: str, topology: Path, code: int, said: Sequence[str]) -> None:
    """MachineError for failed commands of nodes, and for a failed deployment."""
    problems = _failed_commands(lab, said)
    if code != 0:
        errors = [match[1] for line in said if (match := _ERROR.search(line)) and "Failed to execute" not in line]
        problems.append(_deploy_problem(lab, topology, code, errors or [_last_words(said)]))
    if problems:
        rest = len(problems) - _SHOWN
        more = [Problem("", f"and {rest} more", "like these")] if rest > 0 else []
        raise MachineError(*problems[:_SHOWN], *more)


def _last_words(said: Sequence[str]) -> str:
    """The text below the heading `ERROR`, whose lines are wrapped for a terminal; else the last lines."""
    at = next((i for i, line in enumerate(said) if line.strip() == "ERROR"), len(said) - 4)
    return " ".join(line.strip() for line in said[at + 1 :] if line.strip())


def _failed_commands(lab: str, said: Sequence[str]) -> list[Problem]:
    """One problem for each failed command of a node, with its output: stderr before stdout."""
    problems = []
    for number, line in enumerate(said):
        if (match := _FAILED.search(line)) is None:
            continue
        quoted, plain, container, status, rest = match.groups()
        # Up to the next message, which begins with a time.
        block = list(takewhile(lambda text: not text[:1].strip(), said[number + 1 :]))
        at = next((i for i, text in enumerate(block) if text.strip().startswith("stderr=")), len(block))
        words = _words([*block[at:], *block[:at]]) or _words(re.split(r"\s+(?=std(?:out|err)=)", rest)[::-1])
        node = container.removeprefix(f"clab-{lab}-")
        command = (quoted or "").replace('\\"', '"') or plain
        why = f"failed with exit code {status}: {words or 'it printed nothing'}"
        problems.append(Problem(node, command, *explained(command.split(), why)))
    return problems


def _words(lines: Iterable[str]) -> str:
    found = [match[1].strip('" ') for line in lines if (match := _PRINTED.match(line)) and match[1].strip('" ')]
    return "; ".join(found[:3])


def _deploy_problem(lab: str, topology: Path, code: int, errors: Sequence[str]) -> Problem:
    """containerlab's last errors, with a hint for known ones."""
    why = "; ".join(dict.fromkeys(line.strip() for line in errors[-3:])) or f"it ended with exit code {code}"
    # The topology is removed with the lab that failed, so the hint renders it again.
    hint = f"run ./inv render FABRIC --out DIR, then containerlab deploy -t DIR/{topology.name} --log-level debug"
    for pattern, known in _KNOWN.items():
        if re.search(pattern, why, re.IGNORECASE):
            hint = known.format(lab=lab)
    return Problem("", f"containerlab deploy of {lab}", f"failed: {why}", hint)
