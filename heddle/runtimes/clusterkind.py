"""Kinds of clusters, which plugins register: what verbs and experiments need of one besides the runtime of its name.

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
from heddle.base.problems import MachineError
from heddle.runtimes.cluster import ShardCommand, ShardNeed

if TYPE_CHECKING:
    from heddle.fabric.cutting import Cut
    from heddle.fabric.model import Fabric

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
