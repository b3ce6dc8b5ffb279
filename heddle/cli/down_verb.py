"""The verb `down`: one lab or all of them."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={"all": "take all labs down"},
    positional=["lab"],
    root=True,
    lasting=True,
)
def down(out: Console, lab: str | None = None, all_: bool = False) -> None:
    """Take a lab down: remove its namespaces, processes, BPF pins and files, and nothing of other labs.

    Its runs are removed too: to keep some, first copy them from the lab's directory (docs/runs.md). It is not an
    error when there is no such lab.
    """
    from heddle.base import state
    from heddle.base.problems import InputError, Problem
    from heddle.lab import lifecycle as labs

    known = state.labs()
    if all_ and lab is not None:
        raise InputError(Problem("", f"{lab} and --all", "exclude each other", "name one lab, or use --all"))
    if lab is None and not all_ and len(known) > 1:
        hint = f"one of: {', '.join(known)}; or ./inv down --all"
        raise InputError(Problem("", "down", "needs a LAB, because several are running", hint))
    names = known if lab is None else [lab]
    removed = [name for name in names if labs.down(name, out.observer)]
    text = f"{', '.join(removed)}: removed completely" if removed else "no lab to take down"
    if lab is not None and not removed:
        text = f"there is no lab {lab}" + (f"; running: {', '.join(known)}" if known else "")
    out.result({"down": removed}, text)
