"""Classes of a config_db.json: which are lossless, which DSCPs and weights they have, and how their queues mark.

A class of Heddle is a queue, a priority group and a PFC priority at once. The queue's number names it: a DSCP gives a
traffic class, and that gives the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.base.ethernet import CLASSES, DSCPS
from heddle_plugins.readers.sonic.configdb import ConfigDb, Held
from heddle_plugins.readers.sonic.trimming import MARKS, read_actions, trim_queue

if TYPE_CHECKING:
    from heddle.spec.queuepolicy import QueuePolicy

# What Heddle's hosts send with (heddle/wire/layout.py).
_DATA: Final = 24
_ANSWERS: Final = 48
_DSCP: Final = "DSCP_TO_TC_MAP"
_QUEUE: Final = "TC_TO_QUEUE_MAP"
_GROUP: Final = "TC_TO_PRIORITY_GROUP_MAP"
_PFC: Final = "MAP_PFC_PRIORITY_TO_QUEUE"
# Key of PORT_QOS_MAP -> its table, and the key of the fabric file that the map takes part in.
_MAPS: Final[Mapping[str, tuple[str, str]]] = {
    "dscp_to_tc_map": (_DSCP, "queues.dscp"),
    "tc_to_queue_map": (_QUEUE, "queues.dscp"),
    "tc_to_pg_map": (_GROUP, "queues.lossless"),
    "pfc_to_queue_map": (_PFC, "queues.lossless"),
}
_NO_CLASS: Final = f"goes to queue {{}}, and classes are 0 to {CLASSES - 1}"
_MARKED_GREEN: Final = ("ecn_green", "ecn_green_yellow", "ecn_green_red", "ecn_all")
_ECN_WORDS: Final = (*_MARKED_GREEN, "ecn_none", "ecn_yellow", "ecn_red", "ecn_yellow_red")
# A value of the marking curve -> keys of WRED_PROFILE. SONiC prefers the first.
_CURVE: Final[Mapping[str, tuple[str, str]]] = {
    "kmin": ("ecn_green_min_threshold", "green_min_threshold"),
    "kmax": ("ecn_green_max_threshold", "green_max_threshold"),
    "pmax": ("ecn_green_mark_probability", "green_drop_probability"),
}


@dataclass(frozen=True, slots=True)
class ClassesFound:
    """Classes of the new fabric file. used: all of them, also lossy ones with a weight only."""

    lossless: tuple[int, ...]
    control: int
    best_effort: int
    used: frozenset[int]


def read_classes(db: ConfigDb, onto: QueuePolicy) -> ClassesFound:
    """Apply PORT_QOS_MAP and its maps, the weights of SCHEDULER, and the marking of WRED_PROFILE."""
    maps = {table: _map(db, key, table, path) for key, (table, path) in _MAPS.items()}
    queue = maps[_QUEUE].numbers
    of_dscp = {dscp: queue.get(tc, tc) for dscp, tc in maps[_DSCP].numbers.items()}
    trim = trim_queue(db, of_dscp, dict(queue))
    lossless = _lossless(db, onto, maps[_PFC].numbers)
    found = _kinds(onto, lossless, {dscp: number for dscp, number in of_dscp.items() if number != trim}, trim)
    _dscps(db, found, of_dscp, maps[_DSCP], trim)
    for path, number, before in (
        ("queues.control", found.control, onto.control),
        ("queues.best_effort", found.best_effort, onto.best_effort),
    ):
        if number != before and path not in db.settings:  # the preset's class has another kind now
            db.settings[path] = (number, [trail for _, trail in db.settings.values()][-1])
    _other_maps(db, found, maps)
    bound = db.held("QUEUE", "scheduler")
    _weights(db, found, bound)
    _marking(db, found, db.held("QUEUE", "wred_profile"))
    read_actions(db, sorted(found.used - {found.control, *found.lossless}), onto.trimming.queue)
    return found


@dataclass(frozen=True, slots=True)
class _Map:
    """The map that the fabric gets. name: of its entry, empty if there is none."""

    table: str
    name: str
    numbers: Mapping[int, int]


def _map(db: ConfigDb, key: str, table: str, path: str) -> _Map:
    """The map that most ports use, or the only one of a file that binds none. Others are not modelled."""
    bound, names = db.common("PORT_QOS_MAP", key), [*db.entries(table)]
    name = db.name(table, bound.value) if bound else names[0] if len(names) == 1 else ""
    if bound and name:
        db.read(bound.trails, [path], f"by {table}")
    elif bound:
        db.leave(bound.trails, f"{table} has no such entry")
    for each in names:
        if each != name:
            db.leave(
                [(table, each)], "the fabric has one map, and more ports use another" if name else "no port uses it"
            )
    most = DSCPS if table == _DSCP else 2 * CLASSES
    found: dict[int, int] = {}
    for word in db.entries(table).get(name, {}):
        number = db.number(table, name, word, 0, 2 * CLASSES - 1)
        if not (word.isdecimal() and int(word) < most and word == str(int(word))):
            db.wrong((table, name, word), f"has a key that is not a number from 0 to {most - 1}")
        elif number is not None:
            found[int(word)] = number
    return _Map(table, name, found)


def _lossless(db: ConfigDb, onto: QueuePolicy, queue: Mapping[int, int]) -> tuple[int, ...]:
    """Classes that PFC pauses: `pfc_enable`, or the preset's."""
    watched = db.common("PORT_QOS_MAP", "pfcwd_sw_enable")
    if watched:
        db.apply(watched.trails, {"queues.pfc.watchdog.enabled": bool(watched.value)}, "for all lossless classes")
    enabled = db.common("PORT_QOS_MAP", "pfc_enable")
    if not enabled:
        return tuple(onto.lossless)
    words = [word.strip() for word in enabled.value.split(",") if word.strip()]
    if wrong := next((word for word in words if not (word.isdecimal() and int(word) < CLASSES)), None):
        db.wrong(enabled.trails[0], f"has {wrong}, which is not a priority", "priorities are 0 to 7, as in 3,4")
        return tuple(onto.lossless)
    every = sorted({queue.get(int(word), int(word)) for word in words})
    found = tuple(number for number in every if number < CLASSES)
    if every and not found:
        db.leave(enabled.trails, _NO_CLASS.format(every[0]))
        return tuple(onto.lossless)
    why = f"hosts send data with DSCP {_DATA}: it has class {found[0]}" if found and _DATA // 8 not in found else ""
    db.apply(enabled.trails, {"queues.lossless": [*found], **({"queues.pfc.enabled": True} if found else {})}, why)
    if why:
        db.settings[f"queues.dscp.{_DATA}"] = (found[0], enabled.trails[0])
    return found


