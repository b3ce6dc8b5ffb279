"""config_db.json -> keys of a fabric file, and a row for each key of the file.

In:  the Document of the JSON file, and the spec of the fabric that gets the keys.
Out: ConfigDb with rows in the file's order, and settings. InputError with the line of each wrong value.
Names of tables and keys are those of SONiC's YANG models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, format_rate
from heddle.spec.sonic.buffers import read_buffers, read_watchdog
from heddle.spec.sonic.classes import read_classes
from heddle.spec.sonic.configdb import ConfigDb, ImportedKey, name_of
from heddle.spec.yamlfile import Document, Trail

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec
    from heddle.spec.sonic.configdb import Repeated


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


# Tables that are read key by key; the rest of their keys is listed together.
READ: Final = (
    "PORT", "PORT_QOS_MAP", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE", "QUEUE", "SCHEDULER", "WRED_PROFILE", "BUFFER_POOL", "BUFFER_PROFILE", "BUFFER_PG",
    "BUFFER_QUEUE", "DEFAULT_LOSSLESS_BUFFER_PARAMETER",
    "PFC_WD", "SWITCH_HASH", "FG_NHG", "ARS_PROFILE", "ARS_OBJECT", "SWITCH", "SWITCH_TABLE",
)  # fmt: skip
_WHYS: Final[Mapping[str, str]] = {
    "ARS_INTERFACE": "all links take part",
    "ARS_NEXTHOP": "all next hops take part",
    "BUFFER_PORT_EGRESS_PROFILE_LIST": "Heddle has no limit for a whole port",
    "BUFFER_PORT_INGRESS_PROFILE_LIST": "Heddle has no limit for a whole port",
    "CABLE_LENGTH": "the file does not say which links lead to hosts; use --set link.length=LENGTH",
    "DOT1P_TO_TC_MAP": "frames have no VLAN tags",
    "FG_NHG_MEMBER": "next hops follow from the fabric's routes; there are no banks",
    "FG_NHG_PREFIX": "each group of next hops is resilient, whatever the prefix",
    "LLR_PORT": "Heddle has no link-layer retry",
    "LLR_PROFILE": "Heddle has no link-layer retry",
    "LOSSLESS_TRAFFIC_PATTERN": "profiles that the switch computes are not in the file",
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": "a priority group has the number of its class",
    "SWITCH_TRIMMING": "Heddle's switches do not trim packets",
    "TC_TO_DSCP_MAP": "switches do not change DSCPs",
}
# The reason for the rest of a table's keys.
_KEYS: Final[Mapping[str, str]] = {
    "PORT": "they describe the ports of the chip",
    "PORT_QOS_MAP": "frames have no VLAN tags, and switches do not change DSCPs or shape a port below its link",
    "SCHEDULER": "no queue has a rate of its own",
    "DEFAULT_LOSSLESS_BUFFER_PARAMETER": "profiles that the switch computes are not in the file",
    "FG_NHG": "a group has all next hops of its route",
    "ARS_PROFILE": "the depth of a port's queue is its quality, when the packet comes",
    "ARS_OBJECT": "the depth of a port's queue is its quality, and each flow has a state",
}
_OTHER: Final = "is not about queues, PFC or hashing"


def convert(document: Document, repeated: Iterable[Repeated], onto: FabricSpec, *, scaled: bool) -> ConfigDb:
    """Read every table. onto: the fabric that gets the keys; its values stay where the file has none.

    scaled: its scale is an override, so the speed of ports is not applied.
    """
    db = _opened(document)
    for trail, first, last in repeated:
        if trail[: len(db.above)] == db.above:
            key = name_of(trail[len(db.above) :])
            db.rows.append(
                ImportedKey(first, key, "", 0, (), "", f"is there again in line {last}: the last one counts")
            )
    k = _ports(db, onto, scaled=scaled)
    found = read_classes(db, onto.queues)
    read_buffers(db, onto, found)
    read_watchdog(db, k)
    read_hashing(db, onto, k)
    _rest(db)
    db.problems.raise_if_any()
    db.rows.sort(key=lambda row: row.line)
    return db


def _opened(document: Document) -> ConfigDb:
    """The tables, or those of the first group that has some: a file of a switch with several chips has such groups."""
    if any(_known([key.partition("|")[0]]) for key in document.data if "|" in key):
        document = _nested(document)
    data = document.data
    if _known(data):
        return ConfigDb(document, data)
    for name, inner in data.items():
        if isinstance(inner, dict) and _known(inner):
            return ConfigDb(document, inner, (name,))
    hint = f"name a config_db.json; it has tables such as {', '.join(READ[8:11])}"
    raise InputError(Problem(document.source, "the file", "has no table that Heddle reads", hint))


def _nested(dump: Document) -> Document:
    """The tables of a dump of the data base, whose keys are `TABLE|ENTRY`, as sonic-db-dump and redis-dump write it.

    The fields of an entry may be in a group `value`, beside its type; a list's name ends with @ there.
    """
    data: dict[str, Any] = {}
    found = Document(data, dump.source, {(): dump.marks[()]})
    inner = {k for k, each in dump.data.items() if isinstance(each, dict) and isinstance(each.get("value"), dict)}
    for key, entry in dump.data.items():
        table, bar, name = key.partition("|")
        fields = entry["value"] if key in inner else entry
        if bar and isinstance(group := data.setdefault(table, {}), dict):
            group[name] = {_plain(k): v for k, v in fields.items()} if isinstance(fields, dict) else fields
        elif not bar:
            data[table] = fields
    for (first, *rest), mark in ((trail, mark) for trail, mark in dump.marks.items() if trail):
        if first not in inner or rest[:1] in ([], ["value"]):  # not its type, not its age
            table, bar, name = str(first).partition("|")
            found.marks.setdefault((table, *[name] * bool(bar), *map(_plain, rest[first in inner :])), mark)
    return found


def _plain(step: str | int) -> str | int:
    return step.removesuffix("@") if isinstance(step, str) else step


def _known(data: Iterable[str]) -> bool:
    return any(table in data for table in (*READ, *_WHYS))


def _ports(db: ConfigDb, onto: FabricSpec, *, scaled: bool) -> int:
    """k: the speed of most ports, divided by the rate of the fabric's host links."""
    speed = db.common("PORT", "speed")
    mbit = db.number("PORT", str(speed.trails[0][1]), "speed", 1, 1_600_000) if speed else None
    k = onto.k
    if speed and scaled:
        db.leave(speed.trails, f"--set scale={onto.k} has priority")
    elif speed and mbit:
        fits = round(mbit * 10**6 / onto.link.host)
        if fits:
            k = fits
            db.apply(speed.trails, {"scale": k}, f"k = {mbit:,} Mb/s / {format_rate(onto.link.host)}")
        else:
            db.leave(speed.trails, f"is below link.host, {format_rate(onto.link.host)}")
    for held in db.held("PORT", "mtu"):
        db.leave(held.trails, f"the fabric keeps its MTU, {onto.link.mtu}; use --set link.mtu={held.value}")
    return k


def _rest(db: ConfigDb) -> None:
    """A row for each table that is not read, and one for keys of other tables that are not read."""
    for table, entries in db.tables.items():
        size = len(entries) if isinstance(entries, dict | list) else 1
        if table not in READ:
            db.leave_all((table,), f"{size} entr{'y' if size == 1 else 'ies'}", _WHYS.get(table, _OTHER))
            continue
        left = [
            (table, entry, key)
            for entry, fields in db.entries(table).items()
            if (table, entry) not in db.decided
            for key in fields
            if (table, entry, key) not in db.decided
        ]
        if left:
            keys = ", ".join(dict.fromkeys(key for *_, key in left))
            db.leave_all((table,), keys, _KEYS.get(table, "Heddle does not have these"), db.line(left[0]))
    for name in db.document.data:
        if db.above and name not in db.above:
            db.above, above = (), db.above
            db.leave_all((name,), "", f"the tables of {name_of(above)} are read")
            db.above = above
