"""Communicators and the defaults of a run: how ranks are split, and which splits and arguments are refused."""

from __future__ import annotations

import inspect

import pytest

from heddle.base.problems import InputError
from heddle.cli import run_verb
from heddle.fabric.fabricfile import load_fabric
from heddle.forecast.demand import traffic_of
from heddle.forecast.planfile import load_plan
from heddle.testing.calls import RunCall
from heddle.traffic.communicators import parse_split
from heddle.traffic.options import RunArguments, RunOptions, run_options
from heddle.traffic.plan import build_plan


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("auto", "auto"),
        ("MOD 8", "MOD 8"),
        ("mod8", "MOD 8"),
        ("%2", "MOD 2"),
        ("AND 0x7", "AND 7"),
        ("| 0b11", "OR 3"),
    ],
)
def test_a_split_is_typed_as_for_nccl_tests(typed: str, meant: str) -> None:
    assert run_options(split=typed).split == parse_split(typed) == meant


@pytest.mark.parametrize("typed", ["", "2", "XOR 2", "MOD", "MOD 0", "MOD -2", "DIV 0x", "AND 7 7"])
def test_an_invalid_split_is_refused_with_an_example(typed: str) -> None:
    with pytest.raises(InputError) as caught:
        run_options(split=typed)
    assert f"--split {typed}" in str(caught.value)
    assert "MOD" in str(caught.value)


def test_a_split_makes_rings_also_in_predictions() -> None:
    zone = load_fabric("zone").fabric
    plan = build_plan(zone, RunOptions(ranks=8, split="MOD 2"))
    assert plan.communicators == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert plan.size == 4
    assert [(flow.src_rank, flow.dst_rank) for flow in plan.flows()] == [
        (0, 2), (2, 4), (4, 6), (6, 0), (1, 3), (3, 5), (5, 7), (7, 1),
    ]  # fmt: skip
    halves = build_plan(zone, RunOptions(ranks=8, split="DIV 4"))
    assert halves.communicators == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert build_plan(zone, RunOptions(ranks=8)).communicators == (tuple(range(8)),)
    # A prediction opens the same queue pairs.
    plan = build_plan(zone, RunOptions(ranks=12, qps=2, split="MOD 3"))
    connections = traffic_of(zone, load_plan("ring,ranks=12,qps=2,split=MOD 3")).connections
    first = [q for q in plan.qps if q.index == 0]
    assert connections.src.tolist() == [q.flow.src_rank for q in first]
    assert connections.dst.tolist() == [q.flow.dst_rank for q in first]
    assert connections.dst_number.tolist() == [q.flow.qpn for q in first]
    # A named matrix is among the ranks of each communicator.
    connections = traffic_of(load_fabric("zone").fabric, load_plan("shift:1,ranks=6,split=MOD 2")).connections
    pairs = zip(connections.src.tolist(), connections.dst.tolist(), strict=True)
    assert sorted(pairs) == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)]
    # Unlike and lonely communicators are refused.
    with pytest.raises(InputError, match=r"--split MOD 2 .*communicators of 2 and 3 ranks.*\n.*--ranks 4"):
        build_plan(zone, RunOptions(ranks=5, split="MOD 2"))
    with pytest.raises(InputError, match=r"--split DIV 1 .*4 communicators of one rank"):
        build_plan(zone, RunOptions(ranks=4, split="DIV 1"))


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
