"""Open a running lab by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heddle.base import state
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.version import VERSION
from heddle.lab.lab import Blueprint, Lab
from heddle.lab.rendered import Rendered
from heddle.render.render import topology_name
from heddle.runtimes.registry import Runtime, get_runtime


def open_lab(name: str | None = None) -> Lab:
    """The running lab of that name. name: None if only one lab is running. InputError for none, or several."""
    names = state.labs()
    if name is None:
        name = _only(names)
    record = state.read_record(name)
    if record is None:
        hint = did_you_mean(name, names) if names else "no lab is running; run ./inv up zone to start one"
        raise InputError(Problem("", f"lab {name}", "is not running", hint))
    lab = lab_of(record)
    if record.phase != "running" or not lab.runtime.exists(name):
        why = "is not up: its `up` or `down` is running or was killed, or the machine was restarted"
        raise InputError(Problem("", f"lab {name}", why, f"./inv down {name} removes the rest of it"))
    if (lost := lab.missing_nodes()) and len(lost) == len(lab.handles()):
        why = "is not up: all of its nodes are missing or stopped"
        raise InputError(Problem("", f"lab {name}", why, f"./inv down {name} removes the rest of it"))
    return lab


def _only(names: Sequence[str]) -> str:
    """The only lab that is up, or else the only lab that has a record."""
    records = {name: state.read_record(name) for name in names} if len(names) > 1 else {}
    running = [name for name, record in records.items() if record is not None and record.phase == "running"]
    candidates = running or names
    if not candidates:
        raise InputError(Problem("", "no lab", "is running", "run ./inv up zone to start one"))
    if len(candidates) > 1:
        raise InputError(Problem("", "--lab", "is needed, since several labs run", "one of: " + ", ".join(candidates)))
    return candidates[0]


def reopened(record: state.Record) -> Blueprint:
    """The Blueprint of a recorded lab; MachineError when another version of Heddle recorded it."""
    if not record.imported:
        return Rendered.of_record(record)
    from heddle.lab.imported.imported import ImportedLab

    return ImportedLab.of_record(record)


def topology_path(name: str) -> Path:
    """The path of a lab's topology file, which may not exist yet."""
    return state.lab_dir(name) / "topology" / topology_name(name)


def lab_from(blueprint: Blueprint, runtime: Runtime) -> Lab:
    """The handle of a lab with this Blueprint, whether it is up or not."""
    name = blueprint.fabric.name
    return Lab(name, blueprint.fabric, runtime, state.lab_dir(name), topology_path(name), blueprint)


def check_version(record: state.Record) -> None:
    """InputError when another version of Heddle brought the lab up.

    The format of BPF maps and records depends on the version. `down` works with labs of every version.
    """
    if record.version != VERSION:
        other = f"Heddle {record.version}" if record.version else "an older Heddle"
        why = f"was brought up by {other}, and this is Heddle {VERSION}"
        hint = f"use the version that brought it up, or run ./inv down {record.name} and bring it up again"
        raise InputError(Problem("", f"lab {record.name}", why, hint))


def lab_of(record: state.Record) -> Lab:
    """The handle of a recorded lab; InputError when another version of Heddle brought it up."""
    check_version(record)
    return lab_from(reopened(record), get_runtime(record.runtime))
