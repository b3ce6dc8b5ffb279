"""The objects of a lab in a cluster, and those that an administrator makes once: templates/ as data.

In:  a lab, its owner, its shards, and a target. Out: text of YAML for people, or the same objects as dicts.
`--pod FILE` says in the keys of a Pod where pods run and how they are kept; what a pod may do stays as it is.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.runtimes.clusterkind import JobNeed, ShardNeed
from heddle.spec.yamlfile import ReadOptions, Trail, dotted, parse, read_text
from heddle_plugins.kubernetes.target import KubeTarget

TEMPLATES: Final = Path(__file__).with_name("templates")
PYTHON: Final = ("python3", "-P", "-m")  # in the image: the environment with Heddle is the first in PATH
READY: Final = "/run/heddle-ready"  # a pod's first process writes ADDRESS there when all is as a shard needs it
ADDRESS: Final = "POD_ADDRESS"  # the variable of a pod with its addresses, with commas between them
LAB, OWNER, SHARD, EXPERIMENT = "heddle.lab", "heddle.owner", "heddle.shard", "heddle.experiment"
# In the order in which they are removed: what makes pods before the pods.
LAB_KINDS: Final = ("StatefulSet", "Pod", "PodDisruptionBudget", "Service", "NetworkPolicy", "ConfigMap")
EXPERIMENT_KINDS: Final = ("Job", "Pod", "NetworkPolicy")
PROCESS: Final = "heddle.process"  # annotation of a Job: which process needs it (jobs.py)
INDEX: Final = "batch.kubernetes.io/job-completion-index"  # annotation of a Job's pod
EXPIRED: Final = 75  # exit code of a pod that nobody has needed for LEASE_S: EX_TEMPFAIL of sysexits.h
LEASE_S: Final = 120.0
_INIT: Final = "heddle_plugins.kubernetes.podinit"
# What a shard requests of processors, in thousandths: at least a share beside other pods, and at most what a node of
# two processors has beside its system. A shard that has too little is slow; one that fits no node never runs.
_LEAST_MILLICPUS: Final = 100
_MOST_MILLICPUS: Final = 1000
_DISK: Final = {"requests": "256Mi", "limits": "4Gi"}  # of a pod: logs, and runs of an experiment with captures
# Autoscalers leave a node with such a pod alone: Cluster Autoscaler, Karpenter.
_KEPT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
# Of the nodes that may take a shard, none has two more than another.
_SPREAD: Final = {
    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",
}  # fmt: skip
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # of a machine, in the words of container images
_MOST_PODS: Final = 100  # of an experiment at once, where no number is given
LEASE: Final = "--lease"  # option of the first process: end when nobody has needed the pod for so many seconds


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Rights on resources of one API group; why they are needed."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str


_OBJECTS: Final = ("get", "list", "create", "patch", "delete")
_PODS: Final = (
    AccessRule("networking.k8s.io", ("networkpolicies",), _OBJECTS, "which pods reach each other"),
    AccessRule("", ("pods",), ("get", "list", "watch", "delete"), "whether pods run, and their addresses"),
    AccessRule("", ("pods/exec",), ("get", "create"), "commands in pods; get: up to Kubernetes 1.34"),
    AccessRule("", ("events",), ("list", "watch"), "why a pod does not run"),
)
LAB_RULES: Final = (
    AccessRule("", ("configmaps", "services"), _OBJECTS, "the cut and the names of shards"),
    AccessRule("apps", ("statefulsets",), _OBJECTS, "the shards"),
    AccessRule("policy", ("poddisruptionbudgets",), _OBJECTS, "no drain of a node ends a lab"),
    *_PODS,
)
EXPERIMENT_RULES: Final = (AccessRule("batch", ("jobs",), _OBJECTS[1:], "the fabrics of experiments"), *_PODS)
RULES: Final = (*LAB_RULES, *EXPERIMENT_RULES[:1])


def object_name(lab: str) -> str:
    """The name of a lab's objects: `heddle-zone`."""
    return f"heddle-{lab}"


def pod_name(lab: str, shard: str) -> str:
    """The only pod of a shard's StatefulSet: `heddle-zone-s1-0`."""
    return f"{object_name(lab)}-{shard}-0"


def selector(lab: str, owner: str) -> str:
    """The label selector of a lab's objects."""
    return f"{LAB}={lab},{OWNER}={owner}"


