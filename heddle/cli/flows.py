"""Verbs about single queue pairs: the last run over the fabric as it is now, and one choice explained."""

from __future__ import annotations

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.cli.hashing_verb import Asked


def paths_now(out: Console, lab: str | None, predict: str | None) -> None:
    """`./inv paths --now`. Exit 1 when prediction and oracle differ, or a QP would not reach its destination."""
    if predict is not None:
        raise InputError(Problem("", "--predict and --now", "exclude each other", "--now is about a lab that runs"))
    from heddle.lab.opening import open_lab
    from heddle.runs.moved import now
    from heddle.views.pathstext import now_text

    found = now(open_lab(lab))
    out.result(found.to_json(), now_text(found))
    out.exit_code = 0 if found.result.agree else 1


def explain_flow(out: Console, lab: str | None, flow: str, asked: Asked) -> None:
    """`./inv hashing --explain FLOW`. Exit 1 where the computation and a kernel differ."""
    if asked != Asked():
        hint = "first ./inv hashing MODE, then ./inv hashing --explain FLOW"
        raise InputError(Problem("", "--explain", "goes with no mode and no other flag but --lab", hint))
    from heddle.lab.opening import open_lab
    from heddle.runs.explain import explain

    found = explain(open_lab(lab), flow)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.agree else 1
