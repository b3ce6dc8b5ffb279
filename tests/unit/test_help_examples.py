"""Every verb's help ends with examples that the program's own parser takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from heddle.cli.argv import Verb, parse
from heddle.cli.examples import EXAMPLES, example_line, examples_text
from heddle.cli.program import commands_in
from heddle.fabric.fabricfile import load_fabric

ROOT = Path(__file__).resolve().parents[2]
LINES = [example_line(verb, words) for verb, examples in EXAMPLES.items() for words in examples]


@cache
def verbs() -> dict[str, Verb]:
    """The verbs of tasks.py, by name."""
    import tasks

    return {name: command.verb for name, command in commands_in(vars(tasks)).items()}


def test_each_verb_has_two_examples_and_each_example_a_verb() -> None:
    """A new verb gets its examples in heddle/cli/examples.py."""
    assert set(EXAMPLES) == set(verbs())
    assert {name: len(found) for name, found in EXAMPLES.items() if len(found) < 2} == {}


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_taken_by_the_parser(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    assert parse(verbs()[name], words) is not None
    assert line == shlex.join(["./inv", name, *words]).replace("'./inv'", "./inv")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_verb_fit_a_narrow_terminal(name: str) -> None:
    assert max(len(line) for line in examples_text(name).splitlines()) <= 80


def test_nodes_and_ports_of_the_examples_are_those_of_the_preset() -> None:
    nodes = load_fabric("zone").fabric.by_name
    words = [word for line in LINES for each in shlex.split(line)[2:] for word in each.split(",")]
    named = [word for word in words if re.fullmatch(r"(rtsw|ctsw|host)\d+(:eth\d+)?", word)]
    assert len(named) > 3, "the test finds them"
    for word in named:
        node, _, port = word.partition(":")
        assert node in nodes, word
        assert not port or port in {each.name for each in nodes[node].ports}, word


def test_help_ends_with_the_examples_under_the_name_of_the_program() -> None:
    argv = [sys.executable, "tasks.py", "up", "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith(examples_text("up"))
    argv_env = {"HEDDLE_PROGRAM": "heddle", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, cwd=ROOT, env=argv_env, capture_output=True, text=True, check=True, timeout=60)
    assert "  heddle up zone\n" in done.stdout and "./inv" not in done.stdout
