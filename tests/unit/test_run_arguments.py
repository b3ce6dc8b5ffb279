"""The defaults of a run are written once: callers of `run_options` pass on what was typed, or have the same values."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from heddle.base.problems import InputError
from heddle.cli import run_verb
from heddle.testing.calls import RunCall
from heddle.traffic.options import RunArguments, RunOptions, run_options


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_the_arguments_that_are_passed_on_are_those_of_run_options() -> None:
    types = get_type_hints(run_options)
    assert get_type_hints(RunArguments) == {
        name: types[name] for name in parameters(run_options) if name != "find_transport"
    }


def test_without_arguments_a_run_has_the_defaults_of_its_options() -> None:
    assert run_options() == RunOptions()


def test_heddle_run_has_no_defaults_of_its_own() -> None:
    found = parameters(RunCall.__call__)
    assert [name for name, each in found.items() if each.default is not inspect.Parameter.empty] == ["sizes"]
    assert found["sizes"].default is None


def test_the_verb_has_the_same_defaults() -> None:
    verb = parameters(inspect.unwrap(run_verb.run))
    for name, each in parameters(run_options).items():
        if name != "find_transport":
            assert verb[name].default == each.default, name


def test_an_argument_that_no_run_has_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as caught:
        RunCall(None)(qpss=4, colective="incast")  # type: ignore[call-arg, arg-type]
    first, second = caught.value.problems
    assert str(first) == "heddle_run(qpss=...) is not an argument of a run\n  hint: did you mean qps?"
    assert second.hint == "did you mean collective?"