def _kinds(onto: QueuePolicy, lossless: tuple[int, ...], of_dscp: Mapping[int, int], trim: int | None) -> ClassesFound:
    """The class of answers is control, the one of DSCP 0 best effort; the preset's, where these are not possible.

    trim: the class of trimmed packets, which has no other packets.
    """
    free = [number for number in range(CLASSES) if number not in (*lossless, trim)]
    plain = of_dscp.get(0, -1)
    wanted = [of_dscp.get(_ANSWERS, -1), onto.control, *reversed(free)]
    control = next((number for number in wanted if number in free and number != plain), onto.control)
    wanted = [plain, onto.best_effort, *free]
    best = next((number for number in wanted if number in free and number != control), onto.best_effort)
    mapped = {number for number in of_dscp.values() if number < CLASSES}
    return ClassesFound(lossless, control, best, frozenset({*lossless, control, best, *mapped}))


def _dscps(db: ConfigDb, found: ClassesFound, of_dscp: Mapping[int, int], chosen: _Map, trim: int | None) -> None:
    """The class of each DSCP of the map. Answers and data keep their classes, since hosts have no other DSCPs."""
    alike: dict[tuple[int, int], list[int]] = {}
    marks = [db.settings[path][0] for path in MARKS if path in db.settings]
    for dscp, number in of_dscp.items():
        trail = (chosen.table, chosen.name, str(dscp))
        if number >= CLASSES:
            db.leave([trail], _NO_CLASS.format(number))
        elif number == trim and dscp in marks:
            db.read([trail], ["queues.trimming.queue"], str(trim))
        elif number == trim:
            db.leave([trail], f"queue {trim} is for trimmed packets only")
        elif dscp == _DATA and found.lossless and number not in found.lossless:
            why = f"would make class {number}, which drops, the class of data: Heddle's hosts send it with DSCP {_DATA}"
            db.leave(
                [trail], f"{why}. It keeps class {_DATA // 8 if _DATA // 8 in found.lossless else found.lossless[0]}"
            )
        elif dscp == _ANSWERS and number in found.lossless:
            db.leave([trail], "is the DSCP of ACKs, CNPs and BGP: PFC must not pause them")
        elif dscp == _ANSWERS and number == found.control:
            why = f"the class of DSCP {_ANSWERS} (ACKs, CNPs, BGP) is served before all others"
            db.apply([trail], {"queues.control": found.control, f"queues.dscp.{dscp}": number}, why)
        elif dscp == 0 and number == found.best_effort:
            db.apply([trail], {"queues.best_effort": number}, "also for packets that are not IP")
        else:
            alike.setdefault((chosen.numbers[dscp], number), []).append(dscp)
            db.settings[f"queues.dscp.{dscp}"] = (number, trail)
    for (_, number), dscps in alike.items():
        trails = [(chosen.table, chosen.name, str(dscp)) for dscp in dscps]
        db.read(trails, [f"queues.dscp.{dscp}" for dscp in dscps], str(number))
    for number in sorted(found.used - {*found.lossless, found.control, found.best_effort}):
        first = next((chosen.table, chosen.name, str(dscp)) for dscp, each in of_dscp.items() if each == number)
        db.settings[f"queues.weights.{number}"] = (1, first)


