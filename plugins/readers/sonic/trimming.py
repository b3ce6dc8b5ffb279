"""Packet trimming of a config_db.json: its size, DSCPs and queue, which classes trim, and which DSCPs never do.

Source: the design document of SONiC's packet trimming, version 0.3 (SWITCH_TRIMMING, packet_discard_action,
TC_TO_DSCP_MAP, the ACL action DISABLE_TRIM).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from heddle.base.ethernet import CLASSES, DSCPS
from heddle_plugins.readers.sonic.configdb import ConfigDb, Held

_TABLE: Final = "SWITCH_TRIMMING"
_GLOBAL: Final = "GLOBAL"
_TO_DSCP: Final = "TC_TO_DSCP_MAP"
_BOUND: Final = "tc_to_dscp_map"
_ACTION: Final = "packet_discard_action"
_FROM_TC: Final = "from-tc"
_SIZES: Final = (128, 1024)
_PATH: Final = "queues.trimming"
MARKS: Final = (f"{_PATH}.dscp", f"{_PATH}.last-hop-dscp")
_HOSTS: Final = ("host", "server", "last", "down")  # in the name of a map: that of ports to hosts


def trim_queue(db: ConfigDb, of_dscp: dict[int, int], queue: dict[int, int]) -> int | None:
    """Apply SWITCH_TRIMMING and its maps; the class of trimmed packets, None where the file has none.

    of_dscp: the queue of each DSCP. queue: that of each traffic class.
    """
    fields = db.entries(_TABLE).get(_GLOBAL, {})
    if not fields:
        return None
    db.number(_TABLE, _GLOBAL, "dscp_value", 0, DSCPS - 1) if fields.get("dscp_value") != _FROM_TC else None
    tc = db.number(_TABLE, _GLOBAL, "tc_value", 0, 2 * CLASSES - 1)
    marks = _marks(db, tc)
    word = db.text(_TABLE, _GLOBAL, "queue_index")
    trail = (_TABLE, _GLOBAL, "queue_index")
    if word is None or not marks:
        if word is not None:
            db.leave([trail], "the DSCP of trimmed packets is not in the file")
        return None
    if word == "dynamic":
        found = queue.get(tc, tc) if tc is not None else of_dscp.get(marks["dscp"], marks["dscp"] // CLASSES)
        db.apply([trail], {f"{_PATH}.queue": found}, "the queue of the DSCP of trimmed packets")
    else:
        number = db.number(_TABLE, _GLOBAL, "queue_index", 0, CLASSES - 1)
        if number is None:
            return None
        found = number
        db.apply([trail], {f"{_PATH}.queue": found})
    size = db.number(_TABLE, _GLOBAL, "size", 1)
    if size is not None and _SIZES[0] <= size <= _SIZES[1]:
        db.apply([(_TABLE, _GLOBAL, "size")], {f"{_PATH}.size": size}, "bytes from the IP header on")
    elif size is not None:
        db.leave([(_TABLE, _GLOBAL, "size")], f"Heddle trims to {_SIZES[0]} to {_SIZES[1]} bytes")
    return found


def _marks(db: ConfigDb, tc: int | None) -> dict[str, int]:
    """The DSCP of trimmed packets, and that of those trimmed at the last hop where ports have different maps."""
    word = db.text(_TABLE, _GLOBAL, "dscp_value")
    trail = (_TABLE, _GLOBAL, "dscp_value")
    if word is None:
        return {}
    if word != _FROM_TC:
        if not word.isdecimal() or int(word) >= DSCPS:
            return {}
        why = "SONiC has one DSCP for all ports: ports to hosts keep queues.trimming.last-hop-dscp"
        db.apply([trail], {f"{_PATH}.dscp": int(word)}, why)
        return {"dscp": int(word)}
    bound = db.held("PORT_QOS_MAP", _BOUND)
    maps = [(each, db.name(_TO_DSCP, each.value)) for each in bound]
    known = [(each, name, _dscp_of(db, name, tc)) for each, name in maps if name]
    for each, name in maps:
        if not name:
            db.leave(each.trails, f"{_TO_DSCP} has no such entry")
    last = next((each for each in known if any(part in each[1].lower() for part in _HOSTS)), None)
    usual = next((each for each in known if each is not last), last)
    if usual is None or usual[2] is None or tc is None:
        db.leave([trail], f"needs tc_value, and a {_TO_DSCP} of ports that has it")
        return {}
    found = {"dscp": _apply(db, usual, tc, f"{_PATH}.dscp")}
    if last is not None and last is not usual and last[2] is not None:
        found["last"] = _apply(db, last, tc, f"{_PATH}.last-hop-dscp")
    db.read([trail], [f"{_PATH}.dscp"], f"by {_TO_DSCP}")
    db.read([(_TABLE, _GLOBAL, "tc_value")], [f"{_PATH}.dscp"], f"traffic class {tc}")
    for each, _, _ in known:
        if each is not usual[0] and (last is None or each is not last[0]):
            db.leave(
                each.trails, "the file does not say that these ports lead to hosts: use queues.trimming.last-hop-dscp"
            )
    return found


def _dscp_of(db: ConfigDb, name: str, tc: int | None) -> int | None:
    return None if tc is None else db.number(_TO_DSCP, name, str(tc), 0, DSCPS - 1)


def _apply(db: ConfigDb, chosen: tuple[Held, str, int | None], tc: int, path: str) -> int:
    held, name, dscp = chosen
    assert dscp is not None  # noqa: S101  (the caller has checked it)
    db.apply([(_TO_DSCP, name, str(tc))], {path: dscp}, f"of traffic class {tc}, at the ports with this map")
    db.read(held.trails, [path], f"by {_TO_DSCP}")
    return dscp


def read_actions(db: ConfigDb, lossy: Iterable[int], before: int | None) -> None:
    """Apply packet_discard_action of the profile of each lossy queue, and the ACL rules that exempt a DSCP.

    before: the trim queue of the fabric that gets the keys.
    """
    queue = db.settings.get(f"{_PATH}.queue", (before, ()))[0]
    profiles = {name: db.text("BUFFER_PROFILE", name, _ACTION) for name in db.entries("BUFFER_PROFILE")}
    for name, action in profiles.items():
        if action not in (None, "trim", "drop"):
            db.wrong(("BUFFER_PROFILE", name, _ACTION), "is not trim or drop")
    if queue is None:
        for name, action in profiles.items():
            if action == "trim":
                db.leave(
                    [("BUFFER_PROFILE", name, _ACTION)], "no queue is for trimmed packets: use queues.trimming.queue"
                )
        return
    bound = db.held("BUFFER_QUEUE", "profile")
    used: dict[str, dict[str, str]] = {}
    for number in lossy:
        held = db.of_class(bound, number)
        name = db.name("BUFFER_PROFILE", held.value) if held else ""
        action = profiles.get(name) or "drop"
        if name and profiles.get(name):
            used.setdefault(name, {})[f"{_PATH}.actions.{number}"] = action
        elif action == "drop" and bound:
            db.settings[f"{_PATH}.actions.{number}"] = ("drop", (_TABLE, _GLOBAL, "queue_index"))
    for name, settings in used.items():
        db.apply([("BUFFER_PROFILE", name, _ACTION)], settings)
    for name, action in profiles.items():
        if action is not None and name not in used:
            db.leave([("BUFFER_PROFILE", name, _ACTION)], "no lossy class has this profile: others are never trimmed")
    _exempt(db)


def _exempt(db: ConfigDb) -> None:
    """DISABLE_TRIM of a DSCP."""
    exempt: dict[int, tuple[Any, ...]] = {}
    for name, fields in db.entries("ACL_RULE").items():
        if str(fields.get("PACKET_ACTION", "")).upper() != "DISABLE_TRIM":
            continue
        trail = ("ACL_RULE", name, "PACKET_ACTION")
        others = [key for key in fields if key not in ("PACKET_ACTION", "PRIORITY", "DSCP", "ETHER_TYPE", "IP_TYPE")]
        dscp = db.number("ACL_RULE", name, "DSCP", 0, DSCPS - 1)
        if dscp is None or others:
            db.leave([trail], "Heddle exempts packets by their DSCP only")
        else:
            exempt[dscp] = trail
            db.read([trail], [f"{_PATH}.except"], str(dscp))
            db.read([("ACL_RULE", name, "DSCP")], [f"{_PATH}.except"], str(dscp))
    if exempt:
        db.settings[f"{_PATH}.except"] = (sorted(exempt), next(iter(exempt.values())))
