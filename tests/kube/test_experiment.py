"""Experiments whose fabrics are pods of a real cluster: the same result as on one machine, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle_plugins.kubernetes import manifests
from tests.kube.api import eventually
from tests.kube.cluster import RESTRICTED
from tests.kube.spaces import RUNTIME, Space, quota, start
from tests.machine import patience

pytestmark = pytest.mark.usefixtures("administrator")
FILES = {
    "mine.yml": """
title: Two fabrics
fabric: own.yml
runs:
  sweep: {set: {routing.ecmp: [flow, e-ecmp]}, workload: [ring.yml, direct.yml]}
  wrong:
    set: {routing.ecmp: flow}
    down: [rtsw1:eth1]
    repeats: 2
    run: {matrix: far.csv, iters: 1, warmup: 0}
  paper: {offline: true, workload: ring.yml}
checks:
  spread: mmr(sweep)
  even: {value: "wrong(sweep, ecmp='e-ecmp', workload='ring.yml') * mmr(paper)", sign: is 0}
  band: {value: max(wrong(sweep)), sign: is 1}
  unknown: mmr(wrong)
""",
    "own.yml": "{name: own, shape: clos, racks: 2, ctsw: 2, hosts_per_rack: 2, link: {host: 40mbit, fabric: 40mbit}}\n",
    "ring.yml": "{collective: all-reduce, size: 32K, iters: 1, warmup: 0, placement: cyclic, qps: 4}\n",
    "direct.yml": "{collective: all-to-all, size: 32K, iters: 1, warmup: 0, placement: cyclic, qps: 1}\n",
    "far.csv": "src,dst,bytes\n0,1,4096\n",
}
LONG = """
title: Long
fabric: {use: tiny, set: {link.host: 40mbit, link.fabric: 40mbit}}
runs:
  short: {run: {collective: all-reduce, size: 4K, iters: 1, warmup: 0}}
  long: {set: {routing.ecmp: flow}, run: {collective: all-reduce, size: 64K, iters: 10000}}
checks: {short: busbw(short), long: busbw(long)}
"""


def on(space: Space, *words: str) -> tuple[str, ...]:
    return ("experiment", *words, "--on", RUNTIME, "--namespace", space.name)


def ended(*words: str, code: int, config: Path | None = None) -> tuple[str, str]:
    """The outputs of a verb."""
    with start(*words, config=config) as process:
        out, said = process.communicate(timeout=patience(300))
    assert process.returncode == code, said
    assert "Traceback" not in said
    return out, said


def pods(space: Space) -> dict[str, Any]:
    return space.cluster.api.pods(space.name)


def running(space: Space) -> set[str]:
    """The names of pods whose first process runs."""
    return {name for name, each in pods(space).items() if each["status"]["phase"] == "Running"}


@contextmanager
def begun(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A verb for a with block, which a failed test ends."""
    with start(*words) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def until_said(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return
    raise AssertionError("".join(lines))


def result(directory: Path) -> dict[str, Any]:
    """An experiment's document, without times, rates and the names of this directory."""
    document = json.loads((directory / "mine.json").read_text().replace(str(directory), "DIR"))
    for each in document["runs"]:
        each["figures"] = {name: value for name, value in each["figures"].items() if name in ("mmr", "qps", "packets")}
        each["unfit"] = ""  # a busy processor
    for row in document["checks"]:
        row["unreliable"], row["why"] = "", [each for each in row["why"] if "UNRELIABLE" not in each]
    return dict(document)


def test_an_experiment_in_pods_has_the_result_of_one_on_this_machine(
    space: Callable[[str], Space], tmp_path: Path
) -> None:
    there = space("expsame")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    file, found = str(tmp_path / "mine.yml"), []
    for place, words in (("here", ("experiment", file)), ("there", on(there, file))):
        _, said = ended(*words, "--accept-unreliable", "--out", str(tmp_path / place), code=1)
        found.append(result(tmp_path / place))
        assert "run 7 of 7" in said
        assert ("runs on node n2" in said) == (place == "there")
    assert found[0] == found[1]
    assert {row["check"]: row["state"] for row in found[1]["checks"]} == {
        "spread": "shown", "even": "sign only", "band": "out of band", "unknown": "not known"
    }  # fmt: skip
    assert all(each["proven"] for each in found[1]["runs"] if each["ids"])
    copied = [sorted(each.name for each in (tmp_path / place / "runs").iterdir()) for place in ("here", "there")]
    assert copied[0] == copied[1] and len(copied[0]) == 6
    ended("report", f"{tmp_path}/there/runs/{copied[1][0]}", "--out", str(tmp_path / "x.html"), code=0)
    assert there.is_empty()


def test_a_lost_pod_starts_once_more_and_a_fabric_that_loses_two_has_failed(
    space: Callable[[str], Space], tmp_path: Path
) -> None:
    there = space("explost")
    (tmp_path / "x.yml").write_text(LONG)
    argv = on(there, str(tmp_path / "x.yml"), "--format", "json")
    with begun(*argv) as process:
        for _ in range(2):
            until_said(process, "run 2 of 2: long")
            (name,) = eventually("only its pod runs", lambda: len(names := running(there)) == 1 and names)
            assert there.cluster.kill_pod(name, there.name) > 4
        out, said = process.communicate(timeout=patience(120))
    assert process.returncode == 1, said
    words = "fabric 2 (tiny, link.host=40mbit, link.fabric=40mbit, routing.ecmp=flow) has "
    assert words in said and "exit code 137, for the second time" in said
    short, long = json.loads(out)["runs"]
    assert short["proven"] and not short["why"] and "for the second time" in long["why"]
    assert there.is_empty()


def test_ctrl_c_keeps_what_was_measured(space: Callable[[str], Space], tmp_path: Path) -> None:
    there = space("expctrlc")
    (tmp_path / "x.yml").write_text(LONG)
    with begun(*on(there, str(tmp_path / "x.yml"), "--parallel", "1", "--format", "json")) as process:
        until_said(process, "run 2 of 2: long")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=patience(120))
    assert process.returncode == 130, said
    document = json.loads(out)
    assert document["interrupted"] and [each["run"] for each in document["runs"]] == ["short"]
    assert there.is_empty()


