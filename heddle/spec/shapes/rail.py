"""The keys of `shape: rail`: pods with one leaf per NIC of a host, spines above them, with or without planes.

In:  plain data, as the rest of the file. Out: RailSpec, frozen. heddle/fabric/shapes/rail.py builds it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import at
from heddle.spec.schema import MOST_HOSTS, MOST_SWITCHES, FabricSpec


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
        family, length = self.ip, self.addressing.rack_prefix
        room = 2 ** (family.bits - length) // 2  # a /31 or /127 per NIC
        if self.hosts_per_pod > room:
            fit = family.bits - (2 * self.hosts_per_pod - 1).bit_length()
            why = f"puts {self.hosts_per_pod} NICs on a leaf, but a /{length} has room for {room}"
            hint = f"try addressing.rack_prefix: {fit}" if fit >= family.racks[0] else "use more pods"
            raise at("hosts_per_pod", why, hint, given=["addressing.rack_prefix"])
        if self.leaves > MOST_SWITCHES:
            why = f"makes {self.leaves} leaves, but there are loopback addresses for {MOST_SWITCHES} only"
            raise at("pods", why, f"try pods: {MOST_SWITCHES // self.nics_per_host}", given=["nics_per_host"])
        hosts = self.pods * self.hosts_per_pod
        if hosts > MOST_HOSTS:
            why = f"makes {hosts} hosts, but there are MAC addresses for {MOST_HOSTS} only"
            raise at("hosts_per_pod", why, f"try hosts_per_pod: {MOST_HOSTS // self.pods}", given=["pods"])
        pool = self.addressing.network
        prefixes = 2 ** (length - pool.prefixlen) - 2 ** max(0, length - family.last)
        if self.leaves > prefixes:
            why = f"makes {self.leaves} leaves, more than the {prefixes} prefixes that {pool} holds"
            given = ["nics_per_host", "addressing.rack_prefix", "addressing.pool"]
            raise at("pods", why, "try a longer addressing.rack_prefix", given=given)
        return self
