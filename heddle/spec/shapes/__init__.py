"""The keys of each shape, one shape per file. heddle/fabric/shapes/ has a builder of the same name.

A new shape needs a file here, a builder there, and one line below.
"""

from __future__ import annotations

from typing import Final

from heddle.base.plugins import Registry
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes.clos import ClosSpec
from heddle.spec.shapes.rail import RailSpec

DEFAULT: Final = "clos"
SHAPES: Final[Registry[type[FabricSpec]]] = Registry(
    "shape",
    {
        "clos": ClosSpec,
        "rail": RailSpec,
    },
    FabricSpec,
    classes=True,
)