def test_the_pods_of_a_killed_experiment_end_and_the_next_one_removes_them(
    space: Callable[[str], Space], tmp_path: Path
) -> None:
    there = space("expkilled")
    (tmp_path / "x.yml").write_text(LONG)
    with begun(*on(there, str(tmp_path / "x.yml"))) as process:
        until_said(process, "run 2 of 2: long")
        names = running(there)
        process.send_signal(signal.SIGKILL)
    eventually("they have ended", lambda: not names & running(there), 30)
    assert any(each.startswith("jobs ") for each in there.objects())
    _, said = ended(*on(there, str(tmp_path / "x.yml"), "--only", "short"), code=0)
    assert "removed the pods of 1 experiment that had been killed" in said
    assert there.is_empty()


def test_a_fabric_that_does_not_fit_is_named_and_the_others_run(space: Callable[[str], Space], tmp_path: Path) -> None:
    there = space("expquota")
    (tmp_path / "x.yml").write_text(
        "title: Sizes\nfabric: tiny\nruns:\n"
        "  sizes: {set: {racks: [2, 12]}, run: {collective: all-reduce, size: 4K, iters: 1, warmup: 0}}\n"
        "checks: {wrong: {value: wrong(sizes), sign: is 0}}\n"
    )
    with quota(there, "900Mi") as limited:
        out, said = ended(*on(limited, str(tmp_path / "x.yml"), "--accept-unreliable", "--format", "json"), code=1)
        assert "warning: fabric 2 (tiny, racks=12) exceeds quota small: requested: requests.memory=" in said
        small, large = json.loads(out)["checks"]
        assert (small["state"], large["state"]) == ("sign only", "not known")
        assert limited.is_empty()
    _, said = ended(*on(there, str(tmp_path / "x.yml"), "--image", "nothere:1"), code=3)
    assert "needs image nothere:1, which is not on node n" in said and "NO VALUE" not in said
    assert there.is_empty()


def test_the_rights_of_the_manifest_are_enough(space: Callable[[str], Space], tmp_path: Path) -> None:
    there = space("expstudent")
    api, config, rbac = there.cluster.api, there.cluster.restricted, "apis/rbac.authorization.k8s.io/v1"
    (tmp_path / "x.yml").write_text(LONG)
    argv = on(there, str(tmp_path / "x.yml"), "--only", "short")
    _, said = ended(*argv, code=3, config=config)
    assert "this user may not: list jobs, create jobs" in said
    role, binding = [
        each for each in yaml.safe_load_all(manifests.access_text(there.name)) if "rbac" in each["apiVersion"]
    ]
    binding["subjects"] = [{"kind": "User", "name": RESTRICTED, "apiGroup": "rbac.authorization.k8s.io"}]
    names = {name for rule in manifests.EXPERIMENT_RULES for name in rule.resources}
    role["rules"] = [each for each in role["rules"] if {*each["resources"]} <= names]
    api.post(there.path("roles", rbac), role)
    api.post(there.path("rolebindings", rbac), binding)
    there = there.with_kept("roles heddle", "rolebindings heddle")
    ended(*argv, code=0, config=config)
    assert there.is_empty()
