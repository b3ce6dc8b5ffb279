"""The keys of `shape: fat-tree`: the k-ary fat tree of Al-Fares, Loukissas and Vahdat (SIGCOMM 2008).

In:  plain data, as the rest of the file. Out: FatTreeSpec, frozen. fattree.py builds it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import at
from heddle.spec.schema import FabricSpec, NodeCount, refuse_too_many


class FatTreeSpec(FabricSpec):
    """A fabric file of this shape."""

    synonyms: ClassVar = {
        **FabricSpec.synonyms,
        **dict.fromkeys(("k", "arity", "ports", "pods"), "radix"),
        **dict.fromkeys(("hosts", "servers", "hosts_per_rack"), "hosts_per_edge"),
        "gpus": "nics_per_host",
    }
    levels: ClassVar = ("edge", "agg", "core")
    builder: ClassVar = "heddle_plugins.shapes.fattree:build"

    shape: Literal["fat-tree"] = Field(
        description="every edge switch is linked to every aggregation switch of its pod, the i-th of these to all cores"
        " of group i"
    )
    radix: int = Field(
        ge=2,
        le=90,
        examples=[4],
        description="k of the tree, an even number: k pods, each with k/2 edge and k/2 aggregation switches, and"
        " (k/2)² cores with k ports",
    )
    hosts_per_edge: int | None = Field(
        default=None, ge=1, le=1024, description="hosts at an edge switch. Without it `radix` / 2"
    )
    nics_per_host: int = Field(default=1, ge=1, le=32, description="NICs of a host, one rank each")

    @property
    def half(self) -> int:
        """k/2: edge switches of a pod, its aggregation switches, uplinks of each of them."""
        return self.radix // 2

    @property
    def edges(self) -> int:
        """Edge switches of all pods."""
        return self.radix * self.half

    @property
    def hosts_at_edge(self) -> int:
        """Hosts at each edge switch."""
        return self.hosts_per_edge or self.half

    @model_validator(mode="after")
    def _addresses_fit(self) -> FatTreeSpec:
        if self.radix % 2:
            raise at("radix", "is odd: half of the ports of a switch lead up", f"try radix: {self.radix + 1}")
        nics, key = self.hosts_at_edge * self.nics_per_host, "hosts_per_edge" if self.hosts_per_edge else "radix"
        hosts = NodeCount(key, self.edges * self.hosts_at_edge, "hosts", linear=key != "radix")
        refuse_too_many(self, NodeCount("radix", self.edges, "edge switches", linear=False), hosts, nics, ["radix"])
        return self
