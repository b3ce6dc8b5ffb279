"""Every unit of labs/: its files are complete, its links lead somewhere, its commands are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.base import resources
from heddle.cli.argv import parse
from heddle.cli.explain_verb import find_term
from heddle.fabric.fabricfile import load_fabric
from heddle_plugins.workshop.catalogue import README, WorkshopUnit, find_unit, unit_ids
from tests.unit.test_help_examples import verbs
from tests.unit.test_sentences import faults
from tests.unit.unitdrawing import addresses, drawing

LABS = resources.HERE.content(resources.LABS)
HEADINGS = [
    "What you will see", "Time", "Before and after", "Start", "Tasks", "Expected output", "Check", "Why", "Go further",
]  # fmt: skip
VERBS = verbs()
UNITS = unit_ids()
MINUTES = 255  # of the whole workshop


@pytest.fixture(params=UNITS, scope="module")
def unit(request: pytest.FixtureRequest) -> WorkshopUnit:
    return find_unit(request.param)


def text_of(unit: WorkshopUnit) -> str:
    return (unit.folder / README).read_text(encoding="utf-8")


def commands_in(text: str) -> Iterator[str]:
    """`./inv ...` in a Markdown text: in blocks of shell, and between backquotes."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from (line.partition("  #")[0].strip() for line in block.splitlines() if line.startswith("./inv"))
    yield from re.findall(r"`(\./inv [^`\n]+)`", text)


def part(unit: WorkshopUnit, heading: str) -> str:
    """The text below a heading."""
    return text_of(unit).partition(f"## {heading}\n")[2].partition("\n## ")[0]


def list_of(tasks: str) -> list[str]:
    """The names of the tasks, when they are the items of one list, in order, also for Python-Markdown: lists and blocks
    inside an item are indented by four spaces. Otherwise the lines that end the list.
    """
    found = list(re.finditer(r"^[0-9]+\. \*\*([a-z0-9-]+)\.\*\*", tasks, re.MULTILINE))
    lines = tasks[found[0].start() : found[-1].start()].splitlines()
    wrong = [line for line in lines if re.match(r" {0,3}(?:[-*] |```)|(?![0-9]+\. \*\*)\S", line)]
    return wrong or [each[1] for at, each in enumerate(found, 1) if each[0].startswith(f"{at}. ")]


def test_tasks_that_a_block_divides_are_no_list() -> None:
    whole = (
        "Before.\n\n1. **one.** Do\n   this:\n\n    ```sh\n    ls\n    ```\n\n2. **two.** And:\n    - a\n"
        "3. **last.** End.\n\nAfter."
    )
    assert list_of(whole) == ["one", "two", "last"]
    assert list_of(whole.replace("    - a", "   - a")) == ["   - a"]
    assert list_of(whole.replace("    ```", "   ```")) == ["   ```sh", "   ```"]
    assert list_of(whole.replace("   this", "this")) == ["this:"]
    assert list_of(whole.replace("2.", "1.")) == ["one", "last"]


def mistakes_in(command: str) -> str:
    """Why a command could not be typed; empty when it can. Words in capitals stand for values."""
    words = shlex.split(command)[1:]
    if words[0] not in VERBS:
        return f"{command}: no verb {words[0]}"
    if "--help" in words:
        return ""
    try:
        parse(VERBS[words[0]], [re.sub(r"^(NN|NUMBER|VALUE|N|NODE)$", "1", word) for word in words[1:]])
    except Exception as error:
        return f"{command}: {error}"
    return ""


def test_the_path_has_every_folder_once_and_is_not_too_long() -> None:
    numbers = [each[:2] for each in UNITS]
    assert "02" in numbers
    assert len(set(numbers)) == len(numbers)
    # The path takes at most four and a quarter hours.
    assert sum(find_unit(each).spec.minutes for each in UNITS) <= MINUTES
    # No folder of labs is left out.
    folders = {path.name for path in Path(LABS).iterdir() if path.is_dir()}
    assert folders == set(UNITS)


def test_headings_links_and_tasks_are_those_of_every_unit(unit: WorkshopUnit) -> None:
    text = text_of(unit)
    assert re.findall(r"^# (.*)", text, re.MULTILINE)[0].startswith(f"{unit.number} ")
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == HEADINGS
    assert re.search(rf"^## Time\n\n{unit.spec.minutes} minutes", text, re.MULTILINE), "Time differs from lab.yml"
    assert f"./inv workshop start {unit.number}" in text
    # Links lead to files.
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(unit)):
        assert target.startswith("https://") or (unit.folder / target).exists(), target
    # Tasks name every step in order.
    tasks_part = part(unit, "Tasks")
    assert list_of(tasks_part) == list(unit.spec.steps)
    # The solution is not in the tasks.
    answers = [each.run for each in unit.solution().commands if each.run.startswith("./inv workshop answer")]
    assert not [each for each in answers if each in tasks_part]


