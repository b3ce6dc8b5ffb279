"""`./inv test` installs what a suite needs, and of the packages in marks `needs` those of the chosen tests."""

from __future__ import annotations

import pytest

from heddle.base.problems import InputError
from heddle.cli import test_verb
from heddle.cli.test_verb import ALL, QUICK, check_suite, marked_needs, needed_packages
from heddle.host import packages
from heddle.host.packages import PARTS, TEST_EXTRAS


def test_all_has_what_each_of_its_suites_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda names: [])
    everything = set(needed_packages({"suite": "all", "build": False}))
    for suite in ALL:
        assert set(needed_packages({"suite": suite, "build": False})) <= everything


@pytest.mark.parametrize(
    ("suite", "words", "chosen"),
    [
        (QUICK, ["tests/netns/test_example_pipeline.py", "-k", "hash"], {"git", "tshark"}),
        ("netns", ["tests/netns/test_lab_life.py"], set()),
        ("golden", ["--no-such-option"], set()),
    ],
)
def test_the_chosen_tests_decide(suite: str, words: list[str], chosen: set[str]) -> None:
    assert marked_needs(suite, words, TEST_EXTRAS) == chosen


@pytest.mark.parametrize("absent", [[], ["openssh-server", "tshark"]])
def test_only_what_is_missing_and_needed_by_a_chosen_test_is_asked_for(
    absent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def needs(*words: object) -> frozenset[str]:
        asked.append(words)
        return frozenset({"tshark", "git"})

    monkeypatch.setattr(packages, "missing", lambda names: [PARTS[name] for name in absent])
    monkeypatch.setattr(test_verb, "marked_needs", needs)
    found = needed_packages({"suite": "netns", "build": False, "args": ("-k", "mine")})
    assert set(found) & set(TEST_EXTRAS) == ({"tshark"} if absent else set())
    # pytest is asked only where something is missing
    assert asked == ([("netns", ("-k", "mine"), absent)] if absent else [])


def test_a_wrong_suite_is_named_with_the_nearest_word() -> None:
    with pytest.raises(InputError, match="did you mean quick"):
        check_suite("quik")
