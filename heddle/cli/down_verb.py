"""The verb `down`: one lab or all of them."""

from __future__ import annotations

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.lab import lifecycle as labs


def take_down(out: Console, lab: str | None, *, everything: bool) -> None:
    """Take one lab or all of them down; having none to take down is no error, not knowing which is."""
    known = state.labs()
    if everything and lab is not None:
        raise InputError(Problem("", f"{lab} and --all", "exclude each other", "name one lab, or take all"))
    if lab is None and not everything and len(known) > 1:
        hint = f"one of: {', '.join(known)}; or ./inv down --all"
        raise InputError(Problem("", "down", "needs a LAB, since several run", hint))
    names = known if lab is None else [lab]
    removed = [name for name in names if labs.down(name, out.observer)]
    text = f"{', '.join(removed)}: down, nothing of it is left" if removed else "nothing to take down"
    if lab is not None and not removed:
        text = f"nothing of {lab} is here" + (f"; running: {', '.join(known)}" if known else "")
    out.result({"down": removed}, text)
