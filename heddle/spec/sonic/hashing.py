"""The choice of paths in a config_db.json: hash fields, seeds, resilient groups, adaptive routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.units import format_duration
from heddle.spec.sonic.configdb import ConfigDb
from heddle.spec.yamlfile import Trail

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec

_TABLE: Final = "SWITCH_HASH"
_QP: Final = "RDMA_BTH_DEST_QP"
# A hash field of SONiC -> the word of routing.hash.fields.
_FIELDS: Final[Mapping[str, str]] = {
    "SRC_IP": "src", "DST_IP": "dst", "IP_PROTOCOL": "proto", "L4_SRC_PORT": "sport", "L4_DST_PORT": "dport",
    "IPV6_FLOW_LABEL": "flowlabel",
}  # fmt: skip
_FIVE: Final = ("src", "dst", "proto", "sport", "dport")
_LEFT: Final[Mapping[str, str]] = {
    "RDMA_BTH_OPCODE": "first, middle and last packets of a message would take different paths",
    "IN_PORT": "a path does not depend on the ingress port",
    "ETHERTYPE": "all RoCEv2 packets of a fabric have the same",
    "VLAN_ID": "a fabric has no VLANs",
    "SRC_MAC": "a routed packet has the MAC of its last switch",
    "DST_MAC": "a routed packet has the MAC of its next switch",
}
_LONGEST_NS: Final = 10**10  # of routing.hash.gap
_SHORTEST: Final = "1us"


def read_hashing(db: ConfigDb, onto: FabricSpec, k: int) -> None:
    """Apply ARS_OBJECT, else SWITCH_HASH; then the buckets of FG_NHG, and the seed."""
    adaptive = _adaptive(db, k)
    _fields(db, onto, adaptive=adaptive)
    _resilient(db)
    for table in ("SWITCH", "SWITCH_TABLE"):
        for name in db.entries(table):
            if db.number(table, name, "ecmp_hash_seed", 0, 2**32 - 1) is not None:
                why = "SONiC has a seed for each type of switch; the number itself belongs to another hash"
                db.apply([(table, name, "ecmp_hash_seed")], {"routing.seed": "per-tier"}, why)


def _adaptive(db: ConfigDb, k: int) -> bool:
    """Whether an ARS object chooses paths: the default one of the profile, or the only one."""
    table, names = "ARS_OBJECT", [*db.entries("ARS_OBJECT")]
    default = db.common("ARS_PROFILE", "default_ars_object")
    chosen = db.name(table, default.value) if default else names[0] if len(names) == 1 else ""
    if default and chosen:
        db.read(default.trails, ["routing.ecmp"], f"by {table}")
    elif default:
        db.leave(default.trails, f"{table} has no such entry")
    for name in names:
        if name != chosen:
            db.leave([(table, name)], "all switches have one mode; set default_ars_object to choose this object")
    mode = db.text(table, chosen, "assign_mode") if chosen else None
    if mode is None:
        return False
    trail = (table, chosen, "assign_mode")
    idle = db.number(table, chosen, "flowlet_idle_time", 2, 2047)
    if mode.lower() == "per_packet_quality":
        settings = {"routing.ecmp": "adaptive", "routing.hash.gap": _SHORTEST}
        db.apply([trail], settings, "each packet takes the shortest queue: no gap between packets is shorter")
        if idle is not None:
            db.leave([(table, chosen, "flowlet_idle_time")], "per_packet_quality has no flowlets")
    elif mode.lower() == "per_flowlet_quality":
        db.apply([trail], {"routing.ecmp": "adaptive"}, "a flowlet takes the next hop with the shortest queue")
        if idle is not None:
            gap, text = idle * 1000 * k, f"{idle} us x k = {k:,}"
            if gap > _LONGEST_NS:
                text = f"{text} is {gap / 10**9:g} s, and 10 s is the longest"
            settings = {"routing.hash.gap": format_duration(min(gap, _LONGEST_NS))}
            db.apply([(table, chosen, "flowlet_idle_time")], settings, text)
    else:
        db.wrong(trail, "is not per_flowlet_quality or per_packet_quality")
        return False
    return True


def _fields(db: ConfigDb, onto: FabricSpec, *, adaptive: bool) -> None:
    """The most special list of ECMP fields that RoCEv2 packets of the fabric's IP version match."""
    version = "ipv6" if onto.family == "ipv6" else "ipv4"
    for entry, fields in db.entries(_TABLE).items():
        order = [key for key in (f"ecmp_hash_{version}_rdma", f"ecmp_hash_{version}", "ecmp_hash") if key in fields]
        for key in fields:
            trail = (_TABLE, entry, key)
            if key.startswith("lag_"):
                db.leave([trail], "a fabric has no LAGs")
            elif key.startswith("ecmp_hash_") and key.endswith("_algorithm"):
                why = "Heddle's switches hash with jhash2, or the kernel's hash; a chip's key layout is not public"
                db.leave([trail], why)
            elif adaptive and key in order:
                db.leave([trail], "ARS_OBJECT chooses the path, by queue depth")
            elif key in order[1:]:
                db.leave([trail], f"{order[0]} has priority for RoCEv2 packets")
            elif key.startswith("ecmp_hash_") and key not in order:
                db.leave([trail], f"no packet of the fabric is of this type: it routes {version} without tunnels")
        if order and not adaptive:
            _list(db, (_TABLE, entry, order[0]), fields[order[0]], onto)


def _list(db: ConfigDb, trail: Trail, value: Any, onto: FabricSpec) -> None:
    """The fields of one list. Each item that is not modelled has a row of its own."""
    items = value.split(",") if isinstance(value, str) else value
    if not (isinstance(items, Sequence) and all(isinstance(item, str) for item in items)):
        db.wrong(trail, "is not a list of hash fields")
        return
    words: list[str] = []
    for at, item in enumerate(items):
        place = (*trail, at) if not isinstance(value, str) else trail
        if item in _FIELDS and (item != "IPV6_FLOW_LABEL" or onto.family == "ipv6"):
            words.append(_FIELDS[item])
        elif item == "IPV6_FLOW_LABEL":
            db.leave([place], "the fabric is IPv4; use --set family=ipv6")
        elif item.startswith("INNER_"):
            db.leave([place], "no packet of the fabric is in a tunnel")
        elif item in _LEFT:
            db.leave([place], _LEFT[item])
        elif item != _QP:
            db.wrong(place, f"{item} is not a hash field of SONiC" if isinstance(value, str) else "is not a hash field")
    if _QP in items:
        more = [word for word in _FIVE if word not in words]
        why = f"e-ecmp also hashes {', '.join(more)}" if more else ""
        db.apply([trail], {"routing.ecmp": "e-ecmp"}, why)
    elif words:
        fields = [word for word in (*_FIVE, "flowlabel") if word in words]
        settings: dict[str, Any] = {"routing.ecmp": "flow", "routing.hash.policy": "fields"}
        db.apply([trail], {**settings, "routing.hash.fields": fields})
    else:
        db.leave([trail], "Heddle has none of these fields")


def _resilient(db: ConfigDb) -> None:
    """The bucket number of most groups."""
    table = "FG_NHG"
    for name in db.entries(table):
        db.number(table, name, "bucket_size", 1, 2**16 - 1)
    size = db.common(table, "bucket_size")
    if size and size.value.isdecimal():
        settings = {"routing.resilient": True, "routing.hash.buckets": int(size.value)}
        db.apply(size.trails, settings, "for all prefixes: Heddle has one number of buckets")
    for held in db.held(table, "match_mode"):
        db.leave(held.trails, "each group of next hops is resilient, whatever the prefix")
