"""The ratios that pages and units claim are those that `predict` computes; and every block of commands has a test.

Live tests show that a run carries what is predicted (tests/netns/test_forecast_live.py), and run the pages' commands
(tests/netns/test_pages.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.cli.demo import ACTS
from heddle.cli.program import examples
from heddle.cli.tour_verb import STEPS
from heddle.traffic.options import RunOptions
from tests.pages import ROOT, Block, blocks, text_of
from tests.typed import typed

UNITS: Final = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "labs").glob("[0-9]*/README.md"))]
CLAIMS: Final = ["README.md", "docs/index.md", "docs/for-engineers.md", "docs/for-researchers.md"]
_RATIO: Final = re.compile(r"\b(flow|e-ecmp|pinned|te) (\d+\.\d\d)\b")
_UPLINK: Final = re.compile(r"^(rtsw\d+:eth\d+) +(\d+) +([\d,]+) +([\d,]+) ", re.MULTILINE)


@cache
def predicted(*words: str) -> dict[str, Any]:
    """The document of `./inv predict`."""
    done = typed("predict", *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_modes(words: tuple[str, ...], figure: Callable[[dict[str, Any]], float]) -> dict[str, str]:
    """Hashing mode -> a figure of `./inv predict` in two places."""
    return {each["mode"]: f"{figure(each):.2f}" for each in predicted(*words)["modes"]}


def mmr(mode: dict[str, Any]) -> float:
    return float(mode["mmr"]["RTSW to CTSW"])


def wrong_claims(page: str, text: str, *, large: bool = False) -> list[str]:
    """Remarks behind `./inv predict` whose ratios to the roofline are not those of the command.

    large: of fabrics with zones, instead of the others.
    """
    found = []
    for command in (each for block in blocks(page, "sh", text=text) for each in block.commands()):
        if command.words[0] == "predict" and any("zones=" in word for word in command.words) == large:
            ratios = of_modes(command.words[1:], lambda mode: mode["over_roofline"])
            claimed = _RATIO.findall(command.remark)
            if len(claimed) < 2 or any(ratios[mode] != ratio for mode, ratio in claimed):
                found.append(f"{' '.join(command.words)}: {command.remark or 'no ratios'}, and it prints {ratios}")
    return found


@pytest.mark.parametrize("page", CLAIMS)
def test_a_page_claims_the_ratios_that_its_prediction_prints(page: str) -> None:
    text = text_of(page)
    assert "flow 2.00, e-ecmp 1.00" in text, "the large lesson: with one source port, the hash costs half"
    assert wrong_claims(page, text) == []
    # Other traffic or the other hashing mode breaks the claim.
    (line,) = re.findall(r"^\./inv predict .*flow 2\.00, e-ecmp 1\.00.*$", text, re.MULTILINE)
    for before, after in ((",sport=fixed", ""), ("flow 2.00, e-ecmp 1.00", "flow 1.00, e-ecmp 2.00")):
        assert before in line and wrong_claims(page, text.replace(line, line.replace(before, after)))


@pytest.mark.long
def test_the_largest_prediction_has_different_rows_as_its_page_says() -> None:
    """Ten seconds and 2 GB. The page has one; with other figures it would be a wrong claim."""
    page = "docs/for-researchers.md"
    assert wrong_claims(page, text_of(page), large=True) == []
    assert len(wrong_claims(page, text_of(page).replace("e-ecmp 2.15", "e-ecmp 6.00"), large=True)) == 1


def test_help_begins_with_that_prediction() -> None:
    words, does = next(iter(examples()["predict"].items()))
    assert wrong_claims("help", f"```sh\n./inv predict {words}  # {does}\n```\n") == []


def demo_rows(*overrides: str, sport: str = "fixed") -> list[tuple[str, str, str]]:
    """Of each part of the demo: title, MMR and number of QPs as predicted."""
    rows = []
    for act in ACTS:
        plan = f"ring,size=1M,qps={act.qps},placement=cyclic,sport={sport}"
        words = ("demo", "--workload", plan, *(word for each in overrides for word in ("--set", each)))
        rows.append((act.title, of_modes(words, mmr)[act.ecmp], str(predicted(*words)["workload"]["flows"])))
    return rows


def test_the_readme_begins_with_the_spread_of_the_demo() -> None:
    text = text_of("README.md")
    rows = re.findall(r"^\| (E?-?ECMP [^|]+) \| [0-9.]+ \| ([0-9.]+)[ █]* \| \d+ of (\d+) \|$", text, re.MULTILINE)
    assert rows == demo_rows()
    first, more, last = (float(row[1]) for row in rows)
    assert first == more > 1.5 * last
    # What the page says of ports: with one for each QP, plain ECMP spreads them. Other seeds give other figures.
    assert float(demo_rows(sport="qpn")[1][1]) < 0.6 * more
    assert rows != demo_rows("routing.seed=shared")


def test_the_tour_compares_runs_whose_spread_differs_as_it_says() -> None:
    run = next(step.command for step in STEPS if step.command.startswith("run "))
    assert [step.command for step in STEPS].count(run) == 2
    hashing = next(step.command for step in STEPS if step.command.startswith("hashing "))
    compare = next(step for step in STEPS if step.command.startswith("compare "))
    found = dict(re.findall(r"--(qps|placement|sport) (\S+)", run))
    plan = ",".join(["ring", *(f"{key}={value}" for key, value in found.items())])
    spread = of_modes(("demo", "--workload", plan), mmr)
    before, after = spread["flow"], spread[hashing.split()[1]]
    assert (before, after) == tuple(re.findall(r"\d\.\d\d", compare.after))
    assert float(before) > 1.5 * float(after)


def tiny(mode: str, sport: str = "fixed") -> dict[str, Any]:
    """The prediction for the run of the first fabric."""
    plan = f"ring,qps=16,placement=cyclic,sport={sport}"
    return predicted("tiny", "--workload", plan, "--mode", mode)


def uplinks(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Uplink -> flows, and bytes of all iterations of a run, as predicted."""
    rounds = RunOptions().iters + RunOptions().warmup
    links = (each for each in found["links"] if each["direction"] == "RTSW to CTSW")
    return {each["port"]: (each["flows"], rounds * each["bytes"]) for each in links}


