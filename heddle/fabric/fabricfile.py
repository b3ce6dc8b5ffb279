"""Fabric file -> the fabric that it describes. All errors are reported together.

In:  a preset's name or a path, and `--set path=value` overrides; or a spec that a program made.
Out: LoadedFabric. InputError has one Problem per error: first those of keys and groups (heddle/spec/); then the fabric
is built from the valid keys, and keys are checked against each other (checks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem, Problems
from heddle.fabric.checks import KeyPlaces, complaints_about, complaints_of_names
from heddle.fabric.shapes import build
from heddle.spec.load import examined_fabric, read_fabric

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.spec.schema import FabricSpec
    from heddle.spec.yamlfile import Document


@dataclass(frozen=True)
class LoadedFabric:
    """A valid fabric file: its spec, and the fabric built from it."""

    spec: FabricSpec
    fabric: Fabric


def load_fabric(name_or_path: str, *, name: str | None = None, overrides: Sequence[str] = ()) -> LoadedFabric:
    """Read a preset or a fabric file, apply the overrides, build the fabric, and check everything.

    name: replaces the file's name (`--name`). overrides: `path=value` each (`--set`), applied before the checks.
    Raises InputError with all problems found.
    """
    problems = Problems()
    return load_document(read_fabric(name_or_path, name=name, overrides=overrides, problems=problems), problems)


def load_document(document: Document, problems: Problems) -> LoadedFabric:
    """Check the keys of a fabric file, build the fabric, and check everything. problems: those found before.

    Raises InputError with all problems found.
    """
    from heddle.spec.wording import in_order

    found = examined_fabric(document)
    loaded = None if found.value is None else LoadedFabric(found.value, build(found.value))
    more = [] if loaded is None else _problems(loaded, document, found.spoilt)
    problems.found += in_order([*found.problems, *more])
    if loaded is None or problems.found:
        raise InputError(*problems.found)
    return loaded


def checked(spec: FabricSpec) -> LoadedFabric:
    """The fabric of a spec that does not come from a file; InputError names keys without lines."""
    from heddle.spec.yamlfile import Document

    loaded = LoadedFabric(spec, build(spec))
    if problems := list(_problems(loaded, Document({}, ""), frozenset())):
        raise InputError(*problems)
    return loaded


def _problems(loaded: LoadedFabric, document: Document, spoilt: frozenset[str]) -> Iterator[Problem]:
    from heddle.spec.schema import FabricSpec

    counts = type(loaded.spec).model_fields.keys() - FabricSpec.model_fields.keys()
    places = KeyPlaces(document, spoilt, counts)
    yield from places.problems([*complaints_of_names(loaded.spec, loaded.fabric), *complaints_about(loaded.fabric)])
