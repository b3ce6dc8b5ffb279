"""Decide what `up` gets: a fabric, or a user-supplied topology, which is recognised by the file's content.

In:  words of the command line. Out: a Blueprint, and the source that `status` reports; or the files that `up` reads,
which are copied to another machine. The topology may be of another user: `companions` takes only files below its own
directory. The machine that reads it reports its other errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from heddle.base.files import absent, expanded, real, result_name
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.base.untrusted import has_home, kept_below
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported.grammar import NODE_NAME, resolved
from heddle.lab.lab import Blueprint
from heddle.lab.opening import blueprint_from
from heddle.runtimes.registry import RUNTIMES
from heddle.spec.load import presets

_ONE: Final = "./inv up zone, or ./inv up mylab.clab.yml"
_ENDINGS: Final = (".clab.yml", ".clab.yaml", ".gotmpl")  # of containerlab topologies


def blueprint_of(
    fabric: str | None,
    runtime: str,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    dialect: str | None = None,
) -> tuple[Blueprint, str]:
    """The blueprint and its source. InputError when nothing is given, or for flags that need a fabric file.

    fabric: a preset, a fabric file, or a containerlab topology.
    """
    if fabric is None:
        raise InputError(Problem("", "./inv up", "needs a fabric or a containerlab topology", _ONE))
    if not is_topology(fabric):
        return blueprint_from(load_fabric(fabric, name=name, overrides=overrides)), fabric
    if overrides:
        why = "changes a key of a fabric file, and a topology has none"
        raise InputError(Problem("", f"--set {overrides[0]}", why, f"change {fabric} itself"))
    if dialect is not None:
        why = "is for topologies that Heddle renders, and this one is user-supplied"
        raise InputError(Problem("", f"--dialect {dialect}", why, "leave --dialect out"))
    if runtime not in RUNTIMES:
        raise InputError(Problem("", f"--runtime {runtime}", "is no runtime", did_you_mean(runtime, RUNTIMES)))
    from heddle.lab.imported.imported import import_topology

    return import_topology(real(fabric), runtime, name, shown=fabric), result_name(fabric)


def is_topology(typed: str) -> bool:
    """True for a containerlab topology: a file with a group `topology`. A file that cannot be parsed is judged by its
    name, so that the right reader reports its errors.
    """
    from heddle.lab.imported.reader import holds_topology

    path = real(typed)
    if typed in presets() or absent(path) or not path.is_file():  # the fabric's reader reports what cannot be used
        return False
    try:
        return holds_topology(path)
    except InputError:
        return typed.endswith(_ENDINGS)


_MOST: Final = 10_000  # files


def files_of(fabric: str | None) -> list[str]:
    """The files that `up` reads: the fabric file, or the topology and the files that it binds by relative paths."""
    return [fabric, *companions(expanded(fabric))] if fabric is not None else []  # a fabric file binds none


def companions(topology: Path) -> list[str]:
    """Files bound by relative paths, and those of bound directories, not hidden ones. InputError names the refused."""
    from heddle.lab.imported.reader import read_document

    try:
        data = read_document(topology, str(topology)).data
        nodes = list(data["topology"]["nodes"])
    except (HeddleError, KeyError, TypeError):  # the machine that reads the topology reports its errors
        return []
    found: dict[str, None] = {}
    directory = topology.absolute().parent
    root = directory.resolve()
    for text in _texts(data["topology"]):
        source, colon, _ = text.partition(":/")
        if not colon or source.startswith(("/", "~")):
            continue
        for name in nodes if NODE_NAME in source else [""]:
            bound = resolved(source.replace(NODE_NAME, str(name)), directory)
            if absent(bound):
                continue
            if bound.is_dir() and has_home(bound):
                why = f"binds your home directory, or one above it, which is not copied to another machine: {text}"
                raise InputError(Problem("", str(topology), why, "move the topology to a directory of its own"))
            for each in _below(bound) if bound.resolve().is_relative_to(root) else [bound]:
                found[str(each)] = None
                if len(found) > _MOST:
                    why = f"binds more than {_MOST} files, which are not copied to another machine"
                    raise InputError(Problem("", str(topology), why, "bind fewer files"))
    return kept_below(topology, found)


def _texts(value: Any, within: str = "") -> Iterator[str]:
    """All texts in lists called binds or env-files, at any level."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, str(key))
    elif isinstance(value, list) and within in ("binds", "env-files"):
        yield from (f"{each}:/" if within == "env-files" else str(each) for each in value)


def _below(path: Path) -> Iterator[Path]:
    """The file, or those of a directory. Hidden ones of a directory (.git, .ssh) are not sent: no file names them."""
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    seen = (each for each in found if not any(part.startswith(".") for part in each.relative_to(path).parts))
    yield from (each for each in seen if not absent(each) and each.is_file())
