"""Workshop units without a lab: conditions, verdicts, mistakes in lab.yml, progress on disk, wrong words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from heddle.base import resources, state
from heddle.base.conditions import Condition, Fact
from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
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

LABS = resources.HERE.content(resources.LABS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory without any progress."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("written", "yes", "no"),
    [
        (16, [16, 16.0, "16"], [15, "sixteen", True]),
        ("fixed", ["fixed", "FIXED"], ["qpn", 1]),
        ("<= 1.3", [1.3, 1, "1.2"], [1.31, "many", True]),
        ("> 40KB", [40_001, "41KB"], [40_000, "40KB"]),
        ("12 to 20", [12, 20, "12.5"], [11, 21]),
        ("above 1", [1.1, "2"], [1, 0, "many"]),
        ("below 0.3", [0.2, -1], [0.3, True]),
        ("is 0", [0, 0.0, "0"], [1, "is 0", False]),
        ("is it", ["is it", "IS IT"], [0]),
        ("!= qpn", ["fixed", 7], ["qpn", "QPN"]),
        (["flow", "e-ecmp"], ["flow"], ["spray"]),
        ("!= 4200000002", [4200000003], [4200000002]),
        (True, [True], [False, "no", 0]),
    ],
)
def test_a_condition_holds_for_these_values(written: Fact | list[Fact], yes: list[Fact], no: list[Fact]) -> None:
    condition = Condition(written)
    assert [value for value in yes if not condition.holds(value)] == []
    assert [value for value in no if condition.holds(value)] == []


def judged(facts: Mapping[str, Fact], begun: Mapping[str, Fact] | None = None) -> StepVerdict:
    """Unit 02's step spread, for these facts."""
    return _judged("spread", find_unit("02").spec.steps["spread"], Seen(facts, "run 0007"), begun)


RIGHT: dict[str, Fact] = {"qps": 16, "sport": "fixed", "mode": "e-ecmp", "uplinks_used": 8}


def test_a_step_is_ok_not_yet_or_wrong_by_its_facts() -> None:
    ok = judged(RIGHT)
    assert (ok.state, ok.where) == ("ok", "run 0007")
    assert ok.observed == "qps 16, sport fixed, mode e-ecmp, uplinks used 8"
    begin = judged({**RIGHT, "mode": "flow", "uplinks_used": 2})
    assert (begin.state, begin.where) == ("not yet", "")  # untouched
    wrong = judged({**RIGHT, "mode": "spray"})
    assert (wrong.state, wrong.mistake) == ("wrong", "not-hashed")
    assert wrong.observed == "mode spray (expected e-ecmp)"
    other = judged({**RIGHT, "qps": 4, "uplinks_used": 3})
    assert (other.state, other.mistake, other.hint) == ("wrong", "", "")
    # Facts as at the start are not yet a mistake.
    spray: dict[str, Fact] = {**RIGHT, "mode": "spray"}
    assert judged(spray, begun=dict(sorted(spray.items()))).state == "not yet"
    # A fact that is not there never meets a condition.
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
MISTAKES = (
    ("minutes: 15", "minutes: long"),
    ("minutes: 15", "minute: 15"),
    ("look: run", "look: rnu"),
    ("expect: {qps: 16, sport: fixed}", "expect: {qp: 16, sport: fixed}"),
    ('uplinks_used: ">= 5"', 'uplinks_used: ">= some"'),
    ("commands: [./inv workshop answer links 4]", "commands: [lab answer links 4]"),
    ("commands: [./inv workshop answer links 4]", "files: {my.py: answers/my.py}"),
    ("        commands: [./inv workshop answer links 4]\n", ""),
    ("commands: [./inv workshop answer links 4]", "commands: [./inv status]\n        files: {../my.py: lab.yml}"),
    ("    question: How many different 5-tuples did host1 send in that run?\n", ""),
)


def test_a_mistake_of_an_author_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    folder = tmp_path / "02-entropy"
    shutil.copytree(LABS / "02-entropy", folder)
    text = (folder / "lab.yml").read_text()
    monkeypatch.chdir(folder)
    reports = []
    for right, wrong in MISTAKES:
        assert right in text
        (folder / "lab.yml").write_text(text.replace(right, wrong, 1))
        with pytest.raises(InputError) as caught:
            load_unit(folder)
        reports.append(f"{right.strip()} -> {wrong.strip()}\n{caught.value}\n")
    golden("labs/mistakes.log", "\n".join(reports))


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


def test_words_that_name_no_unit_or_none_that_runs(home: Path) -> None:
    with pytest.raises(InputError, match=r"unit entropi does not exist\n.*did you mean 02-entropy\?"):
        find_unit("entropi")
    with pytest.raises(InputError, match=r"unit 99 does not exist\n.*units: 01-clos-by-hand, 02-entropy"):
        find_unit("99")
    with pytest.raises(InputError, match=r"step fixd does not exist in unit 02-entropy\n.*did you mean fixed\?"):
        find_unit("02").step("fixd")
    # No unit runs.
    with pytest.raises(InputError, match=r"no unit is running\n.*\./inv workshop list shows the units"):
        meant_unit(None)
    with pytest.raises(InputError, match=r"unit 02-entropy is not started\n.*\./inv workshop start 02 starts it"):
        check(find_unit("02"))
    with pytest.raises(InputError, match=r"step spread has no question to answer\n.*steps with a question: links"):
        answer(find_unit("02"), "spread", "1")


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


def test_a_check_is_a_line_for_each_step_and_the_next_command() -> None:
    unit: WorkshopUnit = find_unit("02")
    steps = (
        StepVerdict("fixed", "Run", "ok", "qps 16", "run 0001"),
        StepVerdict("links", "Count", "wrong", "4", "your answer", "all-uplinks", "Read the paths."),
        StepVerdict("spread", "Spread", "not yet", "no run was made"),
    )
    text = check_text(UnitReport(unit, "unit02", "netns", steps)).splitlines()
    assert text[2:7] == [
        "  ok       fixed   Run: qps 16 [run 0001]",
        "  wrong    links   Count: 4 [your answer]",
        "                   hint: Read the paths.",
        "  not yet  spread  Spread: no run was made",
        "",
    ]
    assert text[7] == "1 of 3 steps is right. For the next hint: ./inv workshop hint 02 links"
    solved = check_text(UnitReport(unit, "unit02", "netns", steps[:1])).splitlines()
    assert solved[-1].startswith("1 of 1 steps is right. The unit is solved. ./inv workshop stop")
    assert solved[-1].endswith("the next one is ./inv workshop start 03")


def test_a_command_names_the_lab_where_several_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("./inv run --qps 16", "unit02") == "./inv run --qps 16"
    monkeypatch.setattr(state, "labs", lambda: ["other", "unit02"])
    assert typed("./inv run --qps 16", "unit02") == "./inv run --lab=unit02 --qps 16"
    assert typed("./inv status {lab}", "unit02") == "./inv status unit02"
    assert typed("./inv predict {file} --workload ring", "unit03", "my.yml") == ("./inv predict my.yml --workload ring")