def removal(lab: str, namespace: str) -> str:
    """The command that removes a lab of any owner."""
    kinds = ",".join(each.lower() for each in LAB_KINDS)
    return f"kubectl delete {kinds} --namespace {namespace} -l {LAB}={lab}"


def experiment_selector(owner: str, name: str = "") -> str:
    """The label selector of an experiment's objects; of all experiments of the owner without a name."""
    return f"{EXPERIMENT}{'=' if name else ''}{name},{OWNER}={owner}"


def is_local(image: str) -> bool:
    """Whether an image must be on the nodes: without a registry in its name, a public one may have another of it."""
    return "/" not in image or image.startswith("localhost/")


def lab_text(
    lab: str, owner: str, shards: Sequence[ShardNeed], target: KubeTarget, *, options: Sequence[str] = ()
) -> str:
    """The manifest of a lab. options: of the first process of its pods."""
    rows = [{"name": each.name, "nodes": each.nodes, "resources": _resources(each, target)} for each in shards]
    return _render("lab.yaml.j2", lab=lab, owner=owner, name=object_name(lab), shards=rows, **_pod(target, options))


def experiment_objects(
    name: str, owner: str, job: JobNeed, target: KubeTarget, *, deadline_s: float, process: str
) -> list[dict[str, Any]]:
    """The objects of an experiment: a Job whose indexes are its fabrics, and a NetworkPolicy.

    deadline_s: seconds after its start when the cluster ends the Job, whatever it does. process: which one needs it.
    """
    options = (LEASE, f"{LEASE_S:g}")
    text = _render(
        "experiment.yaml.j2",
        name=name,
        owner=owner,
        object=object_name(name),
        title=json.dumps(job.title),
        completions=job.fabrics,
        parallelism=min(job.fabrics, _MOST_PODS if job.parallel is None else job.parallel),
        alone=job.parallel is None,
        expired=EXPIRED,
        deadline_s=round(deadline_s),
        process=process,
        resources=_resources(job.need, target),
        **_pod(target, options),
    )
    return list(yaml.safe_load_all(text))


def _resources(need: ShardNeed, target: KubeTarget) -> dict[str, dict[str, str]]:
    """Requests and limits of a pod. What the user's template has is taken: of memory and disk one of both is enough."""
    millicpus = min(max(_LEAST_MILLICPUS, round(need.cpus * 1000)), _MOST_MILLICPUS)
    (container,) = _given(target, "spec").get("containers") or [{}]
    given = {key: (container.get("resources") or {}).get(key) or {} for key in _DISK}
    found = {}
    for key, other in (("requests", "limits"), ("limits", "requests")):
        own = {"memory": str(need.memory_bytes), "ephemeral-storage": _DISK[key]}
        own |= {"cpu": f"{millicpus}m"} if key == "requests" else {}
        both = {name: value for name, value in given[other].items() if name != "cpu"}
        found[key] = {name: str(value) for name, value in {**own, **both, **given[key]}.items()}
    return found


def _given(target: KubeTarget, part: str) -> dict[str, Any]:
    """A part of the user's template."""
    return dict(json.loads(target.pod or "{}").get(part) or {})


def _pod(target: KubeTarget, options: Sequence[str]) -> dict[str, Any]:
    """What every pod's template needs. options: of its first process."""
    metadata, spec = _given(target, "metadata"), _given(target, "spec")
    spec.pop("containers", None)
    secrets = [{"name": target.pull_secret}] if target.pull_secret else []
    if secrets := [*secrets, *(spec.pop("imagePullSecrets", None) or [])]:
        spec["imagePullSecrets"] = secrets
    # The image is of one architecture: as a rule that of the machine where it was built.
    machine = platform.machine()
    own = {"kubernetes.io/os": "linux", "kubernetes.io/arch": _ARCHITECTURES.get(machine, machine)}
    spec["nodeSelector"] = {**own, **(spec.get("nodeSelector") or {})}
    return {
        "namespace": target.namespace, "image": target.image, "local": is_local(target.image),
        "command": [*PYTHON, _INIT, *options], "ready": READY, "address": ADDRESS,
        "own_labels": metadata.get("labels") or {}, "annotations": {**_KEPT, **(metadata.get("annotations") or {})},
        "spread": spec.pop("topologySpreadConstraints", None) or [_SPREAD], "own_spec": spec,
    }  # fmt: skip


