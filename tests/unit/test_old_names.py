"""Old names of verbs and flags work for one version: the same output and exit code, and a note with the new name."""

from __future__ import annotations

import asyncio

import pytest

import tasks
from heddle.base.problems import InputError
from heddle.cli.argv import parse
from heddle.cli.assistant import Assistant
from heddle.cli.completion import candidates
from heddle.cli.oldnames import OLD, present_name
from heddle.cli.program import commands_in, main

COMMANDS = commands_in(vars(tasks))
VERBS = {name: command.verb for name, command in COMMANDS.items()}


def test_every_old_name_has_a_new_one_and_is_no_name_of_now() -> None:
    now = {*VERBS, *(flag for verb in VERBS.values() for flag in verb.flags)}
    assert {old: new for old, new in OLD.items() if old in now or new not in now} == {}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["check", "--base", "tiny", "--head", "tiny"], 0),
        (["check", "--base", "tiny", "--head", "tiny", "--format", "json"], 0),
        (["check", "--base", "tiny", "--head", "zone", "--max-mmr", "1.1"], 1),
        (["check", "--base", "tiny", "--head", "nowhere.yml"], 2),
        (["check", "--help"], 0),
        (["place", "zone", "--ranks", "4"], 0),
        (["place", "zone", "--ranks", "4", "--format", "json"], 0),
        (["place", "zone", "--ranks", "1"], 2),
    ],
)
def test_an_old_verb_does_what_the_new_one_does_and_notes_its_name(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(vars(tasks), ["inv", OLD[words[0]], *words[1:]]) == code
    new = capsys.readouterr()
    assert main(vars(tasks), ["inv", *words]) == code
    old = capsys.readouterr()
    assert old.out == new.out
    (note, *rest) = old.err.splitlines()
    assert note == f"note: {words[0]} is now {OLD[words[0]]}; the old name works in this version only"
    assert len(rest) == len(new.err.splitlines())
    assert main(vars(tasks), ["inv", "help", words[0]]) == 0
    assert capsys.readouterr().err == f"{note}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--place", "here"], 0), (["--place=here"], 0), (["--place", "there"], 2), (["--place"], 2)],
)
def test_an_old_flag_does_what_the_new_one_does_and_notes_its_name(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [word.replace("--place", "--on") for word in words]
    assert main(vars(tasks), ["inv", "explain", *now]) == code
    new = capsys.readouterr()
    assert main(vars(tasks), ["inv", "explain", *words]) == code
    old = capsys.readouterr()
    note = "note: --place is now --on; the old name works in this version only\n"
    assert (old.out, old.err) == (new.out, note + new.err)


def test_words_of_a_program_are_never_old_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(VERBS["exec"], ["rtsw1", "ip", "--place", "check"]) == {
        "node": "rtsw1", "cmd": ["ip", "--place", "check"],
    }  # fmt: skip
    assert parse(VERBS["explain"], ["check", "place"]) == {"term": ["check", "place"]}
    assert capsys.readouterr().err == ""


def test_an_old_verb_is_completed_but_not_offered() -> None:
    assert "--head" in candidates(["inv", "check", "--"], VERBS, [])
    assert "check" not in candidates(["inv", ""], VERBS, [])
    assert candidates(["inv", "status", "--place", ""], VERBS, []) == ["here"]
    assert candidates(["inv", "status", "--place="], VERBS, []) == ["--place=here"]
    assert "--place" not in candidates(["inv", "status", "--"], VERBS, [])


def test_an_old_tool_is_called_by_its_new_name() -> None:
    """A wrong argument, so that no verb starts."""
    result = asyncio.run(Assistant(VERBS, changing=False).call("place", {"nosuch": 1}))
    assert "schedule" in str(result.content) and "is no argument of this tool" in str(result.content)


@pytest.mark.parametrize("flag", ["--on", "--place"])
def test_a_place_before_the_verb_is_hinted_by_its_new_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(vars(tasks), ["inv", f"{flag}=vm", "status"]) == 2
    assert capsys.readouterr().err == (
        "--on is not a flag of ./inv\n  hint: write flags of a verb after it: ./inv VERB --on\n"
    )


def test_an_old_flag_and_its_new_one_with_another_value_exclude_each_other() -> None:
    for words in (["--on", "kubernetes", "--place", "vm"], ["--place=vm", "--on=kubernetes"]):
        with pytest.raises(InputError, match="exclude each other"):
            parse(VERBS["experiment"], words)
    assert parse(VERBS["status"], ["--on", "vm", "--place=vm"]) == {"on": "vm"}


def test_a_name_that_a_plugin_has_taken_is_not_old(capsys: pytest.CaptureFixture[str]) -> None:
    assert present_name("check", {"check", "impact"}) == "check"
    assert present_name("check", {"up"}) == "check"
    assert capsys.readouterr().err == ""
