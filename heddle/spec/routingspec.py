"""What `routing` of a fabric file may say: the control plane, how paths are chosen, and what of it cannot be.

In:  plain data, as the rest of the file. Out: RoutingSpec, frozen; durations in nanoseconds.
What these say to the rest of the file is checked on the built fabric: heddle/fabric/checks.py.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from heddle.spec.keys import Duration, Strict, at


class UdfSpec(Strict):
    """Bytes that are hashed beside addresses and ports: so many from `offset` on, counted from a header's start."""

    base: Literal["l3", "l4", "bth"] = "bth"
    offset: int = Field(default=5, ge=0, le=127)
    bytes: int = Field(default=3, ge=1, le=4)


class HashSpec(Strict):
    """What the modes of `routing.ecmp` go by. Each key counts in the modes that use it, also when a lab is switched."""

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
            why = f"has no effect under policy: {self.policy}"
            raise at("routing.hash.fields", why, "leave it out, or take policy: fields", given=["routing.hash.policy"])
        return self


class RoutingSpec(Strict):
    """Control plane and path choice."""

    bgp: Literal["unnumbered"] = "unnumbered"
    ecmp: Literal["flow", "e-ecmp", "flowlet", "spray", "pinned", "exact-match", "adaptive"] = "flow"
    # per-switch: every switch hashes differently; per-tier: each tier does; shared: all alike (polarisation); a number:
    # all have that one. See heddle/fabric/seeds.py.
    seed: Literal["per-switch", "per-tier", "shared"] | Annotated[int, Field(ge=1, le=2**32 - 1)] = "per-switch"
    hash: HashSpec = HashSpec()
    resilient: bool = False  # a hash chooses a bucket, and a bucket has a home among the next hops
    ucmp: bool = False  # next hops weighted by the bandwidth behind them (BGP link-bandwidth community)

    @model_validator(mode="after")
    def _weights_count(self) -> RoutingSpec:
        whys = {
            "routing.ecmp: pinned takes a way by the destination's slice": self.ecmp == "pinned",
            "routing.resilient gives each way as many buckets": self.resilient,
            "hash.choice: round-robin takes each way in turn": (self.ecmp, self.hash.choice)
            == ("spray", "round-robin"),
            "routing.ecmp: adaptive looks at depths": self.ecmp == "adaptive",
            "hash.first: load looks at loads": (self.ecmp, self.hash.first) == ("flowlet", "load"),
        }
        for why, so in whys.items():
            if self.ucmp and so:
                given = ["routing.ecmp", "routing.resilient", "routing.hash"]
                raise at("routing.ucmp", f"has no effect: {why}", "leave it out, or take ecmp: flow", given=given)
        return self

    @model_validator(mode="after")
    def _hashing_counts(self) -> RoutingSpec:
        chosen = self.hash
        if self.resilient and self.ecmp == "flow" and (chosen.policy, chosen.fields) != _FIVE_TUPLE:
            why = "has no effect with resilient: true, under which the program hashes the 5-tuple"
            key = "policy" if chosen.policy != "fields" else "fields"
            given = ["routing.ecmp", "routing.resilient"]
            raise at(f"routing.hash.{key}", why, "leave one of the two out", given=given)
        return self


_FIVE_TUPLE: Final = (HashSpec().policy, HashSpec().fields)
