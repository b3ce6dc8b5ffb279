"""The verb `setup`: install what the runtimes need on this machine."""

from __future__ import annotations

from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "what": Option(
            "containerlab; or fabric: FRR and the other system packages of runtime netns", ("containerlab",)
        ),
        "stop": "stop the container engine that Heddle started, and do nothing else",
        "yes": "install missing system packages without asking",
    },
    positional=["what"],
    root=True,
    lasting=True,
)
def setup(out: Console, what: str = "containerlab", stop: bool = False, yes: bool = False) -> None:
    """Install the missing parts of runtime containerlab: Docker, its daemon, containerlab, images.

    ./inv setup fabric installs the system packages that `up` needs without containers. Both ask before they install.
    """
    from heddle.base.problems import InputError, Problem
    from heddle.host.engine import setup as engine
    from heddle.views import labtext as views

    engine.check_what(what)
    if what == engine.FABRIC:
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        done = engine.setup_fabric(out.observer, yes=yes, ask=out.confirm)
        return out.result({"steps": [each.to_json() for each in done]}, views.steps_text(done))
    steps = [engine.stop_engine()] if stop else engine.setup_containerlab(out.observer, yes=yes, ask=out.confirm)
    return out.result({"steps": [each.to_json() for each in steps]}, views.steps_text(steps))
