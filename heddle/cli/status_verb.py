"""The verb `status`: running labs, or one in detail."""

from __future__ import annotations

from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={"lab": "show this lab in detail"},
    positional=["lab"],
    root=True,
    tool=Tool("List all running labs, or show one in detail: convergence, BGP sessions, faults."),
)
def status(out: Console, lab: str | None = None) -> None:
    """Show running labs, or one in detail: whether it converged, and which BGP sessions are missing and why."""
    from heddle.lab.status import status as read
    from heddle.views import labtext as views

    labs = read(lab)
    out.result({"labs": [each.to_json() for each in labs]}, views.status_text(labs, detail=lab is not None))
