"""The verbs that keep Heddle itself: images, engine, suites, figures, linters. tasks.py has the others, lists all."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.cli import suites
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


@verb(
    help={
        "rebuild": "build both anew, although they are there",
        "prune": "remove older ones that nothing uses",
        "yes": "install missing system packages unasked",
    },
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, yes: bool = False) -> None:
    """The images that containerlab's nodes start from: build what is missing, and say what is there."""
    from heddle.host.engine import images
    from heddle.views import labtext as views

    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    out.result({"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed))


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


@verb(
    help={
        "suite": "unit, golden, netns; all is these three; clab has the stories of netns told in containers",
        "build": "see to it that clang is there, so that the BPF programs are rebuilt and compared",
        "args": "words for pytest: ./inv test unit -- -k load -x",
    },
    positional=["suite"],
    rest="args",
    packages=suites.needed_packages,
    root=suites.needs_root,
)
def test(out: Console, suite: str = "all", build: bool = False, args: Sequence[str] = ()) -> None:
    """Run the test suites; unit and golden need no root."""
    suites.run_tests(out, suite, args)


@verb(
    help={"what": "cli, up, containers, place, all-reduce, budget, demo, hashing, predict, queues, or all of these"},
    positional=["what"],
    packages=lambda typed: (
        (*packages.FABRIC, "openssh-server") if typed["what"] in ("place", "all") else packages.FABRIC
    ),
    root=True,
)
def bench(out: Console, what: str = "all") -> None:
    """Measure Heddle itself on this machine: figures as ratios, and absolute."""
    from tests.bench import bench as measure

    result = measure(what, out.observer)
    out.result(result.to_json(), result.text())


@verb()
def lint(out: Console) -> None:
    """ruff and mypy --strict over the whole tree; installs them from requirements-dev.lock when needed."""
    suites.run_linters(out)
