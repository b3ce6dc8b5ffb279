"""Old words of verbs and flags work, and stderr names the new ones; verbs and flags stand below their headings."""

from __future__ import annotations

import json

import pytest

import tasks
from heddle.cli.program import commands_in, main
from heddle.cli.renamed import current, old_words
from heddle.cli.verbs import GROUPS

VERBS = {name: command.verb for name, command in commands_in(vars(tasks)).items()}


@pytest.mark.parametrize(
    ("old", "new", "notes"),
    [
        ("lab start 02", "workshop start 02", ["lab is now workshop"]),
        (
            "paths --predict zone --plan ring",
            "predict zone --workload ring",
            ["paths --predict is now predict", "--plan is now --workload"],
        ),
        ("paths --workload ring --predict=zone", "predict zone --workload ring", ["paths --predict is now predict"]),
        ("predict zone --plan=ring", "predict zone --workload=ring", ["--plan is now --workload"]),
        ("up zone --explain", "up zone --dry-run", ["--explain is now --dry-run"]),
        ("up --topology x.clab.yml", "up --fabric x.clab.yml", ["--topology is now FABRIC"]),
        ("run --timeout 14", "run --local-ack-timeout 14", ["--timeout is now --local-ack-timeout"]),
        ("run --timeout=14", "run --local-ack-timeout=14", ["--timeout is now --local-ack-timeout"]),
        ("run --dcqcn on", "run --cc dcqcn", ["--dcqcn on is now --cc dcqcn"]),
        ("run --dcqcn=off", "run --cc=none", ["--dcqcn off is now --cc none"]),
        ("paths --all", "paths --all", []),
        ("up zone --timeout 60", "up zone --timeout 60", []),
        ("hashing --explain 17", "hashing --explain 17", []),
        ("exec host1 paths --predict", "exec host1 paths --predict", []),
        ("nothing --explain", "nothing --explain", []),
    ],
)
def test_old_words_become_the_new_ones_and_are_named(old: str, new: str, notes: list[str]) -> None:
    name, *words = old.split()
    now = current(name, words, VERBS)
    assert [now.name, *now.words] == new.split()
    assert [note.removeprefix("note: ").partition(";")[0] for note in now.notes] == notes


def test_no_old_word_is_a_word_of_today() -> None:
    old = old_words(VERBS)
    assert len(old) > 5
    assert not set(old) & set(VERBS)
    for verb in VERBS.values():
        assert not [flag for flag in verb.flags if f"{verb.name} {flag}" in old], verb.name


def test_the_note_is_on_stderr_and_the_document_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(vars(tasks), ["inv", "paths", "--predict", "tiny", "--plan", "ring", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["fabric"] == "tiny"
    assert said.err.startswith("note: paths --predict is now predict; the next version of Heddle does not accept")
    assert main(vars(tasks), ["inv", "help", "lab"]) == 0
    assert "Usage: ./inv workshop" in capsys.readouterr().out


def test_every_verb_has_a_group_and_the_list_shows_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert {verb.group for verb in VERBS.values()} == set(GROUPS)
    assert list(dict.fromkeys(verb.group for verb in VERBS.values())) == list(GROUPS), "tasks.py has their order"
    assert main(vars(tasks), ["inv", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == list(GROUPS)
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(VERBS)


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
