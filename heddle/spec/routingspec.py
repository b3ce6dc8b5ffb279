"""The key `routing` of a fabric file: the control plane, the choice of paths, and which values are errors.

In:  plain data, as the rest of the file. Out: RoutingSpec, frozen; durations in nanoseconds.
Checks against the rest of the file are made on the built fabric: heddle/fabric/checks.py.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import Duration, Strict, at


class UdfSpec(Strict):
    """Bytes that are hashed in addition to addresses and ports. `offset` counts from the start of header `base`."""

    base: Literal["l3", "l4", "bth"] = "bth"
    offset: int = Field(default=5, ge=0, le=127)
    bytes: int = Field(default=3, ge=1, le=4)


class HashSpec(Strict):
    """Options of the modes of `routing.ecmp`. A mode ignores the keys of others; they count when a lab changes mode."""

    policy: Literal["fields", "l3", "l4"] = "fields"  # flow
    fields: list[Literal["src", "dst", "proto", "flowlabel", "sport", "dport"]] = Field(
        default=["src", "dst", "proto", "sport", "dport"], min_length=1
    )
    udf: UdfSpec = UdfSpec()
    gap: Duration = Field(default=20_000_000, ge=1_000, le=10**10)  # flowlet, adaptive
    first: Literal["hash", "load"] = "hash"  # flowlet
    choice: Literal["random", "round-robin"] = "random"  # spray
    buckets: int = Field(default=256, ge=1, le=1024)  # resilient

    @model_validator(mode="after")
    def _fields_count(self) -> HashSpec:
        twice = [field for field in dict.fromkeys(self.fields) if self.fields.count(field) > 1]
        if twice:
            raise at("routing.hash.fields", f"has {twice[0]} twice", "keep one of the two")
        if self.policy != "fields" and self.fields != type(self).model_fields["fields"].default:
            why = f"has no effect with policy: {self.policy}"
            raise at("routing.hash.fields", why, "remove it, or set policy: fields", given=["routing.hash.policy"])
        return self


class RoutingSpec(Strict):
    """Control plane and path choice."""

    bgp: Literal["unnumbered"] = "unnumbered"
    ecmp: Literal["flow", "e-ecmp", "flowlet", "spray", "pinned", "exact-match", "adaptive"] = "flow"
    # per-switch: each switch has its own seed; per-tier: each tier has one; shared: all have the same (polarisation); a
    # number: all have this one. See heddle/fabric/hashmodes.py.
    seed: Literal["per-switch", "per-tier", "shared"] | Annotated[int, Field(ge=1, le=2**32 - 1)] = "per-switch"
    hash: HashSpec = HashSpec()
    resilient: bool = False  # a hash selects a bucket, and each bucket belongs to one next hop
    ucmp: bool = False  # next hops are weighted by the bandwidth behind them (BGP link-bandwidth community)
    loopbacks: bool = False  # switches announce their loopbacks; RoCEv2 traffic needs only the racks' prefixes

    @model_validator(mode="after")
    def _weights_count(self) -> RoutingSpec:
        whys = {
            "routing.ecmp: pinned selects the path by the destination's slice": self.ecmp == "pinned",
            "routing.resilient gives each next hop as many buckets": self.resilient,
            "hash.choice: round-robin uses each next hop in turn": (self.ecmp, self.hash.choice)
            == ("spray", "round-robin"),
            "routing.ecmp: adaptive compares queue depths": self.ecmp == "adaptive",
            "hash.first: load compares loads": (self.ecmp, self.hash.first) == ("flowlet", "load"),
        }
        for why, so in whys.items():
            if self.ucmp and so:
                given = ["routing.ecmp", "routing.resilient", "routing.hash"]
                raise at("routing.ucmp", f"has no effect: {why}", "remove it, or set ecmp: flow", given=given)
        return self

    @model_validator(mode="after")
    def _hashing_counts(self) -> RoutingSpec:
        chosen = self.hash
        if self.resilient and self.ecmp == "flow" and (chosen.policy, chosen.fields) != _FIVE_TUPLE:
            why = "has no effect with resilient: true, where the BPF program hashes the 5-tuple"
            key = "policy" if chosen.policy != "fields" else "fields"
            given = ["routing.ecmp", "routing.resilient"]
            raise at(f"routing.hash.{key}", why, "remove one of the two", given=given)
        return self


_FIVE_TUPLE: Final = (HashSpec().policy, HashSpec().fields)
