"""Path choice of a fabric's switches, as frozen values: the keys `routing` of a fabric file, with their rules.

In:  a fabric file, read by heddle/spec/groups.py, or the values of an imported topology. Durations are nanoseconds.
Out: RoutingPolicy, which `Fabric.policy` carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from heddle.spec.key import Complaint, key

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# FIB_MULTIPATH_HASH_FIELD_*, in the words of a fabric file.
FIELDS: Final[Mapping[str, int]] = {
    "src": 0x01, "dst": 0x02, "proto": 0x04, "flowlabel": 0x08, "sport": 0x10, "dport": 0x20,
}  # fmt: skip
FIELDS_5_TUPLE: Final = 0x37  # FIB_MULTIPATH_HASH_FIELD_{SRC,DST}_{IP,PORT} and IP_PROTO
DEFAULT_BUCKETS: Final = 256


@dataclass(frozen=True, slots=True)
class Udf:
    """Bytes of a packet that are hashed in addition to addresses and ports: the user-defined field of an ASIC.

    Read as one big-endian number; 0 if the packet is too short.
    """

    base: Literal["l3", "l4", "bth"] = key("bth", "header that `offset` counts from")
    offset: int = key(5, "bytes from the start of `base` to what is hashed beside the 5-tuple", least=0, most=127)
    bytes: int = key(3, "number of these bytes. The default of the three keys is the destination QP", least=1, most=4)


DEFAULT_UDF: Final = Udf()  # the BTH's destination QP


def _bits(words: Sequence[str]) -> int:
    twice = next((word for word in words if words.count(word) > 1), "")
    if twice:
        raise ValueError(f"has {twice} twice; keep one of the two")
    return sum(FIELDS[word] for word in words)


def _words(bits: int) -> list[str]:
    return [word for word, bit in FIELDS.items() if bits & bit]


@dataclass(frozen=True, slots=True)
class HashOptions:
    """Options of the modes of `routing.ecmp`. A mode ignores the keys of others; they count when a lab changes mode.

    fields: FIB_MULTIPATH_HASH_FIELD_*. udf: of every mode that hashes a queue pair.
    """

    policy: Literal["fields", "l3", "l4"] = key(
        "fields", "`flow`: `fields`: the fields of the next key; `l3`: addresses; `l4`: 5-tuple"
    )
    fields: int = key(
        FIELDS_5_TUPLE,
        "fields of the hash; `flowlabel` in IPv6 only",
        file=list[Literal["src", "dst", "proto", "flowlabel", "sport", "dport"]],
        reads=_bits,
        writes=_words,
        least=1,
    )
    udf: Udf = DEFAULT_UDF
    gap_ns: int = key(
        20_000_000,
        "`flowlet`, `adaptive`: the silence after which a QP may take another path",
        name="gap",
        unit="duration",
        least=1_000,
        most=10**10,
    )
    first: Literal["hash", "load"] = key(
        "hash", "`flowlet`: choose the path by `hash`, or by `load`: the port that carried the fewest bytes"
    )
    choice: Literal["random", "round-robin"] = key("random", "`spray`: `random`, or `round-robin`")
    resilient: bool = key(False, "`true`: when a next hop fails, only its own QPs move", lifted=True)
    buckets: int = key(
        DEFAULT_BUCKETS, "buckets of a resilient group: at least one for each next hop", least=1, most=1024
    )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HashOptions:
        return _options_reader().validate_python(data)

    def rules(self) -> Iterator[Complaint]:
        """Fields that have no effect."""
        if self.policy != "fields" and self.fields != FIELDS_5_TUPLE:
            why = f"has no effect with policy: {self.policy}"
            yield Complaint(
                "routing.hash.fields", why, "remove it, or set policy: fields", given=("routing.hash.policy",)
            )


@cache
def _options_reader() -> TypeAdapter[HashOptions]:
    from pydantic import TypeAdapter  # processes that read no stored run start without it

    return TypeAdapter(HashOptions)


DEFAULT_OPTIONS: Final = HashOptions()


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Path choice. seed: a word of heddle/fabric/hashmodes.py, or a number for all switches.

    ucmp: by the BGP link-bandwidth community. loopbacks: RoCEv2 traffic needs only the racks' prefixes.
    """

    # Keys with one value, which are no choice: key -> value and meaning.
    fixed: ClassVar[Mapping[str, tuple[str, str]]] = {
        "bgp": ("unnumbered", "eBGP on every fabric link, without addresses")
    }

    ecmp: Literal["flow", "e-ecmp", "flowlet", "spray", "pinned", "exact-match", "adaptive"] = key(
        "flow",
        "how a switch chooses among equal-cost paths. `flow`: the kernel's hash of the 5-tuple."
        " `e-ecmp`: 5-tuple and destination QP",
    )
    seed: Literal["per-switch", "per-tier", "shared"] | int = key(
        "per-switch",
        "hash seeds: one for each switch, for each tier, one for all, or this number for all",
        least=1,
        most=2**32 - 1,
    )
    hash: HashOptions = DEFAULT_OPTIONS
    control: Literal["bgp", "static"] = key(
        "bgp",
        "what installs routes: `bgp`: FRR; `static`: Heddle itself, the routes that BGP would find",
    )
    ucmp: bool = key(False, "`true`: next hops are weighted by the bandwidth behind them, as BGP announces it")
    loopbacks: bool = key(
        False,
        "`true`: switches announce their loopbacks. This doubles the routes of a large fabric; RoCEv2 does not need it",
    )

    daemons: Literal["own", "shared"] = key(
        "own",
        "`shared`: one zebra and one bgpd route a group of switches, each in a VRF of its own. A large fabric starts"
        " sooner and needs less memory; a fault of a daemon is one of its group. Runtime `netns` only",
    )

    @property
    def by_bgp(self) -> bool:
        """Whether switches run FRR."""
        return self.control == "bgp"

    @property
    def by_program(self) -> bool:
        """Whether the switches' BPF program hashes or steers RoCEv2, and not the kernel alone."""
        return self.ecmp != "flow" or self.hash.resilient

    def rules(self) -> Iterator[Complaint]:
        """Keys that have no effect beside others."""
        whys = {
            "routing.ecmp: pinned selects the path by the destination's slice": self.ecmp == "pinned",
            "routing.resilient gives each next hop as many buckets": self.hash.resilient,
            "hash.choice: round-robin uses each next hop in turn": (self.ecmp, self.hash.choice)
            == ("spray", "round-robin"),
            "routing.ecmp: adaptive compares queue depths": self.ecmp == "adaptive",
            "hash.first: load compares loads": (self.ecmp, self.hash.first) == ("flowlet", "load"),
        }
        for why, so in whys.items():
            if self.ucmp and so:
                given = ("routing.ecmp", "routing.resilient", "routing.hash")
                yield Complaint("routing.ucmp", f"has no effect: {why}", "remove it, or set ecmp: flow", given=given)
        for word, so in (("loopbacks", self.loopbacks), ("daemons", self.daemons == "shared")):
            if so and not self.by_bgp:
                why = "has no effect with control: static, which runs no BGP"
                yield Complaint(f"routing.{word}", why, "remove one of the two", given=("routing.control",))
        usual = (self.hash.policy, self.hash.fields) == ("fields", FIELDS_5_TUPLE)
        if self.hash.resilient and self.ecmp == "flow" and not usual:
            why = "has no effect with resilient: true, where the BPF program hashes the 5-tuple"
            key = "policy" if self.hash.policy != "fields" else "fields"
            beside = ("routing.ecmp", "routing.resilient")
            yield Complaint(f"routing.hash.{key}", why, "remove one of the two", given=beside)
