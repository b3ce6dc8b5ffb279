"""Changes of a running lab for one run of an experiment: hashing, thresholds, links down, drains, those of plugins.

In:  RunSpec, checked against its fabric before anything is brought up; then the lab.
Out: a with block with the changes; after it the lab is as its fabric file describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.hashmodes import MODES
from heddle.fabric.model import matching_names
from heddle.lab import outages, rehash, thresholds
from heddle.lab.health import restore_configured
from heddle.lab.ports import ports_of
from heddle.spec.load import settings_of, value_text

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab
    from heddle.traffic.workload import Workload
    from heddle_plugins.experiments.spec import RunSpec


def downs(fabric: Fabric, spec: RunSpec) -> tuple[str, ...]:
    """The ports of `down`. InputError for a word that matches none."""
    return tuple(port.ref for port in ports_of(fabric, spec.down))


def drains(fabric: Fabric, spec: RunSpec) -> tuple[str, ...]:
    """The switches of `drain`. InputError for a word that matches none."""
    names = [node.name for node in fabric.switches]
    return tuple(matching_names(spec.drain, names, f"is not a switch of {fabric.name}"))


def wrong_changes(fabric: Fabric, spec: RunSpec) -> Iterator[tuple[str, Problem]]:
    """Problems with the changes, each with its key of the run."""
    if spec.hashing is not None and spec.hashing.mode not in MODES:
        what, why = f"hashing: {spec.hashing.mode}", "is not a hashing mode"
        yield "hashing", Problem("", what, why, did_you_mean(spec.hashing.mode, MODES))
    checks: dict[str, Callable[[], object]] = {
        "queues": lambda: thresholds.changed(fabric, fabric.policy.queues, _settings(spec)),
        "down": lambda: downs(fabric, spec),
        "drain": lambda: drains(fabric, spec),
        "te": lambda: CHANGES["te"],
    }
    for key, check in checks.items():
        try:
            if getattr(spec, key):
                check()
        except InputError as error:
            yield from ((key, each) for each in error.problems)


# What makes a change of a lab for a run; None: the run is a measure.
Change = Callable[["Lab", "RunSpec", "Workload | None"], object]


@contextmanager
def changed_for_run(lab: Lab, spec: RunSpec, workload: Workload | None = None) -> Iterator[None]:
    """The changes, for a with block. workload: what the run sends. CheckError when the lab cannot be restored."""
    try:
        for key, change in CHANGES.items():
            if getattr(spec, key, None):
                change(lab, spec, workload)
        yield
    finally:
        restore_configured(lab)


def _set_hashing(lab: Lab, spec: RunSpec, _: Workload | None) -> None:
    if spec.hashing is not None:
        rehash.set_hashing(lab, spec.hashing.mode, seed=spec.hashing.seed)


# Key of RunSpec -> what makes the change, in this order.
CHANGES: Final[Registry[Change]] = Registry(
    "change",
    {
        "hashing": _set_hashing,
        "queues": lambda lab, spec, _: thresholds.set_queues(lab, _settings(spec)),
        "down": lambda lab, spec, _: outages.link_down(lab, *downs(lab.fabric, spec)),
        "drain": lambda lab, spec, _: outages.drain(lab, *drains(lab.fabric, spec)),
    },
    having("__call__"),
)


def _settings(spec: RunSpec) -> list[str]:
    return [f"{path}={value_text(path, value)}" for path, value in settings_of(spec.queues)]
