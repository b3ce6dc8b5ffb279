"""The keys of `shape: clos`: racks below CTSWs, and zones of them below ATSWs.

In:  plain data, as the rest of the file. Out: ClosSpec, frozen. heddle/fabric/shapes/clos.py builds it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import at
from heddle.spec.linkspec import FASTEST_BPS, SLOWEST_BPS
from heddle.spec.schema import MOST_SWITCHES, FabricSpec, NodeCount, refuse_too_many


class ClosSpec(FabricSpec):
    """A fabric file of this shape."""

    synonyms: ClassVar = {
        **FabricSpec.synonyms,
        **dict.fromkeys(("spines", "spine"), "ctsw"),
        **dict.fromkeys(("leaves", "leafs", "leaf", "rtsw"), "racks"),
        "servers": "hosts_per_rack",
        "gpus": "nics_per_host",
    }
    levels: ClassVar = ("rtsw", "ctsw", "atsw")

    shape: Literal["clos"] = Field(
        "clos", description="every RTSW is linked to every CTSW of its zone, every CTSW to every ATSW"
    )
    zones: int = Field(
        default=1,
        ge=1,
        le=64,
        description="zones, each with `racks` racks and `ctsw` spines; more than one needs `atsw`",
    )
    racks: int = Field(ge=1, le=1024, examples=[8], description="racks (and RTSWs) of a zone")
    ctsw: int = Field(ge=1, le=128, examples=[4], description="spines of a zone, and uplinks of an RTSW")
    atsw: int | None = Field(
        default=None, ge=1, le=128, description="switches of the third tier, which join the zones; uplinks of a CTSW"
    )
    oversubscription: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="ratio of the third tier: `racks` * `link.fabric` / (`atsw` * rate of a CTSW-ATSW link). Without it"
        " these links have rate `link.fabric`",
    )
    hosts_per_rack: int = Field(default=2, ge=1, le=1024, description="hosts in a rack")
    nics_per_host: int = Field(default=1, ge=1, le=32, description="NICs of a host, one rank each")

    @property
    def all_racks(self) -> int:
        """Racks of all zones."""
        return self.zones * self.racks

    @property
    def top_rate(self) -> int:
        """Bit/s of a link from a CTSW to an ATSW.

        A zone's CTSWs receive racks * ctsw * link.fabric from below and have ctsw * atsw links upwards.
        """
        if self.oversubscription is None:
            return self.link.fabric
        return round(self.racks * self.link.fabric / ((self.atsw or 1) * self.oversubscription))

    @model_validator(mode="after")
    def _third_tier_fits(self) -> ClosSpec:
        if self.zones > 1 and self.atsw is None:
            raise at("zones", "needs ATSWs to join the zones, but atsw is not set", "try atsw: 2", given=["atsw"])
        if self.zones == 1 and self.atsw is not None:
            raise at("atsw", "joins zones, but there is only one", "try zones: 2, or remove it", given=["zones"])
        if (count := self.zones * self.ctsw) > MOST_SWITCHES:
            why = f"makes {count} in {self.zones} zones, but there are loopback addresses for {MOST_SWITCHES} only"
            raise at("ctsw", why, f"try ctsw: {MOST_SWITCHES // self.zones}", given=["zones"])
        if self.oversubscription is None:
            return self
        if self.atsw is None:
            raise at("oversubscription", "is for links to ATSWs, but there are none", "try zones: 2 and atsw: 2")
        if not SLOWEST_BPS <= self.top_rate <= FASTEST_BPS:
            why = f"sets links to ATSWs to {self.top_rate / 10**6:g} Mbit/s; 1 to 10,000 can be emulated"
            fit = self.racks * self.link.fabric / (self.atsw * min(max(self.top_rate, SLOWEST_BPS), FASTEST_BPS))
            raise at("oversubscription", why, f"try {fit:g}", given=["racks", "link.fabric", "atsw"])
        return self

    @model_validator(mode="after")
    def _addresses_fit(self) -> ClosSpec:
        hosts = NodeCount("hosts_per_rack", self.all_racks * self.hosts_per_rack, "hosts")
        nics = self.hosts_per_rack * self.nics_per_host
        refuse_too_many(self, NodeCount("racks", self.all_racks, "racks"), hosts, nics, ["racks", "zones"])
        return self