def shown(block: Block) -> dict[str, tuple[int, int]]:
    """The same, as a page shows it."""
    return {port: (int(flows), int(size.replace(",", ""))) for port, flows, _, size in _UPLINK.findall(block.text)}


def test_the_first_fabric_shows_the_uplinks_that_are_predicted() -> None:
    page = "docs/first-fabric.md"
    runs = [block for block in blocks(page, "text") if shown(block)]
    found = [tiny(mode) for mode in ("flow", "e-ecmp")]
    assert [shown(block) for block in runs] == [uplinks(each) for each in found]
    before, after = (f"{mmr(each):.2f}" for each in found)
    assert (before, after) == ("2.00", "1.12")
    for block, spread in zip(runs, (before, after), strict=True):
        assert f"flows {spread}, bytes {spread}\n" in block.text
    assert f"had {before} times the mean load, and now has {after} times" in " ".join(text_of(page).split())
    entropy = found[0]["entropy"]
    assert f"5-tuples: {entropy['distinct']} distinct of {entropy['flows']}, entropy" in runs[0].text
    # With a source port for each QP, the first table would be another one.
    assert uplinks(tiny("flow", sport="qpn")) != shown(runs[0])


@pytest.mark.deep
def test_unit_03_has_the_spread_of_each_number_of_qps() -> None:
    page = next(each for each in UNITS if "/03-" in each)
    fabric = page.replace("README.md", "fabric.yml")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| [\d.]+ s \| ([\d.]+) \|$", text_of(page), re.MULTILINE)
    assert len(rows) == 5
    for qps, one, mean in rows:
        words = (fabric, "--workload", f"ring,qps={qps},placement=cyclic", "--trials", "200")
        found = predicted(*words)["modes"][0]
        assert (f"{mmr(found):.2f}", f"{found['trials']['mmr']['RTSW to CTSW']['mean']:.2f}") == (one, mean), qps
    (table,) = (block.text for block in blocks(page, "text") if block.text.startswith("over 200 "))
    done = typed("predict", fabric, "--workload", "ring,qps=8,placement=cyclic", "--trials", "200")
    assert table in done.stdout


def test_unit_04_has_the_uplinks_that_each_seed_leaves_idle() -> None:
    page = next(each for each in UNITS if "/04-" in each)
    rows = re.findall(r"^\| `([a-z-]+)` \| `([a-z-]+)` \| (\d) of (\d) \| ", text_of(page), re.MULTILINE)
    assert len(rows) == 4
    for mode, seeds, used, of in rows:
        words = ("dc", "--set", f"routing.seed={seeds}", "--mode", mode)
        links = predicted(*words, "--workload", "ring,qps=16,placement=cyclic")["links"]
        carried = [bool(each["flows"]) for each in links if each["direction"] == "CTSW to ATSW"]
        assert (sum(carried), len(carried)) == (int(used), int(of)), (mode, seeds)


