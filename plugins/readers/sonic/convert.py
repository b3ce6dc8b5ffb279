"""config_db.json -> keys of a fabric file, and a row for each key of the file.

In:  the Document of the JSON file, and the spec of the fabric that gets the keys.
Out: ConfigDb with rows in the file's order, and settings. InputError with the line of each wrong value.
Names of tables and keys are those of SONiC's YANG models. Bytes of buffers are kept; times are multiplied by k.

SONiC's `xoff` of a profile is its headroom. The threshold from which a port is paused is `static_th`, or follows from
`dynamic_th`: alpha = 2^dynamic_th times the free bytes of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, format_rate, format_size, shown
from heddle.spec.queuepolicy import BUFFERS
from heddle.spec.schema import FabricSpec
from heddle.spec.yamlfile import Document, Trail
from heddle_plugins.readers.sonic.classes import ClassesFound, read_classes
from heddle_plugins.readers.sonic.configdb import ConfigDb, Held, ImportedKey, Repeated, name_of

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
_MS: Final = 10**6
_LONGEST_WAIT_NS: Final = 10**11  # of queues.pfc.watchdog.detect and .restore
_ALPHA: Final = 64  # the most of queues.alpha
_PROFILE: Final = "BUFFER_PROFILE"
_POOL: Final = "BUFFER_POOL"
_DEFAULT: Final = "DEFAULT_LOSSLESS_BUFFER_PARAMETER"  # of the dynamic model, in which the switch computes profiles
_DEFAULT_TH: Final = "default_dynamic_th"
_NULL: Final = "NULL"  # the profile of a group whose profile the switch computes
_COMPUTED: Final = "the switch computes it, and it is not in the file"


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
    "SWITCH_TRIMMING", "TC_TO_DSCP_MAP", "ACL_RULE",
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
}
_OTHER: Final = "is not about queues, PFC or hashing"
# The reason for the rest of a table's keys.
_KEYS: Final[Mapping[str, str]] = {
    "TC_TO_DSCP_MAP": "switches change only the DSCP of trimmed packets",
    "ACL_RULE": _OTHER,
    "SWITCH_TRIMMING": "trimming needs a dscp_value and a queue_index",
    "PORT": "they describe the ports of the chip",
    "PORT_QOS_MAP": "frames have no VLAN tags, and switches do not change DSCPs or shape a port below its link",
    "SCHEDULER": "no queue has a rate of its own",
    "DEFAULT_LOSSLESS_BUFFER_PARAMETER": "profiles that the switch computes are not in the file",
    "FG_NHG": "a group has all next hops of its route",
    "ARS_PROFILE": "the depth of a port's queue is its quality, when the packet comes",
    "ARS_OBJECT": "the depth of a port's queue is its quality, and each flow has a state",
}


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
    _buffers(db, onto, found)
    _watchdog(db, k)
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


def _buffers(db: ConfigDb, onto: FabricSpec, found: ClassesFound) -> None:
    """Apply the profile of the lossless priority groups and its pool, and the reserve of the lossy queues."""
    groups, queues = db.held("BUFFER_PG", "profile"), db.held("BUFFER_QUEUE", "profile")
    own = [each for each in groups if {*each.classes} & {*found.lossless}]
    default = next((name for name, fields in db.entries(_DEFAULT).items() if _DEFAULT_TH in fields), "")
    chosen = _lossless(db, own, default, anywhere=bool(found.lossless) and not groups)
    lossy = next((name for q in queues if found.best_effort in q.classes and (name := db.name(_PROFILE, q.value))), "")
    computed = (
        any(each.value == _NULL for each in own) or db.text("DEVICE_METADATA", "localhost", "buffer_model") == "dynamic"
    )
    for held in groups:
        name = db.name(_PROFILE, held.value)
        if default and chosen == default and held.value == _NULL and held in own:
            db.read(held.trails, ["queues.alpha"], f"by {_DEFAULT}")
        elif name and name == chosen:
            db.read(held.trails, ["queues.pfc"], f"by {_PROFILE}")
        else:
            _unused(db, held, "the fabric has one profile, the one of most ports with a lossless class")
    for held in queues:
        if lossy and db.name(_PROFILE, held.value) == lossy:
            db.read(held.trails, ["queues.reserve"], f"by {_PROFILE}")
        else:
            _unused(db, held, "lossy classes have one reserve, the one of best effort")
    for name in db.entries(_PROFILE):
        if name not in (chosen, lossy):
            db.leave([(_PROFILE, name)], "no class of the fabric has it")
    alone = not (chosen or computed)
    pool = db.name(_POOL, db.text(_PROFILE, chosen, "pool") or "") or _pool_of(db, any_kind=alone)
    size = _pool(db, pool)
    if chosen in db.entries(_PROFILE):
        _profile(db, chosen, pool, size, onto)
    elif chosen:
        _alpha(db, (_DEFAULT, chosen, _DEFAULT_TH), size, onto.queues.pfc.xoff)
    _proportion(db, onto)
    if lossy and lossy != chosen:
        _lossy(db, lossy, alone=alone)


def _unused(db: ConfigDb, held: Held, why: str) -> None:
    absent = "no profile" if held.value == _NULL else f"{_PROFILE} has no such entry"
    db.leave(held.trails, why if db.name(_PROFILE, held.value) else absent)


def _lossless(db: ConfigDb, groups: list[Held], default: str, *, anywhere: bool) -> str:
    """The profile of most lossless groups, or `default` where the switch computes it; empty if there is none.

    anywhere: the file binds no groups, so its only profile with headroom counts.
    """
    named = [name for each in groups if (name := db.name(_PROFILE, each.value) or (each.value == _NULL and default))]
    if named:
        return named[0]
    with_headroom = [name for name in db.entries(_PROFILE) if db.number(_PROFILE, name, "xoff")]
    return default if not anywhere else with_headroom[0] if len(with_headroom) == 1 else default


def _pool_of(db: ConfigDb, *, any_kind: bool) -> str:
    """The pool that stands for the buffer if no profile names one: the largest ingress pool, those of lossless first.

    any_kind: an egress pool, where the file has no other.
    """
    sizes = {name: db.number(_POOL, name, "size") or 0 for name in db.entries(_POOL)}
    kinds = {name: db.text(_POOL, name, "type") or name.partition("_")[0] for name in sizes}
    ingress = [name for name in sizes if kinds[name] != "egress"]
    return max(ingress or [*sizes] * any_kind, key=lambda name: ("lossless" in name, sizes[name]), default="")


def _pool(db: ConfigDb, name: str) -> int | None:
    """The size of a pool, which is the buffer of every switch; None if it is not given or too large."""
    for other in db.entries(_POOL):
        if other != name:
            db.leave([(_POOL, other)], "Heddle's switch has one pool, which stands for the ingress pool")
    if not name:
        return None
    size = db.number(_POOL, name, "size") or None
    if size is not None and size > BUFFERS[1]:
        why = f"is above {format_size(BUFFERS[1])}, the most of a switch; use --set queues.buffer=SIZE"
        db.leave([(_POOL, name, "size")], why)
        size = None
    elif size is not None:
        db.apply([(_POOL, name, "size")], {"queues.buffer": size}, "the buffer of each switch, whatever its ports")
    elif db.text(_POOL, name, "percentage") is None:
        trail = (_POOL, name, "size") if db.text(_POOL, name, "size") is not None else (_POOL, name)
        db.leave([trail], f"has no size: {_COMPUTED}; use --set queues.buffer=SIZE")
    for key, why in _OF_POOLS.items():
        if db.text(_POOL, name, key) is not None:
            db.leave([(_POOL, name, key)], why)
    return size


_OF_POOLS: Final = {
    "xoff": "there is no shared headroom: each port and lossless class has its own",
    "percentage": "the size of the chip's buffer is not in the file; use --set queues.buffer=SIZE",
    "type": "a lossless class is admitted at ingress, others at egress",
    "mode": "thresholds are those of the profile",
}


def _profile(db: ConfigDb, name: str, pool: str, size: int | None, onto: FabricSpec) -> None:
    """Alpha, reserve, headroom and thresholds of pauses: the profile of lossless classes. size: the pool's."""

    def trail(key: str) -> tuple[str, str, str]:
        return _PROFILE, name, key

    used = db.text(_PROFILE, name, "pool")
    if used is not None and pool and db.name(_POOL, used) == pool:
        db.read([trail("pool")], ["queues.buffer"], f"by {_POOL}")
    elif used is not None:
        db.leave([trail("pool")], f"{_POOL} has no such entry")
    _reserve(db, name)
    xoff, static = onto.queues.pfc.xoff, db.number(_PROFILE, name, "static_th")
    if static is not None:
        xoff = static
        db.apply([trail("static_th")], {"queues.pfc.xoff": xoff}, "the occupancy from which a port is paused")
    if db.text(_PROFILE, name, "dynamic_th") is not None:
        xoff = _alpha(db, trail("dynamic_th"), size, xoff, paused=static is None)
    _headroom(db, name, onto.link.host)
    _resume(db, name, xoff)


