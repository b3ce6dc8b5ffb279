"""The keys of `shape: dragonfly` (Kim, Dally, Scott and Abts, ISCA 2008; their letters are the synonyms of keys).

In:  plain data, as the rest of the file. Out: DragonflySpec, frozen. dragonfly.py builds it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import at
from heddle.spec.schema import FabricSpec, NodeCount, refuse_too_many


class DragonflySpec(FabricSpec):
    """A fabric file of this shape."""

    synonyms: ClassVar = {
        **FabricSpec.synonyms,
        **dict.fromkeys(("a", "routers", "routers_per_group", "switches"), "switches_per_group"),
        **dict.fromkeys(("h", "globals", "uplinks"), "global_links"),
        **dict.fromkeys(("p", "servers", "hosts"), "hosts_per_switch"),
        **dict.fromkeys(("g", "pods", "racks"), "groups"),
        "gpus": "nics_per_host",
    }
    levels: ClassVar = ("sw",)
    builder: ClassVar = "heddle_plugins.shapes.dragonfly:build"

    shape: Literal["dragonfly"] = Field(
        description="all switches of a group are linked, and all groups by global links. `queues.pfc.enabled` is"
        " `false` by default, since minimal paths of one lossless class can deadlock"
    )
    groups: int = Field(
        ge=2, le=1024, examples=[9], description="groups; at most `switches_per_group` * `global_links` + 1"
    )
    switches_per_group: int = Field(default=4, ge=1, le=64, description="a: switches of a group, all linked")
    global_links: int | None = Field(
        default=None, ge=1, le=64, description="h: global links of a switch. Without it half of `switches_per_group`"
    )
    hosts_per_switch: int | None = Field(
        default=None, ge=1, le=256, description="p: hosts of a switch. Without it as many as `global_links`"
    )
    nics_per_host: int = Field(default=1, ge=1, le=32, description="NICs of a host, one rank each")

    @property
    def wide(self) -> int:
        """Global links of a switch."""
        return self.global_links or max(1, self.switches_per_group // 2)

    @property
    def hosts(self) -> int:
        """Hosts of a switch."""
        return self.hosts_per_switch or self.wide

    @property
    def switches(self) -> int:
        """Of all groups."""
        return self.groups * self.switches_per_group

    @model_validator(mode="before")
    @classmethod
    def _without_pauses(cls, data: Any) -> Any:
        """PFC is off unless the file says otherwise."""
        queues = data.get("queues", {}) if isinstance(data, dict) else None
        pfc = queues.get("pfc", {}) if isinstance(queues, dict) else None
        if not isinstance(pfc, dict) or not isinstance(queues, dict) or "enabled" in pfc:
            return data
        return {**data, "queues": {**queues, "pfc": {**pfc, "enabled": False}}}

    @model_validator(mode="after")
    def _fits(self) -> DragonflySpec:
        sizes = ["switches_per_group", "global_links"]
        most = self.switches_per_group * self.wide + 1
        if self.groups > most:
            why = f"is above {most}: the global links of a group ({most - 1}) must reach each other group"
            raise at("groups", why, f"try groups: {most}, or more global_links", given=sizes)
        key, nics = "hosts_per_switch" if self.hosts_per_switch else "groups", self.hosts * self.nics_per_host
        hosts = NodeCount(key, self.switches * self.hosts, "hosts")
        refuse_too_many(self, NodeCount("groups", self.switches, "switches"), hosts, nics, ["groups", *sizes])
        if self.routing.ucmp:
            why = "has no effect here: bandwidths of paths are summed up and down, not along paths through a group"
            raise at("routing.ucmp", why, "remove it")
        return self
