"""Extras: a module that is not installed is a sentence with the command that installs it, not a traceback."""

from __future__ import annotations

import pytest

from heddle.base.extras import EXTRAS, Extra, missing_module, require
from heddle.base.problems import MachineError
from heddle.cli.endings import ended


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Extra:
    extra = Extra("plot", "nosuch", "heddle_has_no_such_module", "pictures")
    monkeypatch.setitem(EXTRAS, "plot", extra)
    return extra


def test_installed_packages_are_no_problem() -> None:
    for name in EXTRAS:
        require(name)


def test_missing_packages_are_named_with_their_command(absent: Extra) -> None:
    with pytest.raises(MachineError) as caught:
        require("plot")
    assert str(caught.value) == f"nosuch is not installed, and pictures need it\n  hint: {absent.hint}"
    assert "it installs all extras" in absent.hint, "in a checkout; tests/unit/test_howinstalled.py has the others"
    assert caught.value.exit_code == 3


def test_an_import_that_fails_late_says_the_same(absent: Extra, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        __import__(f"{absent.module}.figure")

    assert ended(work, ["inv", "plot"], as_json=False) == 3
    assert capsys.readouterr().err == f"{absent.problem}\n"


def test_any_other_module_is_not_an_extras() -> None:
    assert missing_module(ModuleNotFoundError("no", name="numpy.core")) is None
    assert missing_module(ModuleNotFoundError("no")) is None
