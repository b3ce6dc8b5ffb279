"""The verbs about this machine: doctor, setup, image."""

from __future__ import annotations

from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(group="Start")
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.places.vm.guest import vm_check
    from heddle.predict.selftest import doctor_check

    found = examine({"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "vm": vm_check})
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
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


@verb(
    group="Start",
    help={
        "rebuild": "build both images again, even if they exist",
        "prune": "remove older images that nothing uses",
        "yes": "install missing system packages without asking",
    },
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, yes: bool = False) -> None:
    """Build the images of containerlab's nodes if they are missing, and list them."""
    from heddle.host.engine import images
    from heddle.views import labtext as views

    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    out.result({"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed))