def _reserve(db: ConfigDb, name: str) -> None:
    """The guaranteed bytes of a lossless group. SAI sends Xoff when less than `xoff` of the group's own buffer is free,
    so a `size` of `xoff` or more has the headroom in it. With shared headroom `size` is `xon`, and has none.
    """
    size, headroom, xon = (db.number(_PROFILE, name, key, 0, 2**31) or 0 for key in ("size", "xoff", "xon"))
    trail = (_PROFILE, name, "size")
    if not size and not headroom and db.text(*trail) is not None:
        db.leave([trail], f"is 0, and the profile has no xoff: {_COMPUTED}")
    elif db.text(*trail) is not None:
        within = headroom if size >= headroom and size != xon else 0
        why = "of each lossless class of each port" + (f": size, less xoff, {within}, the headroom" if within else "")
        db.apply([trail], {"queues.pfc.reserve": size - within}, why)


def _alpha(db: ConfigDb, trail: tuple[str, str, str], size: int | None, xoff: int, *, paused: bool = True) -> int:
    """Apply alpha; returns Xoff, which follows from it if `paused`. size: the pool's."""
    power = db.number(*trail, -8, 7)
    if power is None:
        return xoff
    if 2**power > _ALPHA:
        db.leave([trail], f"alpha would be {2**power}, and {_ALPHA} is the most")
        return xoff
    settings: dict[str, float] = {"queues.alpha": 2.0**power}
    why = f"alpha = 2^{trail[2]}"
    if paused and size:
        settings["queues.pfc.xoff"] = xoff = int(size * 2**power / (1 + 2**power))
        why += "; Xoff is the most that one port can hold: alpha / (1 + alpha) of the pool"
    elif paused:
        why += f"; Xoff stays at most {shown(xoff)}: the size of the pool is not known"
    db.apply([trail], settings, why)
    return xoff


