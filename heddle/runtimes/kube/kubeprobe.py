"""What a cluster allows, for `./inv setup kubernetes`: two probe pods that need what shards need, and are removed.

In:  a target. Out: ProbeReport: rows as doctor's, and the manifests that allow what is missing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import HeddleError, MachineError
from heddle.base.process import run
from heddle.base.tables import some_of
from heddle.base.untrusted import parsed
from heddle.host.doctor import Check, Report
from heddle.runtimes.cluster import ShardNeed
from heddle.runtimes.kube import manifests, podinit
from heddle.runtimes.kube.api import KubeApi
from heddle.runtimes.kube.kubecluster import KubeCluster
from heddle.runtimes.kube.target import KubeTarget

PROBE: Final = "setup-probe"  # no lab has such a name
_TRIALS: Final = "heddle.runtimes.kube.podtrials"
_NEEDS: Final = tuple(ShardNeed(name, (), 512 << 20, 0.1) for name in ("s1", "s2"))
_SECONDS: Final = 240.0
_BELOW: Final = "apply the manifest below"
_LEVEL: Final = "pod-security.kubernetes.io/enforce"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Rows, and file name -> manifest for an administrator."""

    report: Report
    manifests: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """`ok`, `checks`, `manifests`."""
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
    wanted: dict[str, str] = {}
    namespace, wanted_namespace = _namespace(api)
    rights = _rights(cluster)
    rows += [namespace, rights]
    if wanted_namespace:
        wanted["namespace.yaml"] = manifests.namespace_text(api.target.namespace)
    if not rights.ok:
        wanted["access.yaml"] = manifests.access_text(api.target.namespace)
        return ProbeReport(Report(tuple(rows)), wanted)
    try:
        with _pods(cluster, observer) as addresses:
            rows.append(Check("pods", True, f"two pods run, from image {api.target.image}"))
            rows += _tried(cluster, addresses, observer)
    except MachineError as error:
        rows.append(_failed("pods", error))
        if any("Pod Security" in each.why or "does not exist" in each.why for each in error.problems):
            wanted["namespace.yaml"] = manifests.namespace_text(api.target.namespace)
    return ProbeReport(Report(tuple(rows)), wanted)


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


def _namespace(api: KubeApi) -> tuple[Check, bool]:
    """The namespace's row, and whether its manifest is wanted."""
    name = api.target.namespace
    found = api.read(f"/api/v1/namespaces/{name}", f"read namespace {name}")
    if found is None:
        return Check("namespace", True, f"{name}: this user may not see its labels", required=False), False
    level = (found["metadata"].get("labels") or {}).get(_LEVEL)
    if level in (None, "privileged"):
        detail = f"{name}: Pod Security level {level or 'of the cluster (no label)'}"
        return Check("namespace", True, detail), False
    fix = _BELOW
    return Check("namespace", False, f"{name}: Pod Security level {level}; shards need privileged", fix), True


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
    words = [*cluster.python, _TRIALS]
    names = [each.name for each in _NEEDS]
    nodes = [f"node {each.node}" for _, each in sorted(cluster.states(PROBE).items())]

    def tried(name: str, peer: str) -> list[Check]:
        argv = cluster.argv(PROBE, name, [*words, "check", addresses.get(peer, "")])
        done = run(argv, check=False, timeout=_SECONDS)
        if done.code != 0:
            return [Check("trials", False, f"the trials in the pod ended with an error: {done.reason}")]
        try:
            return [_check_of(each) for each in parsed(done.out.encode())]
        except (ValueError, TypeError, KeyError, AttributeError):
            return [Check("trials", False, f"the pod of shard {name} has sent no checks")]

    with ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:
        for name in names:
            stack.enter_context(_answering(cluster.argv(PROBE, name, [*words, "answer"])))
        found = list(pool.map(tried, names, reversed(names)))
    rows = joined(dict(zip(nodes, found, strict=True)) if len({*nodes}) == len(names) else {"": found[0]})
    observer.end("trials", f"{sum(each.ok for each in rows)} of {len(rows)} passed")
    return rows


def _check_of(row: Mapping[str, Any]) -> Check:
    """What a pod has sent, with the types of its fields."""
    fix, required = str(row.get("fix", "")), row.get("required") is not False
    return Check(str(row["name"]), row["ok"] is True, str(row["detail"]), fix, required)


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
def _answering(argv: list[str]) -> Iterator[None]:
    """The peer answers for a with block."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()
