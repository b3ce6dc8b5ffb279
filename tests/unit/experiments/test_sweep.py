"""What comes back from the pods of an experiment is what Running would have: figures, reasons, copies, estimates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from heddle.base import values
from heddle.base.conditions import UnknownValueError
from heddle.base.events import Observer, Silent
from heddle.base.problems import MachineError
from heddle.runtimes.netns_topology import packed
from heddle.runtimes.shardcalls import AGENT, OBSERVER, AgentCall
from heddle_plugins.experiments import inpod
from heddle_plugins.experiments.inpod import GroupOrder, SentFigures, SentRepeat, fingerprint
from heddle_plugins.experiments.loading import Experiment, load_experiment
from heddle_plugins.experiments.outcome import ExperimentResult
from heddle_plugins.experiments.running import Pods, Running, plan_text
from heddle_plugins.experiments.sweep import FabricPod, Sweep

ROOT = Path(__file__).parents[3]
FILE = """\
title: Sweep
fabric: own.yml
repeats: 2
runs:
  off: {offline: true, set: {routing.ecmp: [flow, e-ecmp]}, run: {collective: all-to-all, size: 1M, qps: 4}}
  live: {set: {ctsw: [2, 4, 8]}, run: {collective: all-reduce, size: 4K}}
checks:
  one: {value: mmr(off), sign: below 9}
  none: mmr(off, direction='nowhere')
  run: busbw(live)
"""
OWN = "{name: own, shape: clos, racks: 4, ctsw: 2, hosts_per_rack: 4}\n"


@pytest.fixture
def loaded(tmp_path: Path) -> Experiment:
    (tmp_path / "own.yml").write_text(OWN)
    file = tmp_path / "x.yml"
    file.write_text(FILE)
    return load_experiment(file, str(file))


def sweep(experiment: Experiment, copies: Path | None = None) -> Sweep:
    return Sweep(experiment, Silent(), copies=copies, typed=experiment.file)


def comparable(result: ExperimentResult) -> Any:
    return json.loads(json.dumps(result.to_json()))


def test_figures_from_a_pod_give_the_rows_of_those_that_were_measured_here(loaded: Experiment) -> None:
    here, there = Running(loaded, Silent()), sweep(loaded)
    here.run_group(0)
    for each in here.done:
        assert each.figures is not None
        figures = SentFigures.of(each.figures, each.variant, loaded)
        sent = SentRepeat(loaded.variants.index(each.variant), each.repeat, figures, each.why)
        there.take(values.load(json.loads(json.dumps(values.dump(sent)))))
    assert [row.state for row in here.result().rows][:2] == ["sign only", "sign only"]
    assert comparable(there.result()) == comparable(here.result())
    assert there.result().runs_csv() == here.result().runs_csv()
    with pytest.raises(UnknownValueError):
        SentFigures((), None, "", (), {}).value("mmr", {})


def test_copies_of_runs_are_written_once_and_go_with_runs_that_are_made_again(
    loaded: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    there, live = sweep(loaded, tmp_path / "copies"), [each for each in loaded.variants if each.live]
    number = loaded.variants.index(live[0])
    (tmp_path / "copies/x-live-2-1").mkdir(parents=True)  # of another experiment: it is left alone
    copied = there.take(SentRepeat(number, 1, None, "it failed", (packed(tmp_path / "run"),)))
    assert (tmp_path / "copies/x-live-2-1-2/run.json").read_text() == "{}"
    assert there.result().directories == {"live ctsw=2 1 1": str(tmp_path / "copies/x-live-2-1-2")}
    there.fail(live, "has no pod")
    assert [(each.variant.title, each.repeat) for each in there.done] == [
        ("live ctsw=2", 1), ("live ctsw=2", 2), ("live ctsw=4", 1), ("live ctsw=8", 1)
    ]  # fmt: skip
    assert there.done[1].why == f"{live[0].fabric_text}: has no pod"
    there.forget(live, copied)
    assert not there.done and not there.result().directories
    assert [*(tmp_path / "copies").iterdir()] == [tmp_path / "copies/x-live-2-1"]


class _Heard(Observer):
    """As the coordinator: it ends the agent when that has nothing more to do."""

    agent: AgentCall
    kinds: Mapping[str, Any] = inpod.EVENTS

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[tuple[str, Any]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def event(self, name: str, value: Any) -> None:
        self.events.append((name, value))
        if name != "repeated":
            self.agent.tell(inpod.DONE)


def called(order: GroupOrder) -> _Heard:
    """What an agent reports, in a process of its own."""
    heard = _Heard()

    def start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", AGENT]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    agent = heard.agent = AgentCall("x", start, lambda: None)
    try:
        agent.tell(inpod.BEAT)
        request = {"call": "experiment", "args": [values.dump(order), OBSERVER], "kwargs": {}}
        agent.call(request, heard)
    finally:
        agent.close()
    return heard


def test_an_agent_makes_the_runs_of_a_group_from_the_files_that_it_gets(loaded: Experiment, tmp_path: Path) -> None:
    order = sweep(loaded).order(0)
    assert [*order.files] == [str(tmp_path / "x.yml"), str(tmp_path / "own.yml")]
    for name in ("x.yml", "own.yml"):
        (tmp_path / name).unlink()
    heard = called(order)
    assert [name for name, _ in heard.events] == ["repeated", "repeated", "finished"]
    assert "run 2 of 8: off ecmp=e-ecmp" in heard.said
    assert heard.events[0][1].figures.value("mmr", {}) >= 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "0.0.1"}, "has Heddle "),
        ({"print": "0"}, "has other presets, measures or experiments than this Heddle"),
        ({"experiment": "newer"}, "is another Heddle than this: newer is not an experiment"),
    ],
)
def test_an_image_of_another_heddle_is_refused(loaded: Experiment, change: dict[str, Any], why: str) -> None:
    ((name, problems),) = called(replace(sweep(loaded).order(0), **change)).events
    assert name == "refused" and problems[0].what == "the image" and problems[0].why.startswith(why)


def test_a_file_that_cannot_be_sent_is_named(loaded: Experiment, tmp_path: Path) -> None:
    (tmp_path / "own.yml").unlink()
    with pytest.raises(MachineError, match=r"own\.yml"):
        sweep(loaded).order(0)


def test_a_changed_preset_changes_the_fingerprint(loaded: Experiment, tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(OWN.replace("racks: 4", "racks: 2"))
    again = load_experiment(tmp_path / "x.yml", loaded.file)
    assert fingerprint(loaded) == fingerprint(loaded) != fingerprint(again)


def test_a_pod_requests_the_memory_of_its_fabric_and_of_large_runs(loaded: Experiment) -> None:
    live = [each for each in loaded.variants if each.live]
    small, large = (FabricPod(1, 1, [each]).need for each in (live[0], live[2]))
    assert large.memory_bytes - small.memory_bytes > 6 * 23_300_000
    assert small.name == f"fabric 1 ({live[0].fabric_text})"


def test_the_estimate_counts_pods_at_the_same_time(loaded: Experiment) -> None:
    running = Running(loaded, Silent())
    one, two, three = (running.seconds(number) for number in (1, 2, 3))
    assert one > two > three > max(running.seconds(0) / 3, 6)
    assert " on 3 fabrics, about " in plan_text(loaded, None) and "node" not in plan_text(loaded, None)
    assert "on one node, " in plan_text(loaded, None, Pods()) and plan_text(loaded, None, Pods()).endswith("on 3 nodes")
    assert "node" not in plan_text(loaded, None, Pods(2))
