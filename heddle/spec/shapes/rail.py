"""The keys of `shape: rail`: pods with one leaf per NIC of a host, spines above them, with or without planes.

In:  plain data, as the rest of the file. Out: RailSpec, frozen. heddle/fabric/shapes/rail.py builds it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import at
from heddle.spec.schema import FabricSpec, NodeCount, refuse_too_many


class RailSpec(FabricSpec):
    """A fabric file of this shape."""

    synonyms: ClassVar = {
        **FabricSpec.synonyms,
        **dict.fromkeys(("rails", "gpus", "leaves", "leafs", "leaf"), "nics_per_host"),
        **dict.fromkeys(("servers", "hosts"), "hosts_per_pod"),
        **dict.fromkeys(("racks", "groups"), "pods"),
        "spine": "spines",
    }
    levels: ClassVar = ("leaf", "spine")

    shape: Literal["rail"] = Field(
        description="NIC i of every host of a pod is linked to leaf i of that pod, every leaf to every spine of its"
        " plane"
    )
    pods: int = Field(ge=1, le=1024, examples=[2], description="pods, each with `nics_per_host` leaves")
    hosts_per_pod: int = Field(default=2, ge=1, le=1024, description="hosts of a pod, and downlinks of a leaf")
    nics_per_host: int = Field(
        default=4, ge=1, le=16, description="NICs of a host, one rank each; also the number of rails"
    )
    spines: int = Field(
        ge=1,
        le=512,
        examples=[2],
        description="spines of all planes together. Each leaf has `spines` / `planes` uplinks, 128 at most",
    )
    planes: int = Field(
        default=1,
        ge=1,
        le=16,
        description="disconnected planes. NIC i and its leaf are in plane (i - 1) mod `planes` + 1. `nics_per_host` and"
        " `spines` are multiples of it",
    )

    @property
    def spines_per_plane(self) -> int:
        """Uplinks of a leaf."""
        return self.spines // self.planes

    @property
    def leaves(self) -> int:
        """Of all pods."""
        return self.pods * self.nics_per_host

    @model_validator(mode="after")
    def _planes_are_equal(self) -> RailSpec:
        for key, what in (("nics_per_host", "NICs"), ("spines", "spines")):
            count = getattr(self, key)
            if count % self.planes:
                why = f"does not divide the {count} {what}: all planes must have the same number"
                fits = [number for number in range(1, count + 1) if count % number == 0 and number <= 16]
                hint = f"try planes: {min(fits, key=lambda fit: abs(fit - self.planes))}"
                raise at("planes", why, hint, given=[key])
        if self.spines_per_plane > 128:
            why = f"gives a leaf {self.spines_per_plane} uplinks; a switch supports 128 at most"
            raise at("spines", why, f"try spines: {128 * self.planes}", given=["planes"])
        return self

    @model_validator(mode="after")
    def _addresses_fit(self) -> RailSpec:
        hosts = NodeCount("hosts_per_pod", self.pods * self.hosts_per_pod, "hosts")
        keys = ["pods", "nics_per_host"]
        refuse_too_many(self, NodeCount("pods", self.leaves, "leaves"), hosts, self.hosts_per_pod, keys)
        return self
