"""The verb `down`: one lab or all of them."""

from __future__ import annotations

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.lab import lifecycle as labs


def take_down(out: Console, lab: str | None, *, everything: bool) -> None:
    """Take one lab or all labs down. No lab is not an error; an unclear choice is."""
    known = state.labs()
    if everything and lab is not None:
        raise InputError(Problem("", f"{lab} and --all", "exclude each other", "name one lab, or use --all"))
    if lab is None and not everything and len(known) > 1:
        hint = f"one of: {', '.join(known)}; or ./inv down --all"
        raise InputError(Problem("", "down", "needs a LAB, because several are running", hint))
    names = known if lab is None else [lab]
    removed = [name for name in names if labs.down(name, out.observer)]
    text = f"{', '.join(removed)}: removed completely" if removed else "no lab to take down"
    if lab is not None and not removed:
        text = f"there is no lab {lab}" + (f"; running: {', '.join(known)}" if known else "")
    out.result({"down": removed}, text)
