"""Which cluster a command talks to: the kubeconfig, its contexts, and the owner of what is made there."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.host.doctor import Check
from heddle.lab import lifecycle
from heddle.runtimes.sharded import ShardPlan
from heddle_plugins.kubernetes.api import KubeApi
from heddle_plugins.kubernetes.kubecluster import KubeCluster, KubernetesRuntime
from heddle_plugins.kubernetes.kubeprobe import joined, probe
from heddle_plugins.kubernetes.podexec import LOST
from heddle_plugins.kubernetes.target import NAMESPACE, KubeTarget, owner

LAB = "gone"

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two contexts of a server that refuses connections: its port was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\n"
        f'clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}"}}}}]\n'
        "users: [{name: u, user: {token: secret}}]\n"
        "contexts:\n"
        "- {name: one, context: {cluster: c, user: u}}\n"
        "- {name: two, context: {cluster: c, user: u, namespace: labs}}\n"
        "current-context: one\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def test_context_and_namespace_are_those_of_the_kubeconfig_unless_named(kubeconfig: Path) -> None:
    assert KubeApi(KubeTarget()).target == KubeTarget("one", NAMESPACE)
    assert KubeApi(KubeTarget("two")).target == KubeTarget("two", "labs")
    assert KubeApi(KubeTarget("two", "mine")).target == KubeTarget("two", "mine")


def test_a_wrong_context_is_an_input_error_with_the_known_ones(kubeconfig: Path) -> None:
    with pytest.raises(InputError) as caught:
        KubeApi(KubeTarget("three"))
    assert caught.value.problems[0].hint == "use one, two"


@pytest.mark.parametrize("text", [None, "", "[", "a: b"])
def test_a_kubeconfig_that_cannot_be_used_is_a_machine_error(kubeconfig: Path, text: str | None) -> None:
    if text is None:
        kubeconfig.unlink()
    else:
        kubeconfig.write_text(text)
    with pytest.raises(MachineError) as caught:
        KubeApi(KubeTarget())
    assert "does not exist" in str(caught.value) if text is None else "cannot be used" in str(caught.value)


def test_a_server_that_refuses_connections_is_named(kubeconfig: Path) -> None:
    cluster = KubeCluster(KubeTarget("one", "labs"))
    with pytest.raises(MachineError) as caught:
        cluster.exists("zone")
    assert "refuses connections" in caught.value.problems[0].why
    report = probe(KubeTarget("one", "labs"), Silent())
    assert [(each.name, each.ok) for each in report.report.checks] == [("api", False)]
    assert "Missing in this cluster: api." in report.text()
    argv = cluster.argv("zone", "s1", ["true"])
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (LOST, "")
    assert "refuses connections" in done.stderr
    assert "secret" not in " ".join(argv)


def test_an_owner_is_of_a_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "a"))
    first = owner()
    assert owner() == first
    assert len(first) <= 63
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "b"))
    assert owner() != first


@pytest.fixture
def recorded(kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a lab in pods: its record, and its plan."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    options = {"context": "two", "namespace": "labs", "shards": "2"}
    state.write_record(state.Record(LAB, "kubernetes", "running", {"name": LAB}, options=options))
    ShardPlan({"s1": ("rtsw1",)}, "00", {"s1": "10.0.0.1"}, "kubernetes", options).write(LAB)
    return state.lab_dir(LAB)


def _cut_off(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


DAMAGED = {
    "intact": lambda path: None,
    "truncated": lambda path: _cut_off(path / "lab.json"),
    "gone": lambda path: (path / "lab.json").unlink(),
    "another runtime": lambda path: state.write_record(state.Record(LAB, "nonesuch", "running", {"name": LAB})),
    "plan truncated": lambda path: _cut_off(path / "shards.json"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_lab_is_found_by_its_record_or_else_by_its_plan(recorded: Path, damage: Callable[[Path], None]) -> None:
    damage(recorded)
    runtime = KubernetesRuntime()
    place = runtime.place_of(LAB)
    assert place is not None
    assert (place["context"], place["namespace"]) == ("two", "labs")
    assert runtime.cluster(LAB).target == KubeTarget("two", "labs")


def test_without_both_the_error_says_how_to_name_the_cluster(recorded: Path) -> None:
    for name in ("lab.json", "shards.json"):
        _cut_off(recorded / name)
    with pytest.raises(MachineError) as caught:
        lifecycle.down(LAB)
    assert "shards.json" in caught.value.problems[0].what
    assert f"./inv down {LAB} --runtime kubernetes --namespace NS" in caught.value.problems[-1].hint
    assert KubernetesRuntime({"namespace": "labs"}).cluster(LAB).target == KubeTarget("one", "labs")


def test_a_cluster_that_is_gone_keeps_the_record_and_says_how_to_forget_it(recorded: Path) -> None:
    with pytest.raises(MachineError) as caught:
        lifecycle.down(LAB)
    first, last = caught.value.problems
    assert (first.where, first.why) == ("kubernetes", "refuses connections")
    assert str(recorded) in last.why and "gone for good" in last.hint
    assert recorded.exists()


def test_a_plan_that_cannot_be_read_is_named(recorded: Path) -> None:
    for text in ("", "[]", '{"shards": []}', '{"shards": {"s1": 1}}', "[" * 100_000, "\0"):
        (recorded / "shards.json").write_text(text)
        with pytest.raises(MachineError, match=f"run ./inv down {LAB}"):
            ShardPlan.read(LAB)


def test_a_lab_on_this_machine_is_not_taken_down_as_one_in_pods(recorded: Path) -> None:
    state.write_record(state.Record(LAB, "netns", "running", {"name": LAB}))
    with pytest.raises(InputError, match=r"is on this machine \(runtime netns\)"):
        lifecycle.down(LAB, cluster={"namespace": "labs"})


def test_what_only_one_node_does_not_have_is_named_with_that_node() -> None:
    found = {
        "node n1": [
            Check("bpf", True, "fine"),
            Check("netem", False, "none", "use others"),
            Check("htb", True, "fine"),
        ],
        "node n2": [
            Check("bpf", False, "denied", "allow it"),
            Check("netem", False, "none"),
            Check("htb", True, "good"),
        ],
    }
    assert joined(found) == [
        Check("bpf", False, "node n2: denied", "allow it"),
        Check("netem", False, "none", "use others"),
        Check("htb", True, "fine"),
    ]


def test_the_client_is_used_without_its_classes_of_objects_and_a_program_may_still_import_them() -> None:
    script = (
        "import sys\n"
        "from heddle_plugins.kubernetes.api import client\n"
        "assert client().connections and 'kubernetes.client.models' not in sys.modules\n"
        "from kubernetes.client import V1Pod, ApiException\n"
        "assert client().error is ApiException\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
