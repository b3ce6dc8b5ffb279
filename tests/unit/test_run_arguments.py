"""The defaults of a run are written once: callers of `run_options` pass on what was typed, or have the same values."""

from __future__ import annotations

import inspect

import pytest

from heddle.base.problems import InputError
from heddle.cli import run_verb
from heddle.testing.calls import RunCall
from heddle.traffic.options import RunArguments, RunOptions, run_options


def test_an_argument_that_no_run_has_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as caught:
        RunCall(None)(qpss=4, colective="incast")  # type: ignore[call-arg, arg-type]
    first, second = caught.value.problems
    assert str(first) == "heddle_run(qpss=...) is not an argument of a run\n  hint: did you mean qps?"
    assert second.hint == "did you mean collective?"


def test_the_defaults_of_a_run_are_written_once() -> None:
    assert run_options() == RunOptions()
    verb = inspect.signature(inspect.unwrap(run_verb.run)).parameters
    for name, each in inspect.signature(run_options).parameters.items():
        if name != "find_transport":
            assert verb[name].default == each.default, name
            assert name in RunArguments.__annotations__
