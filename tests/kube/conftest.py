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
from collections.abc import Iterator

import pytest

from heddle.host import packages
from heddle.testing.testsession import StopSignals
from tests.kube.cluster import RealCluster, started


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
