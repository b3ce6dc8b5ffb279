"""Spec -> fabric, one shape a file. A new shape is its own file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from heddle.fabric.model import Fabric
from heddle.fabric.shapes import clos
from heddle.spec.schema import FabricSpec

SHAPES: Final[Mapping[str, Callable[[FabricSpec], Fabric]]] = {
    "clos": clos.build,
}


def build(spec: FabricSpec) -> Fabric:
    """The fabric that a spec describes; the same spec always gives an equal fabric."""
    return SHAPES[spec.shape](spec)