def test_unit_09_has_the_qps_that_a_failure_moves() -> None:
    page = next(each for each in UNITS if "/09-" in each)
    text = " ".join(text_of(page).split())
    (command,) = re.findall(r"`\./inv predict ([^`]+)`", text)
    moved = predicted(*command.split())["moved"]
    plain, resilient = moved["threshold"], moved["resilient"]
    assert f"Here {plain['moved']} of {moved['flows']} QPs moved ({plain['share']:.0%})" in text.replace(" %", "%")
    assert f"Only {plain['had_to']} had lost their path" in text
    assert f"{resilient['moved']} of {moved['flows']} ({resilient['share']:.0%})" in text.replace(" %", "%")
    assert resilient["moved"] == resilient["had_to"]


def test_unit_14_has_the_spread_on_both_fabrics() -> None:
    page = next(each for each in UNITS if "/14-" in each)
    words = (page.replace("README.md", "fabric.yml"), "--workload", "ring,qps=32,sport=fixed")
    found = {mode: f"{float(value):g}" for mode, value in of_modes(words, mmr).items()}
    text = " ".join(text_of(page).split())
    assert f"so the MMR is {found['flow']}. With E-ECMP each QP is hashed, and the MMR is {found['e-ecmp']}." in text


DEMO = "netns/test_tour.py::test_three_acts_are_right_and_proven_and_leave_nothing"
RATIOS = "unit/test_stories.py::test_a_page_claims_the_ratios_that_its_prediction_prints"
TEN_LINES = "netns/testing/test_plugin.py::test_ten_lines_of_the_pages_pass_and_fail_as_shown_and_leave_nothing"
FIRST = "netns/test_pages.py::test_the_first_fabric_prints_what_its_page_shows"
MINE = "unit/test_stories.py::test_the_file_of_the_readme_is_taken_and_its_mistake_is_named_as_shown"
VERBS = "netns/test_pages.py::test_pages_and_help_on_one_lab"
UNIT = "netns/workshop/test_workshop_units.py::test_every_unit_from_start_to_stop"
FIRST_UNIT = "netns/workshop/test_workshop_units.py::test_a_unit_from_start_to_stop"
SETUP = "unit/test_bootstrap.py::test_the_first_call_makes_a_venv_and_the_next_does_not"
# Page and heading -> the tests that run the blocks of commands and programs below it.
RUN_BY: Final = {
    ("README.md", "Try it"): (DEMO, RATIOS, SETUP),
    ("README.md", "A test of a fabric"): (TEN_LINES,),
    ("README.md", "A fabric of your own"): (MINE,),
    ("docs/index.md", "Heddle"): (RATIOS, DEMO),
    ("docs/first-fabric.md", "1. Check the machine"): (VERBS,),
    **{("docs/first-fabric.md", block.heading): (FIRST,) for block in blocks("docs/first-fabric.md", "sh")[1:]},
    ("docs/for-engineers.md", "For network engineers"): (RATIOS, VERBS),
    ("docs/for-ci.md", "Ten lines"): (TEN_LINES,),
    ("docs/for-researchers.md", "For researchers"): (RATIOS,),
    ("docs/for-researchers.md", "A repeatable experiment"): (VERBS,),
    ("labs/README.md", "Before the class"): (FIRST_UNIT,),
    ("labs/START.md", "The workshop, for learners"): (FIRST_UNIT,),
    **{(unit, "Start"): (UNIT, FIRST_UNIT) for unit in UNITS},
    (UNITS[9], "Tasks"): (UNIT,),
    (UNITS[13], "Tasks"): (UNIT,),
}


def test_every_heading_with_commands_is_listed_with_tests_that_exist() -> None:
    pages = {page for page, _ in RUN_BY}
    assert pages >= {"README.md", *UNITS, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("for-*.md"))}
    found = {(block.page, block.heading) for page in pages for block in blocks(page, "sh", "python")}
    assert found == set(RUN_BY)
    for file, _, name in (each.partition("::") for tests in RUN_BY.values() for each in tests):
        assert f"def {name}(" in text_of(f"tests/{file}"), (file, name)


def test_the_file_of_the_readme_is_taken_and_its_mistake_is_named_as_shown(tmp_path: Path) -> None:
    (mine,) = (block for block in blocks("README.md", "yaml"))
    (tmp_path / "mine.yml").write_text(mine.text)
    (up,) = (each for block in blocks("README.md", "sh") if block.heading == mine.heading for each in block.commands())
    done = typed(*up.words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and "heddle-mine-host9" in done.stdout, done.stdout + done.stderr
    (tmp_path / "mine.yml").write_text(mine.text.replace("e-ecmp", "eecmp"))
    (error,) = (block.text for block in blocks("README.md", "text") if block.heading == mine.heading)
    done = typed(*up.words, "--dry-run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, error)
