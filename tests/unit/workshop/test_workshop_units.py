"""Workshop units without a lab: conditions, verdicts, mistakes in lab.yml, progress on disk, wrong words."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from heddle.base import resources, state
from heddle.base.conditions import Condition, Fact
from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.proof.linkuse import LinkUse, Mmr
from heddle.proof.verdict import PathsResult
from heddle_plugins.workshop import catalogue, unitlife
from heddle_plugins.workshop.catalogue import WorkshopUnit, find_unit, load_unit, unit_ids
from heddle_plugins.workshop.observe import Seen, flattened, path_facts
from heddle_plugins.workshop.record import StepVerdict, _judged
from heddle_plugins.workshop.unit_actions import check_text, hint_text, listed_units, unit_first
from heddle_plugins.workshop.unitlife import (
    UnitProgress,
    UnitReport,
    answer,
    check,
    hint,
    meant_unit,
    read_progress,
    typed,
    write_progress,
)
from tests.answers import Answers
from tests.unit import run_samples as samples

FINE = FabricReading()
LABS = resources.HERE.content(resources.LABS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory without any progress."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_condition_holds_for_these_values(answers: Answers) -> None:
    """The values for which each does, then those for which it does not."""

    def split(written: Fact | list[Fact], values: list[Fact]) -> object:
        condition = Condition(written)
        return [value for value in values if condition.holds(value)], [v for v in values if not condition.holds(v)]

    answers(split)


def judged(facts: Mapping[str, Fact], begun: Mapping[str, Fact] | None = None) -> StepVerdict:
    """Unit 02's step spread, for these facts."""
    return _judged("spread", find_unit("02").spec.steps["spread"], Seen(facts, "run 0007"), begun)


RIGHT: dict[str, Fact] = {"qps": 16, "sport": "fixed", "mode": "e-ecmp", "uplinks_used": 8}


def test_a_step_is_ok_not_yet_or_wrong_by_its_facts(answers: Answers) -> None:
    """A fact that is not there never meets a condition, and facts as at the start are not yet a mistake."""

    def verdict(changed: dict[str, Fact]) -> str:
        found = judged({**RIGHT, **changed})
        return f"{found.state} [{found.where}] {found.observed}; {found.mistake}: {found.hint}"

    answers(verdict)
    spray: dict[str, Fact] = {**RIGHT, "mode": "spray"}
    assert judged(spray, begun=dict(sorted(spray.items()))).state == "not yet"
    assert judged({"qps": 16}).observed == (
        "sport not known (expected fixed), mode not known (expected e-ecmp), uplinks used not known (expected >= 5)"
    )


