"""config_db.json -> keys of a fabric file, and a row for each key of the file.

In:  the Document of the JSON file, and the spec of the fabric that gets the keys.
Out: ConfigDb with rows in the file's order, and settings. InputError with the line of each wrong value.
Names of tables and keys are those of SONiC's YANG models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_rate
from heddle.spec.sonic.buffers import read_buffers, read_watchdog
from heddle.spec.sonic.classes import read_classes
from heddle.spec.sonic.configdb import ConfigDb, ImportedKey, name_of
from heddle.spec.sonic.hashing import read_hashing
from heddle.spec.yamlfile import Document

if TYPE_CHECKING:
    from heddle.spec.jsonfile import Repeated
    from heddle.spec.schema import FabricSpec

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