def _lossy(db: ConfigDb, name: str, *, alone: bool) -> None:
    """The reserve of lossy classes; their alpha too, if `alone`: nothing of the file is about lossless classes."""
    if (size := db.number(_PROFILE, name, "size", 0, 2**31)) is not None:
        why = "of each class of each port" if alone else "of each lossy class of each port"
        db.apply([(_PROFILE, name, "size")], {"queues.reserve": size}, why)
    left = [key for key in ("pool", "static_th") if db.text(_PROFILE, name, key) is not None]
    if alone:
        _alpha(db, (_PROFILE, name, "dynamic_th"), None, 0, paused=False)
    elif db.text(_PROFILE, name, "dynamic_th") is not None:
        db.leave([(_PROFILE, name, "dynamic_th")], "Heddle has one alpha, the one of lossless classes")
    if left:
        db.leave_keys((_PROFILE, name), left, "lossy classes share the buffer, and have a dynamic threshold")


def _proportion(db: ConfigDb, onto: FabricSpec) -> None:
    """Xon, if the file has an Xoff only: as far below it as in the fabric."""
    before = onto.queues.pfc
    if "queues.pfc.xon" not in db.settings and (found := db.settings.get("queues.pfc.xoff")):
        xon = found[0] * before.xon // before.xoff
        db.apply([found[1]], {"queues.pfc.xon": xon}, "in proportion: the profile has none")


