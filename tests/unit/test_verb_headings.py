"""Verbs and flags stand below their headings, and a flag has one meaning in all verbs."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

import tasks
from heddle.cli import nccltests
from heddle.cli.helptexts import USUAL
from heddle.cli.program import commands_in, help_rows, main
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


def test_the_flags_of_run_stand_below_nine_headings(capsys: pytest.CaptureFixture[str]) -> None:
    headings = list(help_rows(VERBS["run"]))
    assert len(headings) == 9 and all(headings)
    assert {each.option.group for each in VERBS["run"].parameters} == set(headings)
    assert main(vars(tasks), ["inv", "run", "--help", "all"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line in headings] == headings
    assert text.count("--cc-set") == 1
    # A verb without headings has none for what all verbs have.
    assert main(vars(tasks), ["inv", "status", "--help"]) == 0
    assert "Recording" not in capsys.readouterr().out


class Narrow(StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def helped(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Narrow())
    assert main(vars(tasks), ["inv", *words]) == 0
    assert isinstance(sys.stdout, Narrow)
    return sys.stdout.getvalue().splitlines()


def test_help_of_run_is_a_page_and_the_rest_comes_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    page, whole = helped(monkeypatch, "run", "--help"), helped(monkeypatch, "run", "--help", "all")
    assert len(page) <= 60
    assert max(map(len, [*page, *whole, *helped(monkeypatch, "perf", "--help", "all")])) <= 80
    assert page[-1] == "./inv run --help all lists all flags and says more."
    assert helped(monkeypatch, "help", "run") == page and helped(monkeypatch, "help", "run", "all") == whole
    assert helped(monkeypatch, "--help", "run") == page and helped(monkeypatch, "status", "--help", "all")

    def flags(lines: list[str]) -> set[str]:
        return {line.split()[0].rstrip(",") for line in lines if line.startswith("  --")}

    assert flags(page) < flags(whole)
    listed = {p.flag for p in VERBS["run"].parameters if p.option.group != nccltests.GROUP}
    assert flags(whole) == listed, "each but those that perf explains"
    own = {p.flag for p in VERBS["run"].parameters} - listed
    assert own and own <= flags(helped(monkeypatch, "perf", "--help"))
    assert set(USUAL) == set(nccltests.VERBS), "completion offers `all` for these"
    for name, usual in USUAL.items():
        assert set(usual) <= {p.name for p in VERBS[name].parameters}, "a name that no parameter has"


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
