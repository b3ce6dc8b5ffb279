"""Words of containerlab and nccl-tests: the hint for a user who types them here, and that no guess is wrong."""

from __future__ import annotations

import pytest

from heddle.base.problems import InputError
from heddle.cli.argv import parse
from heddle.cli.hints import verb_hint
from heddle.cli.program import main
from tests.unit.test_help_examples import verbs


def said_of(verb: str, line: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(verbs()[verb], line.split())
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("deploy", "./inv up FABRIC"),
        ("destroy", "./inv down LAB"),
        ("list", "./inv status lists labs"),
        ("save", "vtysh -c 'show running-config'"),
        ("version", "./inv --version"),
        ("all_reduce_perf", "./inv run --collective all-reduce"),
        ("dwon", "did you mean down?"),
        ("statsu", "did you mean status?"),
        ("upp", "did you mean up?"),
        ("exce", "did you mean exec?"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_verb_is_answered_with_one_that_does_it(word: str, said: str) -> None:
    assert said in verb_hint(word, verbs())


@pytest.mark.parametrize(
    "word",
    ["start", "stop", "remove", "delete", "show", "load", "reload", "restart", "logs", "check", "apply", "config"],
)
def test_a_word_that_no_verb_is_near_gets_the_list_and_no_guess(word: str) -> None:
    assert verb_hint(word, verbs()).startswith("verbs: ")


def test_every_verb_that_a_hint_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks
    from heddle.cli.hints import _VERBS

    named = [words.split()[1] for hint in _VERBS.values() for words in hint.split("./") if words.startswith("inv ")]
    assert {name for name in named if not name.startswith("-")} <= set(verbs())
    assert not set(_VERBS) & set(verbs()), "a verb needs no hint"
    assert main(vars(tasks), ["inv", "list"]) == 2
    assert "lint" not in capsys.readouterr().err


def test_a_port_that_was_typed_as_two_words_is_put_together() -> None:
    assert "did you mean ./inv capture rtsw1:eth1?" in said_of("capture", "rtsw1 eth1")
    assert "eth1?" not in said_of("capture", "rtsw1:eth2 eth1").replace("--lab eth1?", "")
    assert "did you mean --lab zone?" in said_of("capture", "rtsw1:eth1 zone")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-b 8 -e 128M -f 2", "-b 8 -e 128M -f 2 is the syntax of nccl-tests\n  hint: write --size 8:128M:x2"),
        ("-b8 -e128M -f2 -n20 -w5", "write --size 8:128M:x2 --iters 20 --warmup 5"),
        ("--minbytes 8 --maxbytes=64K --stepfactor 4", "write --size 8:64K:x4"),
        ("-b 1M -e 4M", "write --size 1M:4M:1M"),
        ("-b 64K -e 64K", "write --size 64K"),
        ("-b 1M -e 3M -i 512K", "write --size 1M:3M:512K"),
        ("-t 2 -g 4", "write --ranks 8"),
        ("-g 8 --qps 4", "write --ranks 8"),
        ("-n 20", "write --iters 20"),
        ("-g 1", "leave it out: every NIC is a rank, and --ranks N takes fewer"),
        ("-c 1", "-c 1 is a flag of nccl-tests that has no counterpart here\n  hint: leave it out: every"),
        ("-d half", "leave it out: elements are float"),
        ("-z 0", "-z 0 is a flag of nccl-tests that has no counterpart here\n  hint: leave it out"),
        ("-n", "-n is a flag of nccl-tests without its value"),
        ("-b 8 -e 8G -f 2", "but 8:8G:x2 has 536870912 bytes, which is outside 4 (one float32) to 268435456 (256M)"),
    ],
)  # fmt: skip
def test_flags_of_nccl_tests_are_translated_with_their_values(line: str, said: str) -> None:
    assert said in said_of("run", line)


def test_other_words_are_not_taken_for_flags_of_nccl_tests() -> None:
    assert "did you mean --iters?" in said_of("run", "-iters 5")
    assert "nccl" not in said_of("run", "--size 8 --itres 5")
    assert "nccl" not in said_of("up", "zone -b 8")
    assert parse(verbs()["run"], ["--iters", "5", "--size", "8", "--lab", "zone"]) == {
        "iters": 5, "size": "8", "lab": "zone",
    }  # fmt: skip
    text = said_of("run", "-b 8 --itres 5 zone")
    assert "write --size" in text and "did you mean --iters?" in text and "--lab zone" in text
