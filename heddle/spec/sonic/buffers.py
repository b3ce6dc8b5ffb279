"""Buffers, thresholds and the PFC watchdog of a config_db.json. Bytes are kept; times are multiplied by k.

SONiC's `xoff` of a profile is its headroom. The threshold from which a port is paused is `static_th`, or follows from
`dynamic_th`: alpha = 2^dynamic_th times the free bytes of the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.base.units import format_duration, format_rate, format_size, shown
from heddle.spec.queuespec import BUFFERS
from heddle.spec.sonic.configdb import ConfigDb, Held

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec
    from heddle.spec.sonic.classes import ClassesFound

_MS: Final = 10**6
_LONGEST_NS: Final = 10**11  # of queues.pfc.watchdog.detect and .restore
_SHORTEST_NS: Final = 10**7
_ALPHA: Final = 64  # the most of queues.alpha
_PROFILE: Final = "BUFFER_PROFILE"
_POOL: Final = "BUFFER_POOL"
_ONE_ALPHA: Final = "Heddle has one alpha and one reserve for all classes"


def read_buffers(db: ConfigDb, onto: FabricSpec, found: ClassesFound) -> None:
    """Apply the profile of the lossless priority groups and its pool; the lossy queues' where there is none."""
    groups, queues = db.held("BUFFER_PG", "profile"), db.held("BUFFER_QUEUE", "profile")
    chosen, lossless = _chosen(db, groups, queues, found)
    for held in (*groups, *queues):
        name = db.name(_PROFILE, held.value)
        if name and name == chosen and (held in groups) == lossless:
            db.read(held.trails, ["queues.pfc" if lossless else "queues.alpha"], f"by {_PROFILE}")
        elif not name:
            db.leave(held.trails, "no profile" if held.value == "NULL" else f"{_PROFILE} has no such entry")
        elif held in groups:
            db.leave(held.trails, "the fabric has one profile, the one of most ports with a lossless class")
        else:
            db.leave(held.trails, _ONE_ALPHA)
    for name in db.entries(_PROFILE):
        if name != chosen:
            db.leave([(_PROFILE, name)], _ONE_ALPHA if chosen else "no lossless class has it")
    pool = db.name(_POOL, db.text(_PROFILE, chosen, "pool") or "") if lossless else _largest(db)
    for name in db.entries(_POOL):
        if name != pool:
            db.leave([(_POOL, name)], "Heddle's switch has one pool")
    size = _pool(db, pool) if pool else None
    if chosen:
        _profile(db, chosen, pool, size, onto, lossless=lossless)


def _chosen(db: ConfigDb, groups: list[Held], queues: list[Held], found: ClassesFound) -> tuple[str, bool]:
    """The profile's name, empty if there is none; and whether it is one of lossless priority groups."""
    names = [*db.entries(_PROFILE)]
    of_lossless = [each for each in groups if {*each.classes} & {*found.lossless} and db.name(_PROFILE, each.value)]
    if of_lossless:
        return db.name(_PROFILE, of_lossless[0].value), True
    with_headroom = [name for name in names if db.number(_PROFILE, name, "xoff")]
    if found.lossless and len(with_headroom) == 1 and not groups:
        return with_headroom[0], True
    lossy = [each for each in queues if found.best_effort in each.classes]
    return (db.name(_PROFILE, lossy[0].value), False) if lossy else ("", False)


def _largest(db: ConfigDb) -> str:
    """The pool that stands for the switch's buffer if no lossless class names one: the largest, of ingress first."""
    sizes = {name: db.number(_POOL, name, "size") for name in db.entries(_POOL)}
    ranked = [(db.text(_POOL, name, "type") != "egress", size, name) for name, size in sizes.items() if size]
    return max(ranked)[2] if ranked else ""


def _pool(db: ConfigDb, name: str) -> int | None:
    """The size of a pool, which is the buffer of every switch; None if it is not given or too large."""
    size = db.number(_POOL, name, "size")
    if size is not None and size > BUFFERS[1]:
        why = f"is above {format_size(BUFFERS[1])}, the most of a switch; use --set queues.buffer=SIZE"
        db.leave([(_POOL, name, "size")], why)
        size = None
    elif size is not None:
        db.apply([(_POOL, name, "size")], {"queues.buffer": size}, "the buffer of each switch, whatever its ports")
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


def _profile(db: ConfigDb, name: str, pool: str, size: int | None, onto: FabricSpec, *, lossless: bool) -> None:
    """Alpha and reserve; thresholds of pauses too, if it is the profile of lossless classes. size: the pool's."""

    def trail(key: str) -> tuple[str, str, str]:
        return _PROFILE, name, key

    used = db.text(_PROFILE, name, "pool")
    if used is not None and pool and db.name(_POOL, used) == pool:
        db.read([trail("pool")], ["queues.buffer"], f"by {_POOL}")
    elif used is not None:
        db.leave([trail("pool")], f"{_POOL} has no such entry, or another one is the switch's buffer")
    reserve = db.number(_PROFILE, name, "size", 0, 2**31)
    if reserve is not None:
        db.apply([trail("size")], {"queues.reserve": reserve}, "of each class of each port")
    xoff, static = onto.queues.pfc.xoff, db.number(_PROFILE, name, "static_th")
    if static is not None and lossless:
        xoff = static
        db.apply([trail("static_th")], {"queues.pfc.xoff": xoff}, "the occupancy from which a port is paused")
    elif static is not None:
        db.leave([trail("static_th")], "a lossy class has a dynamic threshold")
    power = db.number(_PROFILE, name, "dynamic_th", -8, 7)
    if power is not None and 2**power > _ALPHA:
        db.leave([trail("dynamic_th")], f"alpha would be {2**power}, and {_ALPHA} is the most")
    elif power is not None:
        settings, why = {"queues.alpha": 2.0**power}, "alpha = 2^dynamic_th"
        if lossless and static is None:
            if size:
                settings["queues.pfc.xoff"] = xoff = int(size * 2**power / (1 + 2**power))
                why += "; Xoff is the most that one port can hold: alpha / (1 + alpha) of the pool"
            else:
                why += f"; Xoff stays at most {shown(xoff)}: the size of the pool is not known"
        db.apply([trail("dynamic_th")], settings, why)
    if lossless:
        _headroom(db, name, onto.link.host)
        _resume(db, name, xoff)
        if "queues.pfc.xon" not in db.settings and "queues.pfc.xoff" in db.settings:
            before = onto.queues.pfc
            xon = xoff * before.xon // before.xoff
            db.apply(
                [db.settings["queues.pfc.xoff"][1]], {"queues.pfc.xon": xon}, "in proportion: the profile has none"
            )


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


def read_watchdog(db: ConfigDb, k: int) -> None:
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
        lasts = ms * _MS * k
        text = f"{ms} ms x k = {k:,}"
        if not _SHORTEST_NS <= lasts <= _LONGEST_NS:
            why = f"{text} is {lasts / 10**9:,.0f} s, and the longest is {_LONGEST_NS // 10**9} s"
            db.leave(held.trails, f"{why}; use --set queues.pfc.watchdog.{path}=TIME")
        else:
            db.apply(held.trails, {f"queues.pfc.watchdog.{path}": format_duration(lasts)}, text)
    for name in db.entries(table):
        if db.text(table, name, "POLL_INTERVAL") is not None:
            db.leave([(table, name, "POLL_INTERVAL")], "each pause starts a timer of its own; nothing is polled")
