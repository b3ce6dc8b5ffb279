"""The keys of `frontend`: a second network, for ingestion, checkpoints and logs, of a fabric of any shape.

In:  plain data, as the rest of the file. Out: FrontendSpec, frozen. plugins/frontend/build.py builds it.
Production clusters have two separate networks (Gangidi et al., SIGCOMM 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from heddle.base.families import Family, Network
from heddle.spec.groups import InFile
from heddle.spec.key import key
from heddle.spec.keys import Rate, Size, Strict, at, pool_of
from heddle.spec.linkspec import FASTEST_BPS, SLOWEST_BPS
from heddle.spec.queuepolicy import BufferPolicy, EcnPolicy, NamedBuffers, PfcPolicy, QueuePolicy

_NONE: Final = PfcPolicy(enabled=False)
_ECN: Final = EcnPolicy()
_BUFFER: Final = NamedBuffers()
_LinkRate = Annotated[Rate, Field(ge=SLOWEST_BPS, le=FASTEST_BPS)]


@dataclass(frozen=True, slots=True)
class FrontQueues:
    """The queues of the front-end's ports, without pauses. Classes, DSCPs and the scheduler are those of `queues`."""

    ecn: EcnPolicy = _ECN
    buffer: BufferPolicy = key(_BUFFER, file=NamedBuffers, one="switch")
    reserve: int = key(10_000, "as `queues.reserve`", unit="size", least=0, most=2**31)
    alpha: float = key(1.0, "as `queues.alpha`", above=0, most=64)

    def beside(self, queues: QueuePolicy) -> QueuePolicy:
        """The whole policy. queues: of the back-end, whose lossless classes are lossy here."""
        weights = {**{number: queues.weight(number) for number in queues.lossless}, **queues.weights}
        ecn = replace(self.ecn, marker=queues.ecn.marker)
        return replace(
            queues, lossless=(), weights=weights, pfc=_NONE, ecn=ecn, buffer=self.buffer, reserve=self.reserve,
            alpha=self.alpha,
        )  # fmt: skip


class FrontLinkSpec(Strict):
    """Rates in bit/s, as those of `link`."""

    host: _LinkRate = Field(10**8, description="rate of each direction of a host's front-end link")
    storage: _LinkRate | None = Field(None, description="the same of a storage host; by default as `host`")
    fabric: _LinkRate | None = Field(None, description="the same of a link from an RSW to an FSW; by default `100mbit`")


class FrontendSpec(Strict):
    """The front-end: RSWs in the racks, each linked to every FSW. Trainers have a second port, without ranks."""

    racks: Annotated[int, Field(ge=1, le=1024)] | Literal["shared"] = Field(
        "shared",
        description="RSWs of the trainers. `shared`: one in each rack of the back-end (`rail`: pod). A number: racks of"
        " its own, with the hosts in order",
    )
    spines: int = Field(2, ge=1, le=128, description="FSWs, and uplinks of an RSW")
    link: FrontLinkSpec = FrontLinkSpec()
    oversubscription: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="ratio of the largest rack: hosts * `frontend.link.host` / (`spines` * rate of an RSW-FSW link)."
        " It sets that rate instead of `frontend.link.fabric`",
    )
    pool: str | None = Field(
        None,
        description="a private network that does not overlap `addressing.pool`; racks and loopbacks as there. Default:"
        " `172.16.0.0/12`; IPv6: `fd01::/48`",
    )
    mtu: Size = Field(1500, ge=1280, le=65535, description="IP MTU of its links")
    queues: Annotated[FrontQueues, InFile()] = FrontQueues()
    storage: int = Field(0, ge=0, le=16384, description="hosts `storage1`, ..., in racks of their own")
    preprocess: int = Field(0, ge=0, le=16384, description="hosts `preprocess1`, ..., in racks of their own")
    share_nics: bool = Field(
        default=False,
        description="one network for both, without a second port: storage and preprocess hosts are at the back-end's"
        " edge switches in turn. Of the keys above only `link.storage` then has an effect",
    )

    @property
    def network(self) -> Network:
        """The pool as a network."""
        return ip_network(self.pool or "")

    @property
    def servers(self) -> Mapping[str, int]:
        """The words of hosts that serve -> how many there are."""
        return {"storage": self.storage, "preprocess": self.preprocess}

    def host_bps(self, serves: str = "") -> int:
        """Bit/s of a host's front-end link. serves: as `Node.serves`."""
        return self.link.storage or self.link.host if serves == "storage" else self.link.host

    def beside(self, pool: Network, family: Family) -> FrontendSpec:
        """A checked copy with a pool of the family. pool: of the back-end. ValueError by `at`."""
        found = pool_of(self.pool or family.front_pool, family, "frontend.pool", family.front_pool)
        if pool.overlaps(found):
            free = next((f for f in (family.pool, family.front_pool) if not pool.overlaps(ip_network(f))), "")
            why = f"{'' if self.pool else f'is {found}, which '}overlaps addressing.pool, {pool}"
            hint = f"try pool: {free}" if free else "use a smaller addressing.pool"
            raise at("frontend.pool", why, hint, given=["addressing.pool", "family"])
        return self.model_copy(update={"pool": str(found)})

    @model_validator(mode="after")
    def _keys_have_an_effect(self) -> FrontendSpec:
        if self.share_nics and not self.storage + self.preprocess:
            why = "shares the network with no host: there is neither storage nor preprocess"
            raise at(".share_nics", why, "try storage: 2", given=["frontend.storage", "frontend.preprocess"])
        if None not in (self.oversubscription, self.link.fabric):
            why = "and frontend.link.fabric both set the rate of these links"
            raise at(".oversubscription", why, "remove one of the two", given=["frontend.link.fabric"])
        return self
