"""Decide what `up` gets: a fabric, or a user-supplied topology, which is recognised by the file's content.

In:  words of the command line. Out: a Blueprint, and the source that `status` reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.lab import Blueprint
from heddle.lab.rendered import blueprint_from
from heddle.runtimes.registry import RUNTIMES

_ONE: Final = "./inv up zone, or ./inv up mylab.clab.yml"
_ENDINGS: Final = (".clab.yml", ".clab.yaml")  # of containerlab topologies


def blueprint_of(
    fabric: str | None,
    topology: str | None,
    runtime: str,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    dialect: str | None = None,
) -> tuple[Blueprint, str]:
    """The blueprint and its source. InputError when both or neither are given, or for flags that need a fabric file.

    fabric: a preset, a fabric file, or a containerlab topology. topology: always a containerlab topology.
    """
    if topology is None and fabric is not None and is_topology(fabric):
        fabric, topology = None, fabric
    if topology is None:
        if fabric is None:
            raise InputError(Problem("", "./inv up", "needs a fabric or a containerlab topology", _ONE))
        return blueprint_from(load_fabric(fabric, name=name, overrides=overrides)), fabric
    if fabric is not None:
        why = f"is a fabric, and cannot be combined with --topology {topology}"
        raise InputError(Problem("", fabric, why, _ONE))
    if overrides:
        why = "changes a key of a fabric file, and a topology has none"
        raise InputError(Problem("", f"--set {overrides[0]}", why, f"change {topology} itself"))
    if dialect is not None:
        why = "is for topologies that Heddle renders, and this one is user-supplied"
        raise InputError(Problem("", f"--dialect {dialect}", why, "leave --dialect out"))
    if runtime not in RUNTIMES:
        raise InputError(Problem("", f"--runtime {runtime}", "is no runtime", did_you_mean(runtime, RUNTIMES)))
    from heddle.base.files import real, result_name
    from heddle.lab.imported.imported import import_topology

    return import_topology(real(topology), runtime, name, shown=topology), result_name(topology)


def is_topology(typed: str) -> bool:
    """True for a containerlab topology: a file with a group `topology`. A file that cannot be parsed is judged by its
    name, so that the right reader reports its errors.
    """
    from heddle.base.files import real
    from heddle.lab.imported.reader import holds_topology
    from heddle.spec.load import presets

    path = real(typed)
    try:
        if typed in presets() or not path.is_file():
            return False
    except OSError:  # a directory without permission, a name that is too long: the fabric's reader reports it
        return False
    try:
        return holds_topology(path)
    except InputError:
        return typed.endswith(_ENDINGS)