def lab_objects(
    lab: str, owner: str, shards: Sequence[ShardNeed], target: KubeTarget, *, options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The same as dicts, in the order in which they are made."""
    return list(yaml.safe_load_all(lab_text(lab, owner, shards, target, options=options)))


def namespace_text(namespace: str) -> str:
    """The manifest of a namespace for labs."""
    return _render("namespace.yaml.j2", namespace=namespace)


def access_text(namespace: str) -> str:
    """The manifest of the rights that Heddle needs in a namespace."""
    return _render("access.yaml.j2", namespace=namespace, rules=RULES)


def admin_files(namespace: str) -> dict[str, str]:
    """File name -> manifest: what an administrator makes once for a namespace, in the order to apply them."""
    return {
        "1-namespace.yaml": namespace_text(namespace),
        "2-access.yaml": access_text(namespace),
        "3-policy.yaml": _render("policy.yaml.j2", namespace=namespace),
    }


def files(lab: str, owner: str, shards: Sequence[ShardNeed], target: KubeTarget) -> Mapping[str, str]:
    """File name -> manifest: all that `render --runtime kubernetes` writes, in the order to apply them."""
    return {**admin_files(target.namespace), "4-lab.yaml": lab_text(lab, owner, shards, target)}


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, not HTML; names are checked, and texts are quoted by tojson
    )
    return env.get_template(template).render(values)


READING: Final = ReadOptions(kind="pod's template", example="docs/kubernetes.md")
_OWN: Final = ("heddle.", "app.kubernetes.io/name")  # labels by which Heddle finds its pods
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_TEXTS: Final = {"*": str}  # any key
_SIZES: Final = dict.fromkeys(("cpu", "memory", "ephemeral-storage"), _QUANTITY)
_SPREAD_KEYS: Final = {
    "maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "minDomains": int, "nodeAffinityPolicy": str,
    "nodeTaintsPolicy": str,
}  # fmt: skip
_KEYS: Final = {
    "metadata": {"annotations": _TEXTS, "labels": _TEXTS},
    "spec": {
        "nodeSelector": _TEXTS,
        "tolerations": [{"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}],
        "topologySpreadConstraints": [_SPREAD_KEYS],
        **dict.fromkeys(("priorityClassName", "runtimeClassName", "schedulerName"), str),
        "imagePullSecrets": [{"name": str}],
        "containers": [{"resources": {"requests": _SIZES, "limits": _SIZES}}],
    },
}
_WORDS: Final = {
    str: "a text: write it in quotes", int: "a whole number", dict: "keys and values", list: "a list",
    re.Pattern: "a quantity of Kubernetes, as 500m, 2 or 4Gi",
}  # fmt: skip


def read_pod(file: Path, name: str) -> str:
    """The checked content of a file. name: as the user wrote it."""
    document = parse(read_text(file, name, READING), name, READING)
    problems = []
    for trail, why, hint in _wrong(document.data, _KEYS, ()):
        text, what = document.text(trail), dotted(trail)
        problems.append(Problem(document.where(trail), f"{what}: {text}" if text else what, why, hint))
    if problems:
        raise InputError(*problems)
    return json.dumps(document.data, sort_keys=True)


def _wrong(value: Any, kind: Any, trail: Trail) -> Iterator[tuple[Trail, str, str]]:
    """Each value that is not of its kind, as _KEYS has them: its path, why, and a hint."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for key, each in value.items():
            below = (*trail, key)
            if trail[-1:] == ("labels",) and key.startswith(_OWN):
                yield below, "is a label of Heddle", "choose another name"
            elif known := kind.get(key) or kind.get("*"):
                yield from _wrong(each, known, below)
            else:
                yield below, "is not a key of a pod's template: Heddle sets all else", did_you_mean(key, kind)
    elif isinstance(kind, list) and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong(each, kind[0], (*trail, number))
        if trail == ("spec", "containers") and len(value) != 1:
            yield trail, "is not one container: a pod of Heddle has one", "write one item with resources"
    elif kind is _QUANTITY and type(value) in (str, int, float) and _QUANTITY.fullmatch(str(value)):
        return
    elif type(value) is not kind:
        yield trail, f"is not {_WORDS[kind if isinstance(kind, type) else type(kind)]}", ""
