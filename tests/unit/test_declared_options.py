"""An option is declared in one place: a transport and a congestion control of a test have one of their own each.

Its flag, help, completion, the argument of an assistant and of a test, and the record of a run follow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import TypeAdapter

import tasks
from heddle.base.declared import Declared
from heddle.base.problems import InputError
from heddle.cli import verbs
from heddle.cli.argv import declared_parameters, parse
from heddle.cli.assistant import Assistant
from heddle.cli.completion import candidates
from heddle.cli.program import help_rows
from heddle.endpoints.congestion.controlled import CONTROLLERS
from heddle.endpoints.congestion.ratecontrol import ControlOptions
from heddle.endpoints.congestion.swift import Swift
from heddle.endpoints.runoptions import plain, run_options
from heddle.endpoints.transports import TRANSPORTS
from heddle.endpoints.transports.rc import Rc
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import job_plan
from heddle.runs.runrecord import read_record, write_record
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.views.report.runparts import run_commands
from heddle.wire.sport import SPORT_RULES
from tests.answers import Answers
from tests.unit import run_samples as samples

RUN = tasks.run.verb
VERBS = {"run": RUN}


@dataclass(frozen=True, slots=True)
class SlideOptions:
    slide: Annotated[int, Declared("packets that slide", "Transport", value="N", least=1, most=9, hint="use 2")] = 1


@dataclass(frozen=True, slots=True)
class BrakeOptions(ControlOptions):
    brake: Annotated[str, Declared("how it brakes", "Congestion", words=("soft", "hard"), closed=True)] = "soft"


class Slider(Rc):
    options: ClassVar[type[Any] | None] = SlideOptions


class Braker(Swift):
    options: ClassVar[type[ControlOptions]] = BrakeOptions


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSPORTS.core, "slider", Slider)
    monkeypatch.setitem(CONTROLLERS.core, "braker", Braker)


def test_flag_help_and_completion_follow() -> None:
    words = ["--transport=slider", "--slide=3", "--cc", "braker", "--brake", "hard"]
    options = run_options(**parse(RUN, words))
    assert options.of(SlideOptions) == SlideOptions(3) and options.of(BrakeOptions) == BrakeOptions(brake="hard")
    rows = help_rows(RUN)
    assert ("--slide N", "packets that slide (default: 1)") in rows["Transport"]
    assert ("--brake BRAKE", "how it brakes (default: soft)") in rows["Congestion"]
    (transport,) = (does for word, does in rows["Transport"] if word.startswith("--transport"))
    assert "slider" in transport
    assert "--slide" in candidates(["inv", "run", "--sl"], VERBS, [])
    assert candidates(["inv", "run", "--brake", ""], VERBS, []) == ["soft", "hard"]
    assert "braker" in candidates(["inv", "run", "--cc", ""], VERBS, [])
    with pytest.raises(InputError, match="is not a whole number"):
        parse(RUN, ["--slide=many"])


def test_an_assistant_gets_them_as_arguments() -> None:
    server = Assistant(VERBS, changing=True)
    (tool,) = server.tools()
    fields = tool.input_schema["properties"]
    slide = {"type": "integer", "description": "packets that slide", "minimum": 1, "maximum": 9}
    assert (fields["slide"], fields["brake"]["enum"]) == (slide, ["soft", "hard"])
    assert (fields["qps"]["minimum"], fields["qps"]["maximum"]) == (1, 128)
    assert fields["cc"]["enum"] == ["none", *CONTROLLERS] and fields["transport"]["enum"] == [*TRANSPORTS]
    assert (fields["qp_mode"]["enum"], fields["admission"]["enum"]) == (["split", "round-robin"], ["on", "off"])
    assert {"staggered", "ring"} <= {*fields["algorithm"]["enum"]} and "enum" not in fields["placement"]
    assert "--brake=hard" in server.words("run", {"cc": "braker", "brake": "hard"})


def test_ranges_and_owners_are_checked(answers: Answers) -> None:
    answers(lambda typed: run_options(**typed))
    with pytest.raises(TypeError, match="slid"):
        run_options(slid=2)


def test_plan_record_and_command_carry_them(tmp_path: Path) -> None:
    options = run_options(transport="slider", slide=3)
    plan = build_plan(load_fabric("tiny").fabric, options)
    adapter = TypeAdapter(Plan)
    assert adapter.validate_json(adapter.dump_json(plan)).options == plan.options  # as a worker gets it
    write_record(tmp_path, replace(samples.record(options), id="0001"))
    assert json.loads((tmp_path / "run.json").read_text())["header"]["options"]["slide"] == 3
    assert read_record(tmp_path).options == options
    assert plain(options)["slide"] == 3 and not {"own", "parameters"} & plain(options).keys()
    assert run_commands(options, "zone") == [
        "./inv run --lab zone --collective all-reduce --transport slider --slide 3"
    ]  # fmt: skip


def test_a_record_of_before_has_the_options_beside_the_others(tmp_path: Path) -> None:
    """Runs of earlier versions name every option, also those of other transports."""
    write_record(tmp_path, replace(samples.record(RunOptions(own={"recovery": "selective-repeat"})), id="0001"))
    file = tmp_path / "run.json"
    record = json.loads(file.read_text())
    assert record["header"]["options"]["recovery"] == "selective-repeat"
    assert read_record(tmp_path).options.own == {"recovery": "selective-repeat"}
    record["header"]["options"] |= {"recovery": "go-back-n", "entropy": 1}
    file.write_text(json.dumps(record))
    assert read_record(tmp_path).options == RunOptions()
    record["header"]["options"] |= {"transport": "srd", "entropy": 8}
    file.write_text(json.dumps(record))
    assert read_record(tmp_path).options == run_options(transport="srd", entropy=8)


def test_options_of_every_run_name_no_transport_and_no_congestion_control() -> None:
    usual = {RunOptions().transport, RunOptions().congestion, *SPORT_RULES}  # rxe is also a rule of source ports
    source = "".join(file.read_text() for file in Path("heddle/traffic").rglob("*.py"))
    assert [name for name in {*TRANSPORTS, *CONTROLLERS} - usual if f'"{name}"' in source] == []


def test_a_control_has_parameters_for_it_alone(tmp_path: Path) -> None:
    options = run_options(cc="dcqcn", cc_set=["rpg_gd=10", "rpg_ai_rate=7"])
    assert options.own == {"congestion_set": (("rpg_gd", 10.0), ("rpg_ai_rate", 7.0))}
    plan = job_plan(load_fabric("tiny").fabric, options)
    adapter = TypeAdapter(Plan)
    assert adapter.validate_json(adapter.dump_json(plan)) == plan
    write_record(tmp_path, replace(samples.record(options), id="0001"))
    assert read_record(tmp_path).options == options
    assert json.loads((tmp_path / "run.json").read_text())["header"]["options"]["congestion_profile"] == "default"
    with pytest.raises(InputError, match=r"--cc-set a=1 --cc-set b=2 is not for --cc none\n.*--cc dcqcn or --cc swift"):
        run_options(cc_set=["a=1", "b=2"])


def test_source_ports_of_a_queue_pair_are_the_transports_choice() -> None:
    plan = job_plan(load_fabric("tiny").fabric, run_options(transport="srd", entropy=3))
    assert {len(qp.sports) for qp in plan.qps} == {3}
    with pytest.raises(InputError) as caught:
        run_options(transport="srb", entropy=8)
    assert [each.what for each in caught.value.problems] == ["--transport srb"]


def test_words_are_read_with_few_looks_at_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(*words: Any) -> Any:
        nonlocal looks
        looks += 1
        return declared_parameters(*words)

    monkeypatch.setattr(verbs, "declared_parameters", counted)
    parse(RUN, ["--collective", "incast", "--size", "64K", "--iters", "1", "--cc", "dcqcn"])
    assert 0 < looks < 50, "each makes all options of the run: once for every parameter was half a second"