def _other_maps(db: ConfigDb, found: ClassesFound, maps: Mapping[str, _Map]) -> None:
    """A traffic class's queue is read with the DSCPs; its priority group must be its queue, if it is lossless."""
    queue = maps[_QUEUE]
    for tc, number in queue.numbers.items():
        trail = (queue.table, queue.name, str(tc))
        if number >= CLASSES:
            db.leave([trail], _NO_CLASS.format(number))
        else:
            db.read([trail], ["queues.dscp"], f"class {number}")
    for priority, number in maps[_PFC].numbers.items():
        trail = (_PFC, maps[_PFC].name, str(priority))
        if number >= CLASSES:
            db.leave([trail], _NO_CLASS.format(number))
        elif number in found.lossless:
            db.read([trail], ["queues.lossless"], f"class {number}")
    lossy = [
        str(priority)
        for priority, number in maps[_PFC].numbers.items()
        if number < CLASSES and number not in found.lossless
    ]
    if lossy:
        db.leave_keys((_PFC, maps[_PFC].name), lossy, "the classes are not lossless: pfc_enable does not have them")
    groups = maps[_GROUP]
    lossy = [str(tc) for tc in groups.numbers if queue.numbers.get(tc, tc) not in found.lossless]
    if lossy:
        why = "lossy classes are admitted by their egress queue, and not by a priority group"
        db.leave_keys((_GROUP, groups.name), lossy, why)
    for tc, group in groups.numbers.items():
        trail, number = (_GROUP, groups.name, str(tc)), queue.numbers.get(tc, tc)
        if number not in found.lossless:
            continue
        if group != number:
            db.leave([trail], f"priority group and queue have one number in Heddle: class {number}")
        else:
            db.read([trail], ["queues.lossless"], f"class {number}")


def _weights(db: ConfigDb, found: ClassesFound, bound: list[Held]) -> None:
    """The weight of each class's scheduler. Only the control class is strict."""
    table, users = "SCHEDULER", {name: list[int]() for name in db.entries("SCHEDULER")}
    kinds = {name: db.text(table, name, "type") for name in users}
    for held in bound:
        name = db.name(table, held.value)
        mine = [n for n in held.classes if n in found.used and db.of_class(bound, n) is held]
        if not name:
            db.leave(held.trails, f"{table} has no such entry")
        elif not mine:
            db.leave(held.trails, _unused(db, held, bound, found))
        elif mine == [found.control]:
            db.leave(held.trails, f"class {found.control} is the control class: it is served before all others")
        elif kinds[name] == "STRICT":
            db.leave(held.trails, f"is STRICT, but only the control class, {found.control}, is served before others")
        else:
            users[name] += [n for n in mine if n != found.control]
            db.read(held.trails, [f"queues.weights.{n}" for n in mine if n != found.control], f"by {table}")
    for name, numbers in users.items():
        if kinds[name] not in (None, "DWRR", "WRR", "STRICT"):
            db.wrong((table, name, "type"), "is not DWRR, WRR or STRICT")
        weight = db.number(table, name, "weight", 1, 100)
        paths = [f"queues.weights.{n}" for n in numbers]
        if not numbers:
            db.leave([(table, name)], "no weighted class has it")
            continue
        if kinds[name] is not None:
            db.read([(table, name, "type")], paths, "deficit round robin")
        if weight is not None:
            db.apply([(table, name, "weight")], dict.fromkeys(paths, weight), "packets per turn")


