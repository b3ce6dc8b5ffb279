"""Verbs and flags stand below their headings, and a flag has one meaning in all verbs."""

from __future__ import annotations

import pytest

import tasks
from heddle.cli.program import commands_in, main
from heddle.cli.verbs import GROUPS, Command

VERBS = {name: command.verb for name, command in commands_in(vars(tasks)).items()}


def test_every_verb_has_a_group_and_the_list_shows_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert {verb.group for verb in VERBS.values()} == set(GROUPS)
    core = [each.verb.group for each in vars(tasks).values() if isinstance(each, Command)]
    assert [group for group in GROUPS if group in core] == list(dict.fromkeys(core)), "tasks.py has their order"
    assert main(vars(tasks), ["inv", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == list(GROUPS)
    listed = [name for group in GROUPS for name, verb in VERBS.items() if verb.group == group]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == listed


def test_the_flags_of_run_stand_below_eight_headings(capsys: pytest.CaptureFixture[str]) -> None:
    headings = list(dict.fromkeys(parameter.option.group for parameter in VERBS["run"].parameters))
    assert len(headings) == 8 and all(headings)
    assert main(vars(tasks), ["inv", "run", "--help"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line in headings] == headings
    assert text.count("--cc-set") == 1
    # A verb without headings has none for what all verbs have.
    assert main(vars(tasks), ["inv", "status", "--help"]) == 0
    assert "Recording" not in capsys.readouterr().out


def test_a_flag_has_one_meaning_in_all_verbs() -> None:
    """`--timeout` is in seconds, wherever it is."""
    found = {verb.name: p for verb in VERBS.values() for p in verb.parameters if p.word == "timeout"}
    assert {"up"} <= set(found)
    for name, parameter in found.items():
        assert parameter.kind == "float" and parameter.value == "SECONDS", name
        assert parameter.option.help.startswith("seconds "), name
    # Two flags of one verb do not have the same help, and a short flag has one long form.
    for verb in VERBS.values():
        helps = [p.option.help for p in verb.parameters]
        assert len(set(helps)) == len(helps), verb.name
        shorts = [p.option.short for p in verb.parameters if p.option.short]
        assert len(set(shorts)) == len(shorts), verb.name
