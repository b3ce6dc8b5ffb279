"""Verbs about single queue pairs: the paths of a run, the same over the fabric as it is now, one choice explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.cli.hashing_verb import Asked

if TYPE_CHECKING:
    from heddle.runs.past import PastRun


def paths_of_run(out: Console, lab: str | None, run: str | None) -> None:
    """`./inv paths`. Exit 1 when the three sources differ."""
    from heddle.lab.opening import open_lab
    from heddle.runs.past import load, proven
    from heddle.views.pathstext import paths_text

    where = open_lab(lab)
    past = load(where, run)
    result = proven(where, past)
    out.result(_with_run(result.to_json(), past), f"{paths_text(result)}\n\n{_which(past)}")
    out.exit_code = 0 if result.agree else 1


def paths_now(out: Console, lab: str | None, run: str | None) -> None:
    """`./inv paths --now`. Exit 1 when prediction and oracle differ, or a QP would not reach its destination."""
    from heddle.lab.opening import open_lab
    from heddle.runs.moved import now
    from heddle.runs.past import load
    from heddle.views.pathstext import now_text

    where = open_lab(lab)
    past = load(where, run)
    found = now(where, past)
    out.result(_with_run(found.to_json(), past), f"{now_text(found)}\n\n{_which(past)}")
    out.exit_code = 0 if found.result.agree else 1


def _with_run(data: dict[str, Any], past: PastRun) -> dict[str, Any]:
    return {"run_id": past.record.id, **data}


def _which(past: PastRun) -> str:
    """Which run this was, on one line."""
    from heddle.views.usage import describe_run

    return f"run {past.record.id}: {describe_run(past.record.header)}"


def explain_flow(out: Console, lab: str | None, flow: str, asked: Asked) -> None:
    """`./inv hashing --explain FLOW`. Exit 1 where the computation and a kernel differ."""
    if asked != Asked(run=asked.run):
        hint = "first ./inv hashing MODE, then ./inv hashing --explain FLOW"
        raise InputError(Problem("", "--explain", "takes no mode and no flags but --run and --lab", hint))
    from heddle.lab.opening import open_lab
    from heddle.runs.explain import explain

    found = explain(open_lab(lab), flow, asked.run)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.agree else 1
