"""What a cluster allows, for `./inv setup kubernetes`: two probe pods that need what shards need, and are removed.

In:  a target. Out: ProbeReport: rows as doctor's, and the manifests that allow what is missing.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.tables import some_of
from heddle.base.untrusted import parsed
from heddle.host.doctor import Check, Report
from heddle.runtimes.clusterkind import ClusterReport, ShardNeed, UnreachableError
from heddle.switch.links.cuts import tunnel_port
from heddle_plugins.kubernetes import manifests, podinit
from heddle_plugins.kubernetes.api import KubeApi
from heddle_plugins.kubernetes.kubecluster import KubeCluster
from heddle_plugins.kubernetes.manifests import pod_name
from heddle_plugins.kubernetes.podexec import answer
from heddle_plugins.kubernetes.target import KubeTarget, owner

PROBE: Final = "setup-probe"  # no lab has such a name
_TRIALS: Final = "heddle_plugins.kubernetes.podtrials"
_NEEDS: Final = tuple(ShardNeed(name, (), 512 << 20, 0.1) for name in ("s1", "s2"))
_SECONDS: Final = 240.0
_READY_S: Final = 30.0
_END_S: Final = 5.0
_MOST_ROWS: Final = 100
_MOST_TEXT: Final = 1000  # characters of a field of a row
_BELOW: Final = "apply the manifests below: kubectl apply -f DIR, with ./inv setup kubernetes --out DIR"
_OPEN: Final = "as administrator: apply 3-policy.yaml of ./inv setup kubernetes --out DIR (docs/kubernetes.md)"
_LEVEL: Final = "pod-security.kubernetes.io/enforce"


@dataclass(frozen=True, slots=True)
class ProbeReport(ClusterReport):
    """Rows, and file name -> manifest for an administrator."""

    report: Report
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.report.ok

    @property
    def manifests(self) -> Mapping[str, str]:
        """The files, if a row needs them."""
        return self.files if any(each.fix == _BELOW and not each.ok for each in self.report.checks) else {}

    def to_json(self) -> dict[str, Any]:
        return {**self.report.to_json(), "manifests": dict(self.manifests)}

    def text(self) -> str:
        """The table, the verdict, and the manifests."""
        absent = [each.name for each in self.report.checks if each.required and not each.ok]
        verdict = f"Missing in this cluster: {', '.join(absent)}." if absent else "This cluster can run fabrics."
        parts = [self.report.table(), verdict]
        for name, manifest in self.manifests.items():
            parts.append(f"# {name}: for an administrator, by kubectl apply -f {name}\n{manifest.rstrip()}")
        return "\n\n".join(parts)


def probe(target: KubeTarget, observer: Observer) -> ProbeReport:
    """Look at the cluster, and try in two pods. The pods are removed however this ends."""
    try:
        cluster = KubeCluster(target, options=(podinit.TRY,))
        api = cluster.api
        rows = [_reached(api)]
    except MachineError as error:
        return ProbeReport(Report((_failed("api", error),)))
    files = manifests.admin_files(api.target.namespace)
    rows += [namespace := _namespace(api), rights := _rights(cluster)]
    if not (namespace.ok and rights.ok):
        return ProbeReport(Report(tuple(rows)), files)
    rows.append(_policy(cluster))
    try:
        with _pods(cluster, observer) as addresses:
            rows.append(Check("pods", True, f"two pods run, from image {api.target.image}"))
            rows += _tried(cluster, addresses, observer)
    except MachineError as error:
        rows.append(_failed("pods", error))
    return ProbeReport(Report(tuple(rows)), files)


def _failed(name: str, error: HeddleError) -> Check:
    first = error.problems[0]
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    words = ("" if first.where == "kubernetes" else first.where, first.what, first.why)
    fix = _BELOW if first.hint.startswith("run ./inv setup kubernetes") else first.hint
    return Check(name, False, " ".join(filter(None, words)) + more, fix)


def _reached(api: KubeApi) -> Check:
    version = api.read("/version", "read the version") or {}
    named = f"context {api.target.context}: " if api.target.context else ""
    return Check("api", True, f"{named}{api.server} answers, {version.get('gitVersion', 'version not known')}")


def _namespace(api: KubeApi) -> Check:
    """Whether it exists, and its level."""
    name = api.target.namespace
    try:
        found = api.read(f"/api/v1/namespaces/{name}", f"read namespace {name}")
    except UnreachableError:
        raise
    except MachineError as error:
        return Check("namespace", False, f"{name} {error.problems[0].why}", _BELOW)
    if found is None:
        return Check("namespace", True, f"{name}: this user may not see its labels", required=False)
    level = (found["metadata"].get("labels") or {}).get(_LEVEL)
    if level in (None, "privileged"):
        return Check("namespace", True, f"{name}: Pod Security level {level or 'of the cluster (no label)'}")
    return Check("namespace", False, f"{name}: Pod Security level {level}; shards need privileged", _BELOW)


def _policy(cluster: KubeCluster) -> Check:
    """Whether the namespace refuses a pod with a path of its node. Nothing is made: the API is only asked."""
    *_, shard = manifests.lab_objects(f"{PROBE}-policy", owner(), _NEEDS[:1], cluster.target)
    shard["spec"]["template"]["spec"]["volumes"] = [{"name": "node", "hostPath": {"path": "/"}}]
    try:
        cluster.api.create(shard, trial=True)
    except UnreachableError:
        raise
    except MachineError:
        return Check("policy", True, "pods with a path of their node are refused", required=False)
    why = "who may make StatefulSets here can mount any path of a node: is root of all nodes"
    return Check("policy", False, why, _OPEN, required=False)


def _rights(cluster: KubeCluster) -> Check:
    """Every right that Heddle uses."""
    if absent := cluster.missing_rights():
        return Check("rights", False, f"this user may not: {some_of(absent, 6)}", _BELOW)
    return Check(
        "rights", True, f"this user has all {sum(len(each.resources) * len(each.verbs) for each in manifests.RULES)}"
    )


@contextmanager
def _pods(cluster: KubeCluster, observer: Observer) -> Iterator[Mapping[str, str]]:
    """Two pods for a with block; shard -> address."""
    try:
        cluster.create(PROBE, _NEEDS, observer)
        yield cluster.addresses(PROBE)
    except BaseException:
        with suppress(HeddleError):  # the first error is the one to report
            cluster.remove(PROBE, observer)
        raise
    cluster.remove(PROBE, observer)


def _tried(cluster: KubeCluster, addresses: Mapping[str, str], observer: Observer) -> list[Check]:
    """What the pods find, each with the other one as its peer."""
    observer.begin("trials")
    words, port = [*cluster.python, _TRIALS], str(tunnel_port(cluster.target.to_json()))
    names = [each.name for each in _NEEDS]
    nodes = [f"node {each.node}" for _, each in sorted(cluster.states(PROBE).items())]

    with ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:
        for name in names:
            stack.enter_context(answering(cluster, name, [*words, "answer", port]))
        checks = [[*words, "check", port, addresses.get(peer, "")] for peer in reversed(names)]
        found = list(pool.map(tried, itertools.repeat(cluster), names, checks))
    rows = joined(dict(zip(nodes, found, strict=True)) if len({*nodes}) == len(names) else {"": found[0]})
    observer.end("trials", f"{sum(each.ok for each in rows)} of {len(rows)} passed")
    return rows


def tried(cluster: KubeCluster, name: str, argv: Sequence[str]) -> list[Check]:
    """The rows that the probe pod of a shard finds, within limits of size and time."""
    try:
        return checks_of(answer(cluster.api, pod_name(PROBE, name), argv, _SECONDS).encode(), name)
    except UnreachableError:
        raise
    except MachineError as error:
        return [_failed("trials", error)]


def checks_of(said: bytes, name: str) -> list[Check]:
    """The rows that a probe pod has sent, with the types of their fields. name: of its shard."""
    try:
        rows = parsed(said)
        if len(rows) > _MOST_ROWS:
            raise ValueError(f"has more than {_MOST_ROWS} rows")
        return [_check_of(each) for each in rows]
    except (ValueError, TypeError, KeyError, AttributeError):
        return [Check("trials", False, f"the pod of shard {name} has sent no checks")]


def _check_of(row: Mapping[str, Any]) -> Check:
    name, detail, fix = (str(each)[:_MOST_TEXT] for each in (row["name"], row["detail"], row.get("fix", "")))
    return Check(name, row["ok"] is True, detail, fix, row.get("required") is not False)


def joined(found: Mapping[str, Sequence[Check]]) -> list[Check]:
    """The rows of several nodes in one list: of each check the first that failed, with the nodes where it failed."""
    rows = {check.name: check for checks in reversed([*found.values()]) for check in checks}
    for name in rows:
        failed = {
            node: check for node, checks in found.items() for check in checks if check.name == name and not check.ok
        }
        if failed and len(failed) < len(found):
            first = next(iter(failed.values()))
            rows[name] = replace(first, detail=f"{', '.join(failed)}: {first.detail}")
        elif failed:
            rows[name] = next(iter(failed.values()))
    return list(rows.values())


@contextmanager
def answering(cluster: KubeCluster, name: str, argv: Sequence[str]) -> Iterator[None]:
    """The pod of a shard answers its peer for a with block. MachineError when it does not begin to."""
    with Path(os.devnull).open("wb") as errors, ExitStack() as stack:
        process = cluster.open(PROBE, name, argv, errors)
        assert process.stdin is not None and process.stdout is not None  # noqa: S101
        stack.callback(process.stdout.close)  # what it prints is not read: then it waits no longer
        stack.callback(process.kill)
        if not select.select([process.stdout], [], [], _READY_S)[0]:
            why = f"has not begun to answer within {_READY_S:g} s"
            raise MachineError(Problem("kubernetes", f"pod {pod_name(PROBE, name)}", why))
        try:
            yield
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
