"""The manifests that `render --runtime kubernetes --pod FILE` writes, word for word."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.manifests import read_pod
from heddle_plugins.kubernetes.target import KubeTarget
from tests.unit.kubernetes.test_kube_manifests import SHARDS
from tests.unit.kubernetes.test_pod_template import WHOLE


def test_all_files_of_a_lab(
    golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    file = tmp_path / "pod.yml"
    file.write_text(WHOLE)
    for name, text in manifests.files("zone", "ann-1a2b", SHARDS, KubeTarget(namespace="labs")).items():
        golden(f"kubernetes/{name}", text)
    target = KubeTarget(namespace="labs", pull_secret="first", pod=read_pod(file, "pod.yml"))
    golden("kubernetes/4-lab-with-a-template.yaml", manifests.files("zone", "ann-1a2b", SHARDS, target)["4-lab.yaml"])
