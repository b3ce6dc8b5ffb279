"""The verb `setup`: what runtime containerlab needs of this machine."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "what": "containerlab",
        "stop": "end the engine that Heddle started by hand, and do nothing else",
        "yes": "install missing system packages unasked",
    },
    positional=["what"],
    root=True,
    lasting=True,
)
def setup(out: Console, what: str = "containerlab", stop: bool = False, yes: bool = False) -> None:
    """Install what runtime containerlab needs and is not there: Docker, its daemon, containerlab, images."""
    from heddle.host.engine import setup as engine
    from heddle.views import labtext as views

    engine.check_what(what)
    steps = [engine.stop_engine()] if stop else engine.setup_containerlab(out.observer, yes=yes, ask=out.confirm)
    out.result({"steps": [each.to_json() for each in steps]}, views.steps_text(steps))
