"""The verb `run`: which lab a collective runs on; with --fabric, one that exists for the length of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.lab import lifecycle as labs
from heddle.lab.opening import open_lab

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab


@contextmanager
def lab_for_run(
    out: Console,
    lab: str | None,
    fabric: str | None,
    overrides: Sequence[str],
    runtime: str | None,
    check: Callable[[Fabric], object],
) -> Iterator[Lab]:
    """The running lab; or, for `--fabric`, one that is brought up now and taken down at the end, however that comes.

    check: raises what is wrong with the run on such a fabric, before anything is brought up for it.
    """
    if fabric is None:
        for flag, given in (("--set", overrides), ("--runtime", runtime)):
            if given:
                hint = (
                    f"a running lab is what it is: ./inv run --fabric FABRIC {flag} ..., or ./inv up FABRIC {flag} ..."
                )
                raise InputError(Problem("", flag, "has no meaning without --fabric", hint))
        yield open_lab(lab)
        return
    if lab is not None:
        hint = "--lab takes a running one, --fabric brings one up for the run"
        raise InputError(Problem("", "--lab and --fabric", "exclude each other", hint))
    from heddle.fabric.fabricfile import load_fabric

    loaded = load_fabric(fabric, overrides=overrides)
    check(loaded.fabric)
    done = labs.up(loaded, runtime=runtime or "netns", observer=out.observer, rollback=True, source=fabric)
    try:
        yield done.lab
    finally:
        if done.created:
            labs.down(done.lab.name, out.observer)
