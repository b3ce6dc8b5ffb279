"""The cluster of suite kube: built if the cache does not have it, started once, ended with the test run.

    def test_a_lab_over_two_pods(kube_cluster: RealCluster) -> None:
        kube_cluster.kubeconfig, kube_cluster.context, kube_cluster.nodes       # an administrator's access
        kube_cluster.restricted                                                 # a user without rights
        kube_cluster.kill_pod("s1"); kube_cluster.stop_kubelet("n1"); kube_cluster.api.drain("n1")

A test that stops a kubelet or drains a node starts it again, or undoes that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml

from heddle.host import packages
from heddle_plugins.kubernetes import manifests
from heddle_plugins.testing.testsession import StopSignals
from tests.kube.api import eventually
from tests.kube.cluster import RealCluster, started
from tests.kube.spaces import Space


@pytest.fixture(scope="session")
def kube_cluster() -> Iterator[RealCluster]:
    """A control plane and two nodes with Heddle's image; pods have an MTU of 1450, as behind an overlay.

    Skipped with the reason where this machine cannot run it; `./inv test kube` installs the packages first.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := packages.missing(packages.KUBE):
        names = " ".join(part.packages[0] for part in missing)
        pytest.skip(f"needs {names} (apt-get install {names}, or ./inv test kube)")
    signals = StopSignals()
    signals.install()
    try:
        with started(lambda text: print(text, file=sys.stderr)) as cluster:
            print("a real Kubernetes:", cluster.seconds, file=sys.stderr)
            yield cluster
    finally:
        signals.restore()


@pytest.fixture(autouse=True)
def administrator(kube_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs and functions of a test use the cluster as its administrator."""
    monkeypatch.setenv("KUBECONFIG", str(kube_cluster.kubeconfig))


@pytest.fixture(scope="session")
def space(kube_cluster: RealCluster) -> Callable[[str], Space]:
    """Makes namespaces; a test run makes each name once."""

    def make(name: str) -> Space:
        found = Space(kube_cluster, name)
        kube_cluster.api.post("/api/v1/namespaces", yaml.safe_load(manifests.namespace_text(name)))
        eventually("pods can be made", lambda: kube_cluster.api.get(found.path("serviceaccounts/default")))
        eventually("it has its certificates", lambda: kube_cluster.api.get(found.path("configmaps/kube-root-ca.crt")))
        return Space(kube_cluster, name, frozenset(found.objects()))

    return make
