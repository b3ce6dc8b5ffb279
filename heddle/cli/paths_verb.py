"""The verb `paths`: paths of a run, and the same over the fabric as it is now. paths_predict.py has --predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.cli.console import Console

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
