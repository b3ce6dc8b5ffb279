"""The examples of topologies/ and the files of traffic/: each is explained in its first lines, and can be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.cli.completion import candidates
from heddle.endpoints.workloadfile import files_of as files_of_plan
from heddle.endpoints.workloadfile import load_workload, workload_words, workloads
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported.choose import files_of
from heddle.lab.imported.imported import import_topology
from heddle.offline.forecast import Ask, forecast
from heddle.offline.loads import traffic_of
from heddle.runs.run import plan_workload
from heddle.spec.load import presets

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "topologies/examples"
TOPOLOGIES = sorted(EXAMPLES.glob("*.clab.yml"))
FABRICS = sorted(set(EXAMPLES.glob("*.yml")) - set(TOPOLOGIES))


@pytest.mark.parametrize("path", [*TOPOLOGIES, *FABRICS], ids=lambda path: path.name)
def test_an_example_says_what_it_is_for_and_what_to_type(path: Path) -> None:
    lines = path.read_text().split("\nname:")[0].splitlines()
    assert all(line.startswith("#") for line in lines)
    typed = [line for line in lines if line.startswith("#   ./inv ")]
    assert any(f"topologies/examples/{path.name}" in line for line in typed)


@pytest.mark.parametrize("path", FABRICS, ids=lambda path: path.name)
def test_an_example_fabric_is_one(path: Path) -> None:
    assert len(load_fabric(str(path)).fabric.hosts) >= 4
    assert path.stem not in presets(), "examples are named by their paths"


@pytest.mark.parametrize("runtime", ["netns", "containerlab"])
@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.name)
def test_an_example_topology_can_be_brought(path: Path, runtime: str) -> None:
    fabric = import_topology(path, runtime, None).fabric
    assert len(fabric.switches) == (2 if path.name == "pair.clab.yml" else 4)
    assert len(fabric.hosts) >= 2


def test_every_file_of_the_examples_is_used_and_named_after_its_node() -> None:
    used = {Path(name) for path in TOPOLOGIES for name in files_of(str(path))}
    assert {path for path in EXAMPLES.rglob("*") if path.is_file()} - set(FABRICS) == used
    # Configurations belong to the node they are named after.
    for config in EXAMPLES.glob("*/*.conf"):
        if config.name != "vtysh.conf":
            text = config.read_text()
            assert re.search(rf"^hostname {config.stem}$", text, re.MULTILINE), config
            assert text.startswith(f"! {config.stem}: "), config


TRAFFIC = ROOT / "traffic"
PLAN_FILES = sorted(path for path in TRAFFIC.iterdir() if path.suffix in (".yml", ".csv"))


def fabric_of(name: str) -> str:
    """The fabric in the command at the head of a workload's file."""
    text = (TRAFFIC / f"{name}.yml").read_text()
    found = re.search(rf"^#   \./inv predict (\S+) --workload {name}(?=[, ]|$)", text, re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("path", PLAN_FILES, ids=lambda path: path.name)
def test_every_file_begins_with_what_it_is_for(path: Path) -> None:
    lines = path.read_text().splitlines()
    comments = [line for line in lines[:2] if line.startswith("# ")]
    assert len(comments) == 2
    if path.suffix == ".yml":
        assert path.stem in workloads() and fabric_of(path.stem), "a command"


@pytest.mark.parametrize("name", workloads())
def test_every_plan_predicts_on_its_fabric(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fabric = load_fabric(fabric_of(name)).fabric
    monkeypatch.chdir(tmp_path)
    found = forecast(fabric, load_workload(name).workload, Ask(), Silent())
    assert found.to_json()["workload"]["flows"] > 0
    assert found.to_json()["unreachable"]["flows"] == 0
    assert found.to_json()["completion"]["over_roofline"] >= 1


def test_there_are_workloads_of_each_sort_and_no_file_is_left_over() -> None:
    assert len(workloads()) >= 5
    matrices = [job.runs[1] for name in workloads() for job in load_workload(name).workload.jobs]
    assert {path.name for path in PLAN_FILES} <= {f"{name}.yml" for name in workloads()} | set(matrices)
    assert not set(workloads()) & set(workload_words()), "a word would hide a workload of that name"


@pytest.mark.parametrize("name", workloads())
def test_every_workload_fits_a_run_on_its_fabric_and_has_the_flows_of_its_prediction(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fabric = load_fabric(fabric_of(name)).fabric
    monkeypatch.chdir(tmp_path)
    workload = load_workload(name).workload
    (planned, _), predicted = plan_workload(fabric, workload), traffic_of(fabric, workload)
    assert [len(each.plan.flows()) for each in planned] == [each.connections.flows for each in predicted]


def test_jobs_of_two_tenants_have_nics_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = traffic_of(load_fabric("zone").fabric, load_workload("two-tenants").workload)
    assert [end.nic for end in a.endpoints] == [f"host{n}:eth1" for n in range(1, 17, 2)]
    assert [end.nic for end in b.endpoints] == [f"host{n}:eth1" for n in range(2, 17, 2)]
    assert (len(a.connections), len(b.connections)) == (8, 56)


def test_plans_are_found_by_name_path_and_keys() -> None:
    assert load_workload("all-reduce-1qp,qps=8,size=1M").workload.jobs[0].options.qps == 8
    with pytest.raises(InputError, match="did you mean qps"):
        load_workload("all-reduce-1qp,qpss=8")
    # A path still works and words mean what they meant.
    path, name = (load_workload(typed).workload.jobs[0] for typed in (str(TRAFFIC / "hot-rack.yml"), "hot-rack"))
    assert path.options == name.options
    assert load_workload("ring").workload.jobs[0].options.algorithm == "ring"
    # A misspelt name is hinted.
    with pytest.raises(InputError, match=r"did you mean checkpoint\?"):
        load_workload("chekpoint")
    with pytest.raises(InputError, match=r"files of traffic/: .*two-tenants"):
        load_workload("qqq")
    # Problems name the file of a plan.
    with pytest.raises(InputError, match=r"traffic/moe\.yml:\d+  ranks: 16"):
        traffic_of(load_fabric("tiny").fabric, load_workload("moe").workload)
    # Shells offer the names.
    import tasks

    offered = candidates(["./inv", "predict", "--workload", ""], {"predict": tasks.predict.verb}, [])
    assert set(workloads()) < set(offered)
    # Nothing is sent along for a plan that comes with heddle.
    assert files_of_plan("two-tenants,qps=2") == []


def test_the_example_of_the_manual_is_the_file() -> None:
    text = (ROOT / "docs/bring-your-own.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert (EXAMPLES / "pair.clab.yml").read_text().endswith(f"\n{shown}")
