"""The verbs about this machine: doctor, setup, image."""

from __future__ import annotations

from collections.abc import Mapping

from heddle.base import extras
from heddle.base.plugins import Registry, having
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.helptexts import KUBERNETES, target_of
from heddle.cli.verbs import verb


@verb(group="Start")
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.cli.plugin_verb import doctor_check as plugins_check
    from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.predict.selftest import doctor_check

    own = {"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "plugins": plugins_check}
    found = examine(Registry("doctor", own, having("__call__")).usable())
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "what": Option(
            "containerlab; fabric: FRR and the other system packages of runtime netns; kubernetes: check a cluster; "
            "extras: the Python packages that only some verbs need",
            ("containerlab", "fabric", "kubernetes", "extras"),
        ),
        "stop": "stop the container engine that Heddle started, and do nothing else",
        "yes": "install missing packages without asking",
        **KUBERNETES,
        "out": "kubernetes: also write the manifests for an administrator into this directory",
    },
    positional=["what"],
    root=lambda typed: typed["what"] not in ("kubernetes", "extras"),
    lasting=True,
    files_in=["pod"],
    files_out=["out_"],
    directory_out=True,
)
def setup(
    out: Console,
    what: str = "containerlab",
    stop: bool = False,
    yes: bool = False,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    tunnel_port: int | None = None,
    pod: str | None = None,
    out_: str | None = None,
) -> None:
    """Install the missing parts of runtime containerlab: Docker, its daemon, containerlab, images.

    ./inv setup fabric installs the system packages that `up` needs without containers. ./inv setup extras installs the
    Python packages of all extras. All three ask before they install.
    ./inv setup kubernetes installs nothing: it checks what a cluster allows, by two pods, which it removes.
    """
    from heddle.base.problems import InputError, Problem
    from heddle.host.engine import setup as engine
    from heddle.views import labtext as views

    engine.check_what(what)
    given = target_of({
        "context": context, "namespace": namespace, "image": image, "pull_secret": pull_secret,
        "tunnel_port": tunnel_port, "pod": pod,
    })  # fmt: skip
    if what == extras.KUBERNETES:
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        return _setup_kubernetes(out, given, out_)
    if named := next(iter([*given, *(["out"] if out_ else [])]), None):
        flag = f"--{named.replace('_', '-')}"
        raise InputError(Problem("", flag, "is only for kubernetes", f"run ./inv setup kubernetes {flag} ..."))
    if what in (engine.FABRIC, engine.EXTRAS):
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        install = engine.setup_fabric if what == engine.FABRIC else engine.setup_extras
        done = install(out.observer, yes=yes, ask=out.confirm)
        return out.result({"steps": [each.to_json() for each in done]}, views.steps_text(done))
    steps = [engine.stop_engine()] if stop else engine.setup_containerlab(out.observer, yes=yes, ask=out.confirm)
    return out.result({"steps": [each.to_json() for each in steps]}, views.steps_text(steps))


def _setup_kubernetes(out: Console, given: Mapping[str, str], directory: str | None) -> None:
    from heddle.base.files import real
    from heddle.base.userfiles import write_texts
    from heddle.runtimes.clusterkind import CLUSTERS

    found = CLUSTERS[extras.KUBERNETES].probe(given, out.observer)
    if directory is not None:
        write_texts(real(directory), found.files)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "rebuild": "build both images again, even if they exist; with --archive, the system below Heddle",
        "prune": "remove older images that nothing uses",
        "archive": Option("only write Heddle's own image to this file, for the nodes of a cluster", value="FILE"),
        "yes": "install missing system packages without asking",
    },
    files_out=["archive"],
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, archive: str = "", yes: bool = False) -> None:
    """Build the images of containerlab's nodes if they are missing, and list them.

    --archive needs no container engine: docs/install.md has the commands that load the file into a cluster.
    """
    from heddle.host.engine import images
    from heddle.views import labtext as views

    if archive:
        from heddle.base.files import real, result_name
        from heddle.host.fabricarchive import write_fabric_image

        made = write_fabric_image(real(archive), out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
        return out.result(
            {**made.to_json(), "archive": result_name(archive)},
            f"{archive}: image {made.name}, {made.bytes / 1e6:.0f} MB",
        )
    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    return out.result(
        {"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed)
    )
