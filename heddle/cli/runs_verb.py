"""The verb `runs`: list the kept runs of labs, and remove some."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help=words.RUNS,
    positional=["lab"],
    tool=Tool("List the stored runs of all labs, or of one: options, busbw, MMR, paths proven.", without=("remove",)),
)
def runs(out: Console, lab: str | None = None, remove: Sequence[str] = ()) -> None:
    """List the kept runs of a lab: options, bandwidth, wrong elements, and whether all paths were proven.

    paths, plot, graph and hashing --explain take --run ID; without it they read the last run. The newest 50 runs of a
    lab are kept, at most 200 MB; HEDDLE_KEEP_RUNS and HEDDLE_KEEP_BYTES set other limits. `down` removes the runs with
    the lab. docs/runs.md describes the files.
    """
    from heddle.base import state
    from heddle.runs.store import History, limits
    from heddle.views.runstext import runs_json, runs_text

    keep = limits()
    known = state.labs()
    if lab is not None and lab not in known:
        hint = did_you_mean(lab, known) if known else "no lab exists; run ./inv up zone to start one"
        raise InputError(Problem("", f"lab {lab}", "does not exist; runs are removed with their lab", hint))
    names = known if lab is None else [lab]
    removed: list[str] = []
    if remove:
        removed = History.named(_one(names)).remove([word for each in remove for word in each.split(",") if word])
    kept = {name: History.named(name).runs() for name in names}
    out.result(runs_json(kept, keep, removed), runs_text(kept, keep, removed))


def _one(names: Sequence[str]) -> str:
    """The lab of --remove: an ID alone is not enough when there are several labs."""
    if not names:
        raise InputError(
            Problem("", "--remove", "has no run to remove: no lab exists", "run ./inv up zone to start a lab")
        )
    if len(names) > 1:
        hint = f"name one of them: ./inv runs {names[0]} --remove ..."
        raise InputError(Problem("", "--remove", f"needs a LAB, because there are {', '.join(names)}", hint))
    return names[0]