def _headroom(db: ConfigDb, name: str, rate_bps: int) -> None:
    """SONiC's xoff: bytes beyond the pause threshold."""
    headroom = db.number(_PROFILE, name, "xoff", 0, 2**31)
    if headroom:
        lasts = f"{headroom * 8e3 / rate_bps:.3g} ms at {format_rate(rate_bps)}"
        why = f"SONiC's xoff is headroom: {lasts}; ./inv queues shows the reaction time"
        db.apply([(_PROFILE, name, "xoff")], {"queues.pfc.headroom": headroom}, why)


def _resume(db: ConfigDb, name: str, xoff: int) -> None:
    """Xon: SONiC resumes at `xon`, or `xon_offset` below the pause threshold, whichever is more."""
    xon, offset = db.number(_PROFILE, name, "xon"), db.number(_PROFILE, name, "xon_offset")
    below = xoff - offset if offset else 0
    for key, value, by in (("xon", xon, "xon_offset"), ("xon_offset", below if offset else 0, "xon")):
        if db.text(_PROFILE, name, key) is None:
            continue
        if not value or value < max(xon or 0, below):
            why = (
                f"{by} gives the higher threshold" if max(xon or 0, below) else "is 0: Xon stays in proportion to Xoff"
            )
            if key == "xon_offset" and offset and below <= 0:
                why = f"is not below Xoff, {shown(xoff)}"
            db.leave([(_PROFILE, name, key)], why)
        else:
            why = f"Xoff, {shown(xoff)}, less {offset}" if key == "xon_offset" else ""
            db.apply([(_PROFILE, name, key)], {"queues.pfc.xon": value}, why)


def _watchdog(db: ConfigDb, k: int) -> None:
    """Apply PFC_WD: the values that most ports have."""
    table = "PFC_WD"
    action = db.common(table, "action")
    if action and action.value not in ("drop", "forward", "alert"):
        db.wrong(action.trails[0], "is not drop, forward or alert")
    elif action and action.value == "alert":
        db.leave(action.trails, "Heddle's watchdog drops or forwards")
    elif action:
        settings = {"queues.pfc.watchdog.enabled": True, "queues.pfc.watchdog.action": action.value}
        if "queues.pfc.watchdog.enabled" in db.settings:
            settings.pop("queues.pfc.watchdog.enabled")  # pfcwd_sw_enable says it
        db.apply(action.trails, settings)
    for key, path, high in (("detection_time", "detect", 5000), ("restoration_time", "restore", 60000)):
        held = db.common(table, key)
        ms = db.number(table, str(held.trails[0][1]), key, 100, high) if held else None
        if held is None or ms is None:
            continue
        lasts, text = ms * _MS * k, f"{ms} ms x k = {k:,}"
        if lasts > _LONGEST_WAIT_NS:
            longest = f"the longest is {_LONGEST_WAIT_NS // 10**9} s, {lasts / _LONGEST_WAIT_NS:.3g} times sooner"
            text, lasts = f"{text} is {lasts / 10**9:,.0f} s; {longest}", _LONGEST_WAIT_NS
        db.apply(held.trails, {f"queues.pfc.watchdog.{path}": format_duration(lasts)}, text)
    for name in db.entries(table):
        if db.text(table, name, "POLL_INTERVAL") is not None:
            db.leave([(table, name, "POLL_INTERVAL")], "each pause starts a timer of its own; nothing is polled")
