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
_ALPHA: Final = 64  # the most of queues.alpha
_PROFILE: Final = "BUFFER_PROFILE"
_POOL: Final = "BUFFER_POOL"
_DEFAULT: Final = "DEFAULT_LOSSLESS_BUFFER_PARAMETER"  # of the dynamic model, in which the switch computes profiles
_DEFAULT_TH: Final = "default_dynamic_th"
_NULL: Final = "NULL"  # the profile of a group whose profile the switch computes
_COMPUTED: Final = "the switch computes it, and it is not in the file"


def read_buffers(db: ConfigDb, onto: FabricSpec, found: ClassesFound) -> None:
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
        lasts, text = ms * _MS * k, f"{ms} ms x k = {k:,}"
        if lasts > _LONGEST_NS:
            longest = f"the longest is {_LONGEST_NS // 10**9} s, {lasts / _LONGEST_NS:.3g} times sooner"
            text, lasts = f"{text} is {lasts / 10**9:,.0f} s; {longest}", _LONGEST_NS
        db.apply(held.trails, {f"queues.pfc.watchdog.{path}": format_duration(lasts)}, text)
    for name in db.entries(table):
        if db.text(table, name, "POLL_INTERVAL") is not None:
            db.leave([(table, name, "POLL_INTERVAL")], "each pause starts a timer of its own; nothing is polled")