def _unused(db: ConfigDb, held: Held, bound: list[Held], found: ClassesFound) -> str:
    for number in held.classes:
        if number in found.used and (other := db.of_class(bound, number)):
            return other.instead
    if not held.classes:
        return "the entry names no class, as Ethernet0|3-4 does"
    return f"the fabric has no class {', '.join(map(str, held.classes))}: no DSCP belongs to it"


def _marking(db: ConfigDb, found: ClassesFound, bound: list[Held]) -> None:
    """The curve of the lowest lossless class is that of all classes; others get their own."""
    names = [*db.entries("WRED_PROFILE")]
    users: dict[str, list[int]] = {}
    for held in bound:
        name = db.name("WRED_PROFILE", held.value)
        mine = [n for n in held.classes if n in found.used and n != found.control and db.of_class(bound, n) is held]
        if not name:
            db.leave(held.trails, "WRED_PROFILE has no such entry")
        elif not mine:
            only_control = found.control in held.classes and "the control class is not marked"
            db.leave(held.trails, only_control or _unused(db, held, bound, found))
        else:
            users.setdefault(name, []).extend(mine)
            db.read(held.trails, ["queues.ecn"], "by WRED_PROFILE")
    if not bound and len(names) == 1:
        users[names[0]] = [*found.lossless] or [found.best_effort]
    first = min((n for numbers in users.values() for n in numbers if n in found.lossless), default=None)
    for name in names:
        if name in users:
            _profile(db, name, sorted(users[name]), as_all=first in users[name], switches=first in (None, *users[name]))
        else:
            db.leave([("WRED_PROFILE", name)], "no queue of a class in use has it")


def _profile(db: ConfigDb, name: str, numbers: list[int], *, as_all: bool, switches: bool) -> None:
    """One profile. Packets are green where no policer colours them, and Heddle has none.

    as_all: its curve is that of all classes. switches: it says whether ECN is on.
    """
    table = "WRED_PROFILE"
    ecn = db.text(table, name, "ecn")
    if ecn is not None and ecn not in _ECN_WORDS:
        db.wrong((table, name, "ecn"), "is not a mode of ECN", f"one of {', '.join(_ECN_WORDS)}")
    marks = ecn in _MARKED_GREEN
    paths = ["queues.ecn"] if as_all else [f"queues.ecn.classes.{n}" for n in numbers]
    if ecn is not None and (marks or switches):
        settings: dict[str, Any] = {"queues.ecn.enabled": marks} if switches else {}
        why = "packets are green: Heddle has no policer"
        if marks and not any(key in db.entries(table)[name] for key in _CURVE["pmax"]):
            settings |= {f"{path}.pmax": 1 for path in paths}
            why += ". The probability is 100 % where the file has none"
        if settings:
            db.apply([(table, name, "ecn")], settings, why)
        else:
            db.read([(table, name, "ecn")], paths, "as below", why)
    elif ecn is not None:
        db.leave([(table, name, "ecn")], "ECN is on or off for all classes, and a lossless class has another profile")
    _curve(db, name, paths, marks=marks)
    others = [key for key in db.entries(table)[name] if "yellow" in key or "red_" in key.replace("wred_", "")]
    if others:
        db.leave_keys((table, name), others, "packets are green: Heddle has no policer")
    if db.text(table, name, "wred_green_enable") is not None:
        db.leave([(table, name, "wred_green_enable")], "marking is by ecn; Heddle has no WRED drops")


def _curve(db: ConfigDb, name: str, paths: list[str], *, marks: bool) -> None:
    table = "WRED_PROFILE"
    for key, (own, shared) in _CURVE.items():
        present = [each for each in (own, shared) if db.text(table, name, each) is not None]
        limits = {"high": 100} if key == "pmax" else {}
        values = {each: db.number(table, name, each, **limits) for each in present}
        for each in present:
            if not marks:
                db.leave([(table, name, each)], "the profile marks no green packets, and Heddle has no WRED drops")
            elif each != present[0]:
                db.leave([(table, name, each)], f"{own} has priority, and Heddle has no WRED drops")
            elif (number := values[each]) is not None:
                value: Any = number / 100 if key == "pmax" else number
                why = "" if each == own else "the WRED value: there is no ecn_green value"
                db.apply([(table, name, each)], {f"{path}.{key}": value for path in paths}, why)