def test_facts_of_uplinks_and_keys_have_their_names() -> None:
    """In dc a CTSW's eth1 and eth2 lead down, eth3 and eth4 up. Flows on one link of each kind, and to a host."""
    fabric, used = load_fabric("dc").fabric, {"rtsw1:eth1", "rtsw1:eth3", "ctsw1:eth3", "atsw1:eth1", "ctsw2:eth1"}
    ports = [(node, port) for node in fabric.switches for port in node.ports]
    links = tuple(
        LinkUse(port.ref, node.level == 1 and not fabric.leads_to_host(port), 1, 1, int(port.ref in used))
        for node, port in ports
    )
    facts = path_facts(PathsResult(True, (), links, Mmr(None, None), {}, "RTSW", {}, ()), fabric)
    assert (facts["uplinks"], facts["uplinks_used"]) == (8, 1)
    assert (facts["upper_uplinks"], facts["upper_used"]) == (8, 1)
    # Keys of a fabric file have dotted names.
    assert flattened({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": "1,2"}


# Replacements in lab.yml of unit 02.
def test_a_mistake_of_an_author_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    folder = tmp_path / "02-entropy"
    shutil.copytree(LABS / "02-entropy", folder)
    text = (folder / "lab.yml").read_text()
    monkeypatch.chdir(folder)

    def load(right: str, wrong: str) -> object:
        assert right in text
        (folder / "lab.yml").write_text(text.replace(right, wrong, 1))
        return load_unit(folder)

    answers(load)


def test_a_function_that_check_py_does_not_have_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "77-mine"
    folder.mkdir()
    (folder / "lab.yml").write_text(
        "title: Mine\nminutes: 5\nfabric: tiny\nmay_change: [nothing]\nsteps:\n  one:\n    title: One\n"
        "    look: function\n    function: one\n    expect: {ok: true}\n    hints: [a, b]\n"
    )
    unit = load_unit(folder)
    with pytest.raises(InputError, match=r"check\.py does not exist"):
        unit.function("one")
    (folder / "check.py").write_text("def two(lab):\n    return {}\n")
    with pytest.raises(InputError, match=r"lab\.yml:9  steps\.one\.function: one is not a function of check\.py"):
        unit.function("one")
    (folder / "check.py").write_text("def one(lab:\n")
    with pytest.raises(InputError, match=r"check\.py:1  the line is not Python"):
        unit.function("one")
    (folder / "check.py").write_text("import notthere\n")
    with pytest.raises(InputError, match="cannot be loaded: ModuleNotFoundError"):
        unit.function("one")
    (folder / "check.py").write_text("def one(lab):\n    return {'ok': True}\n")
    assert unit.function("one")(None) == {"ok": True}
    assert not (folder / "__pycache__").exists()


@pytest.mark.parametrize("word", ["02", "2", "entropy", "02-entropy"])
def test_a_unit_has_a_number_and_a_name(word: str) -> None:
    assert find_unit(word).id == "02-entropy"


def test_words_that_name_no_unit_or_none_that_runs(home: Path, answers: Answers) -> None:
    calls: dict[str, Callable[..., object]] = {
        "find_unit": find_unit, "meant_unit": meant_unit, "check": lambda unit: check(find_unit(unit)),
        "step": lambda unit, name: find_unit(unit).step(name),
        "answer": lambda unit, *words: answer(find_unit(unit), *words),
    }  # fmt: skip
    answers(lambda call, *words: calls[call](*words))


def test_a_broken_unit_is_listed_and_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "labs"
    shutil.copytree(LABS, root)
    (root / "02-entropy" / "lab.yml").write_text("title: [\n")
    monkeypatch.setattr(catalogue, "_root", lambda: root)
    rows = {row.number: row for row in listed_units()}
    assert rows["02"].state == "broken"
    assert "lab.yml:2" in rows["02"].title
    assert rows["01"].state == "-"
    # What comes later is not in the list, since it cannot be started.
    assert list(rows) == [each[:2] for each in unit_ids()]


def test_the_first_word_is_a_unit_or_a_step_of_the_one_that_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no unit is running"):
        unit_first(["links", "1"], most=2)
    assert unit_first(["entropy", "links", "1"], most=2) == (find_unit("02"), ["links", "1"])
    monkeypatch.setattr(unitlife, "running_unit", lambda: "01-clos-by-hand")
    assert unit_first(["missing", "ctsw2"], most=2) == (find_unit("01"), ["missing", "ctsw2"])
    assert unit_first(["entropy"], most=1) == (find_unit("02"), [])
    assert unit_first([], most=1) == (find_unit("01"), [])
    with pytest.raises(InputError, match=r"step mising does not exist in unit 01-clos-by-hand\n.*did you mean missing"):
        unit_first(["mising", "ctsw2"], most=2)


def test_hints_come_one_after_the_other_and_are_kept(home: Path) -> None:
    unit = find_unit("02")
    first = hint(unit, None)
    assert (first.step, len(first.texts), first.count, first.new) == ("fixed", 1, 2, True)
    assert hint(unit, "fixed").texts == tuple(unit.spec.steps["fixed"].hints)
    last = hint(unit, "fixed")
    assert (len(last.texts), last.new) == (2, False)
    assert read_progress(unit.id).hints == {"fixed": 2}
    assert "These are all hints. ./inv workshop solve 02" in hint_text(unit, last)
    write_progress(UnitProgress(unit.id, states={"fixed": "ok", "links": "wrong"}))
    assert hint(unit, None).step == "links"


def test_progress_survives_and_a_damaged_file_counts_as_none(home: Path) -> None:
    kept = UnitProgress("02-entropy", lab="unit02", running=True, answers={"links": "1"}, begun={"fixed": {"qps": 1}})
    write_progress(kept)
    assert read_progress("02-entropy") == kept
    path = state.state_dir() / "workshop" / "02-entropy.json"
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # no draft is left
    for damaged in ("", "{", "[]", json.dumps({"format": 9}), json.dumps({"format": 1, "unit": 5})):
        path.write_text(damaged)
        assert read_progress("02-entropy") == UnitProgress("02-entropy")


def test_a_check_is_a_line_for_each_step_and_the_next_command(answers: Answers) -> None:
    unit: WorkshopUnit = find_unit("02")
    steps = (
        StepVerdict("fixed", "Run", "ok", "qps 16", "run 0001"),
        StepVerdict("links", "Count", "wrong", "4", "your answer", "all-uplinks", "Read the paths."),
        StepVerdict("spread", "Spread", "not yet", "no run was made"),
    )
    reports = {
        "wrong": UnitReport(unit, "unit02", "netns", steps),
        "ok": UnitReport(unit, "unit02", "netns", steps[:1]),
    }
    answers({name: check_text(report) for name, report in reports.items()})


def test_a_command_names_the_lab_where_several_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("./inv run --qps 16", "unit02") == "./inv run --qps 16"
    monkeypatch.setattr(state, "labs", lambda: ["other", "unit02"])
    assert typed("./inv run --qps 16", "unit02") == "./inv run --lab=unit02 --qps 16"
    assert typed("./inv status {lab}", "unit02") == "./inv status unit02"
    assert typed("./inv predict {file} --workload ring", "unit03", "my.yml") == ("./inv predict my.yml --workload ring")


@pytest.mark.parametrize(("after", "failed"), [(FabricReading(("rtsw1:eth1  the link is down",)), True), (FINE, False)])
def test_unit_09_sees_whether_a_link_failed_in_a_run(after: FabricReading, failed: bool) -> None:
    through = runpy.run_path(str(LABS / "09-link-failure" / "check.py"))["through"]
    state = FabricState(FINE, after)
    found = through(SimpleNamespace(last_run=lambda iters: replace(samples.result(), fabric_state=state)))
    assert (found.facts["before"], found.facts["failed"], found.facts["wrong"]) == ("converged", failed, 0)
