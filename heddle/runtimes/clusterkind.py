"""Kinds of clusters, which plugins register: what verbs and experiments need of one besides the runtime of its name.

A shard of a lab runs the namespace runtime on its part of a fabric, on a kernel of its own. Everything else in Heddle
reaches it only by commands that run in it, with their standard input, output and exit code (Cluster; Kubernetes
implements it, and tests do with namespaces).

In:  a target: what flags say, as `--namespace` and `--image`, by their names.
Out: manifests, a report of what the cluster allows, and jobs: pods that each run a fabric of an experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from heddle.base.events import Observer
from heddle.base.plugins import Registry, having
from heddle.base.problems import MachineError, Problem

if TYPE_CHECKING:
    from heddle.fabric.cutting import Cut
    from heddle.fabric.model import Fabric


@dataclass(frozen=True, slots=True)
class ShardNeed:
    """What a shard needs. memory_bytes: of all its nodes, from measured costs. cpus: may be a part of a processor."""

    name: str  # s1, s2, ...
    nodes: tuple[str, ...]
    memory_bytes: int
    cpus: float


class ShardCommand(Protocol):
    """A command in a shard with pipes to this process: what subprocess.Popen has, and nothing more."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. subprocess.TimeoutExpired after `timeout` seconds."""

    def kill(self) -> None:
        """Give it up."""


class Cluster(Protocol):
    """The shards of labs. Every object that it makes carries its lab's name."""

    name: str
    python: Sequence[
        str
    ]  # in a shard: the start of a command that runs a module of Heddle: its relay (shards/relay.py)

    def create(self, lab: str, shards: Sequence[ShardNeed], observer: Observer) -> None:
        """Start all shards; they accept commands when this returns. MachineError with the shard, its nodes and why not.

        Idempotent: shards that run are left alone, so it also restores lost ones.
        """

    def addresses(self, lab: str) -> Mapping[str, str]:
        """Shard -> its address on the network that joins them. Shards that do not run are absent."""

    def argv(self, lab: str, shard: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """A command of this machine that runs argv in a shard: standard streams, exit code and signals pass."""

    def open(self, lab: str, shard: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """Start argv in a shard, with pipes. errors: a pipe for its standard error, and for why it could not run."""

    def place(self, lab: str, shard: str) -> str:
        """Where a shard is, to be named in an error: ` on node n2`; may be empty."""

    def lost(self, lab: str) -> list[Problem]:
        """Shards that do not run, with the reason: evicted, out of memory, image missing. One problem each."""

    def exists(self, lab: str) -> bool:
        """True when anything of the lab is there."""

    def remove(self, lab: str, observer: Observer) -> int:
        """Remove everything of the lab, in any state; returns the number of objects."""


USUAL_S: Final = 300.0  # a start that has no problem: a large image is pulled


class UnreachableError(MachineError):
    """The API does not answer."""


@dataclass(frozen=True, slots=True)
class PodState:
    """A shard's pod. ready: it runs. why: the rest of the sentence `shard s1 (...) ...`; hint: see Problem.

    patience_s: how long the state may last before it is an error, seconds. restarts: since the pod was made. fresh: it
    has a node, and its container may run already: nodes report that up to a second later. gone: what has run in it is
    lost.
    """

    ready: bool
    why: str = ""
    hint: str = ""
    patience_s: float = USUAL_S
    uid: str = ""
    restarts: int = 0
    address: str = ""
    node: str = ""
    fresh: bool = False
    gone: bool = False

    @property
    def incarnation(self) -> str:
        """A text that changes when the pod or its container is another one."""
        return f"{self.uid}/{self.restarts}"


@dataclass(frozen=True, slots=True)
class JobNeed:
    """The pods of an experiment. need: of each, that of the largest fabric. parallel: at most so many at once; None: as
    many as nodes are free, one on each. title: of the experiment.
    """

    title: str
    fabrics: int
    need: ShardNeed
    parallel: int | None = None


@dataclass(frozen=True, slots=True)
class IndexPod:
    """The newest pod of an index."""

    name: str
    uid: str
    state: PodState


class PodJob(Protocol):
    """The pods of one experiment: an index is a fabric, and has one pod at a time.

    MachineError of any method: the cluster refuses, or does not answer (UnreachableError).
    """

    def create(self) -> None:
        """Make its objects."""

    def renew(self) -> None:
        """Move its deadline, from time to time: this process still needs it."""

    def pods(self) -> Mapping[int, IndexPod]:
        """Index -> its newest pod."""

    def absent(self) -> PodState:
        """Why there is no pod."""

    def delete(self, pod: str) -> None:
        """Remove a pod at once; its index gets a new one, but only once."""

    def open(self, pod: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """Start argv in a pod, with pipes. errors: see Cluster.open."""

    def remove(self) -> None:
        """Remove all of it; it returns when the last pod has ended."""


class PodJobs(Protocol):
    """The jobs of this user in a cluster."""

    python: Sequence[str]  # in a pod: see Cluster

    def check(self) -> None:
        """MachineError that names all rights that this user does not have."""

    def remove_leftovers(self) -> int:
        """Remove the jobs whose process on this machine was killed; their number."""

    def job(self, name: str, need: JobNeed) -> PodJob:
        """A job that is not made yet."""


class ClusterReport(Protocol):
    """What a cluster allows."""

    @property
    def ok(self) -> bool:
        """Whether it can run fabrics."""

    @property
    def files(self) -> Mapping[str, str]:
        """File name -> manifest for an administrator."""

    def to_json(self) -> dict[str, Any]:
        """The rows of the report, and manifests that are needed."""

    def text(self) -> str:
        """The same for people."""


class ClusterKind(Protocol):
    """What verbs need of a kind of cluster beside the runtime of its name. target: what the flags of verbs say."""

    def read_template(self, file: Path, name: str) -> str:
        """The checked content of a file of --pod. name: as the user wrote it. InputError names file and line."""

    def check(self, target: Mapping[str, str]) -> None:
        """InputError for a target that cannot be one."""

    def manifests(self, fabric: Fabric, shards: Cut, target: Mapping[str, str]) -> Mapping[str, str]:
        """File name -> manifest, in the order to apply them. InputError as `check`."""

    def probe(self, target: Mapping[str, str], observer: Observer) -> ClusterReport:
        """Try what a cluster allows, and leave nothing there."""

    def jobs(self, target: Mapping[str, str]) -> PodJobs:
        """Its jobs. MachineError where it cannot be reached."""

    def renew_pod(self) -> None:
        """In a pod of a job: it is needed. OSError in another place."""

    def end_pod(self, *, done: bool) -> None:
        """In a pod of a job: end it. done: its work is complete. Nothing in another place."""


CLUSTERS: Final[Registry[ClusterKind]] = Registry(
    "cluster", {}, having(*(each for each in vars(ClusterKind) if not each.startswith("_")))
)
