"""Spec -> fabric, one shape per file. Files have the same names as in heddle/spec/shapes/."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.spec.schema import FabricSpec


def build(spec: FabricSpec) -> Fabric:
    """The fabric that a spec describes; the same spec always gives an equal fabric."""
    fabric: Fabric = resolve_name(spec.builder or f"heddle.fabric.shapes.{spec.shape}:build")(spec)
    return fabric