def test_the_units_before_and_after_are_those_of_lab_yml_and_of_the_list(unit: WorkshopUnit) -> None:
    before, _, after = part(unit, "Before and after").rpartition("\n\n" if unit.spec.next else "This is the last unit")
    linked = [find_unit(each).number for each in re.findall(r"\]\(\.\./([^/)]+)/", after)]
    assert linked == ([unit.spec.next] if unit.spec.next else [])
    assert set(unit.spec.needs) <= {find_unit(each).number for each in re.findall(r"\]\(\.\./([^/)]+)/", before)}
    numbers = [each[:2] for each in UNITS]
    assert [*numbers, ""][numbers.index(unit.number) + 1] == unit.spec.next
    row = re.search(rf"^\| \[{unit.number}\]\([^)]*\) .*\| ([^|]*) \|$", (LABS / "README.md").read_text(), re.MULTILINE)
    assert row is not None and row[1].split(", ") == (unit.spec.needs or ["-"])


def test_a_drawing_has_the_wiring_and_the_addresses_of_the_fabric(unit: WorkshopUnit) -> None:
    fabric = load_fabric(unit.fabric, name=unit.lab, overrides=unit.spec.set).fabric
    start = part(unit, "Start")
    assert addresses(fabric) in start, addresses(fabric)
    if max(node.level for node in fabric.switches) == 2 and unit.number != "01":  # 01 and 04 are drawn by hand
        assert drawing(fabric) in start, drawing(fabric)
    assert all(node.name in start for node in fabric.nodes)


def test_each_unit_shows_an_output_and_how_to_read_it(unit: WorkshopUnit) -> None:
    expected = part(unit, "Expected output")
    assert "```text\n" in expected
    if "algbw" in expected or "how to read it" in expected:
        assert ("### Reading the table" in expected) == (unit.number == "02")  # the first unit with a run
        assert unit.number == "02" or "(../02-entropy/README.md#reading-the-table)" in expected


def test_sentences_beside_the_text_are_short(unit: WorkshopUnit) -> None:
    """tests/unit/test_sentences.py has the pages."""
    texts = [*unit.spec.may_change, *(each.why for each in unit.solution().commands)]
    for step in unit.spec.steps.values():
        texts += [step.title, step.question, *step.hints, *(each.hint for each in step.wrong.values())]
    assert not (long := [each for text in texts for each in faults(re.sub(r"\./inv [^;,]*", "CODE ", text))]), long


@pytest.mark.parametrize("name", ["README.md", "START.md"])
def test_the_pages_beside_the_units_have_commands_and_units(name: str) -> None:
    text = (LABS / name).read_text(encoding="utf-8")
    assert not (wrong := [said for each in commands_in(text) if (said := mistakes_in(each))]), "\n".join(wrong)
    assert ("`./inv tour`" in text) == (name == "START.md")
    rows = re.findall(r"^\| (?:[^|]*\| )+([^|]*) \|$", text, re.MULTILINE) if name != "README.md" else []
    assert {each for row in rows for each in re.findall(r"(?<![-0-9])[0-9]{2}(?![-0-9])", row)} <= {
        each[:2] for each in UNITS
    }


def test_every_command_can_be_typed(unit: WorkshopUnit) -> None:
    commands = list(commands_in(text_of(unit)))
    assert commands
    commands += [each.run for each in (*unit.spec.setup, *unit.solution().commands)]
    commands += [text for step in unit.spec.steps.values() for m in step.wrong.values() for text in m.commands]
    for step in unit.spec.steps.values():
        for hint in (*step.hints, *(each.hint for each in step.wrong.values())):
            commands += re.findall(r"Run (\./inv .*)$", hint)
    assert not (wrong := [said for each in commands if (said := mistakes_in(each))]), "\n".join(wrong)


def test_steps_have_hints_and_files_and_start_leads_to_the_glossary(unit: WorkshopUnit) -> None:
    assert all(len(step.hints) >= 2 for step in unit.spec.steps.values())
    mistakes = [mistake for step in unit.spec.steps.values() for mistake in step.wrong.values()]
    assert len(mistakes) >= 2
    hints = [mistake.hint for mistake in mistakes]
    assert len(set(hints)) == len(hints), "each wrong answer has its own hint"
    # The fabric and the files are there.
    assert load_fabric(unit.fabric, name=unit.lab, overrides=unit.spec.set).fabric.hosts
    for name, step in unit.spec.steps.items():
        if step.look == "function":
            assert callable(unit.function(name))
    solution = unit.solution()
    assert not solution.file or (unit.folder / solution.file).is_file()
    assert not solution.file or unit.spec.file
    # Start ends with terms of the glossary.
    terms = re.findall(r"`([^`]+)`", part(unit, "Start").rpartition("Terms for `./inv explain`: ")[2])
    assert len(terms) >= 3
    for term in terms:
        find_term(term.split())  # InputError for one that is not there


def test_a_check_needs_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from heddle_plugins.testing import assert_lossless; print('ok')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
