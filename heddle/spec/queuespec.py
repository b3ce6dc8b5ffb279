"""The key `queues` of a fabric file: classes, buffers, ECN and PFC, and which values are errors.

In:  plain data, as the rest of the file. Out: QueuesSpec, frozen; sizes in bytes, durations in nanoseconds.
Checks against the rest of the file are made on the built fabric: heddle/fabric/checks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from heddle.base.ethernet import CLASSES, DSCPS, MAX_QUANTA
from heddle.base.units import format_size, parse_size, round_down, shown
from heddle.spec.keys import Duration, Size, Strict, Takes, at, reading, wrong

BUFFERS: Final = (10_000, 2**29)  # the qdiscs take twice as much (disciplines.LEAF_LIMIT)
_HEADROOMS: Final = (0, 2**31)


def _size(bounds: tuple[int, int]) -> BeforeValidator:

    def read(value: Any) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        with reading(also=", or auto"):
            size = parse_size(value)
        if not bounds[0] <= size <= bounds[1]:
            side = "is below" if size < bounds[0] else "is above"
            raise wrong(f"{side} {bounds[size > bounds[1]]}", f"allowed: auto, or {bounds[0]} to {bounds[1]}")
        return size

    return BeforeValidator(read)


def _auto_or(bounds: tuple[int, int]) -> Takes:
    return Takes(f"`auto`, or a size from {shown(bounds[0])} to {format_size(bounds[1])}")


BufferSize = Annotated[int | Literal["auto"], _size(BUFFERS), _auto_or(BUFFERS)]
Headroom = Annotated[int | Literal["auto"], _size(_HEADROOMS), _auto_or(_HEADROOMS)]


def _quanta(value: Any) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong("is not a whole number", "write 1 to 65535, or auto")
    if not 1 <= value <= MAX_QUANTA:
        raise wrong("is below 1" if value < 1 else f"is above {MAX_QUANTA}", f"allowed: auto, or 1 to {MAX_QUANTA}")
    return value


Quanta = Annotated[int | Literal["auto"], BeforeValidator(_quanta), Takes(f"`auto`, or 1 to {MAX_QUANTA:,}")]


def _one_for_all(value: Any) -> Any:
    """One value sets the buffer of every switch."""
    if isinstance(value, dict | BufferSpec):
        return value
    read: Any = _size(BUFFERS).func
    return {"switch": read(value)}


def _words(value: Any) -> Any:
    """Numeric keys are text in YAML and JSON; in Python they may be numbers."""
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else value


_Keyed = BeforeValidator(_words)


class BufferSpec(Strict):
    """Bytes of one switch, shared by its ports; `host`: the most that may wait in a port of a host.

    Any other key is the word of a level (`rtsw`): its switches then have this size instead of `switch`. The shape
    defines the words, so they are checked on the built fabric.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, BufferSize]

    switch: BufferSize = "auto"
    host: Size = Field(default=1_000_000, ge=BUFFERS[0], le=2**31 - 1)

    @property
    def words(self) -> tuple[str, ...]:
        """Levels with their own size, as the file names them."""
        return tuple(self.__pydantic_extra__)

    def size(self, word: str) -> int | Literal["auto"]:
        """The size of a switch of a level."""
        return self.__pydantic_extra__.get(word, self.switch)


class CurveSpec(Strict):
    """The marking curve of one class; a missing value is the one of all classes."""

    kmin: Size | None = None
    kmax: Size | None = None
    pmax: float | None = Field(default=None, ge=0, le=1)


class EcnSpec(Strict):
    """Marking: none below kmin, up to pmax just below kmax, all from kmax on (bytes of one class of one port)."""

    enabled: bool = True
    kmin: Size = Field(default=40_000, ge=0, le=2**40)
    kmax: Size = Field(default=160_000, ge=0, le=2**40)
    pmax: float = Field(default=0.2, ge=0, le=1)
    at: Literal["enqueue", "dequeue"] = "enqueue"
    marker: Literal["bpf", "red"] = "bpf"
    classes: Annotated[dict[str, CurveSpec], _Keyed] = Field(default={})

    def curve(self, number: int) -> tuple[int, int, float]:
        """kmin, kmax and pmax of one class."""
        own = self.classes.get(str(number), CurveSpec())
        return (
            self.kmin if own.kmin is None else own.kmin,
            self.kmax if own.kmax is None else own.kmax,
            self.pmax if own.pmax is None else own.pmax,
        )

    @model_validator(mode="after")
    def _curves_rise(self) -> EcnSpec:
        if self.kmin > self.kmax:
            raise _above("queues.ecn.kmin", self.kmin, "kmax", self.kmax, _MARKS, given=["queues.ecn.kmax"])
        for name in self.classes:
            if not name.isdecimal():
                continue  # QueuesSpec reports the error
            path, (kmin, kmax, _) = f"queues.ecn.classes.{name}", self.curve(int(name))
            if kmin > kmax:
                key, given = ("kmin", "kmax") if self.classes[name].kmin is not None else ("kmax", "kmin")
                if key == "kmin":
                    raise _above(f"{path}.kmin", kmin, "kmax", kmax, _MARKS, given=[f"{path}.kmax", "queues.ecn.kmax"])
                why = f"is below kmin, {shown(kmin)}"
                raise at(f"{path}.{key}", why, f"{_MARKS}; try {shown(kmin)}", given=[f"queues.ecn.{given}"])
        if self.marker == "red" and self.at == "dequeue":
            why = "has no effect with marker: red, which marks at enqueue"
            raise at("queues.ecn.at", why, "remove it, or set marker: bpf", given=["queues.ecn.marker"])
        return self


class WatchdogSpec(Strict):
    """The PFC watchdog of switches: a class that is paused and does not move for `detect` is forwarded, or dropped."""

    enabled: bool = True
    detect: Duration = Field(default=10**9, ge=10**7, le=10**11)
    restore: Duration = Field(default=10**9, ge=10**7, le=10**11)
    action: Literal["drop", "forward"] = "drop"


class PfcSpec(Strict):
    """When a switch asks the peer of a link to pause a lossless class, in bytes of an ingress port.

    headroom `auto`: rate x reaction + 2 frames. quanta `auto`: a quarter of the watchdog's `detect`. reserve: bytes
    guaranteed to each lossless class of each port; `auto`: `queues.reserve`.
    """

    enabled: bool = True
    xoff: Size = Field(default=60_000, ge=1, le=2**40)
    xon: Size = Field(default=40_000, ge=0, le=2**40)
    quanta: Quanta = "auto"
    reaction: Duration = Field(default=5 * 10**7, ge=10**4, le=10**10)
    headroom: Headroom = "auto"
    reserve: Headroom = "auto"
    watchdog: WatchdogSpec = WatchdogSpec()

    @model_validator(mode="after")
    def _thresholds_fall(self) -> PfcSpec:
        if self.xon >= self.xoff:
            why = f"is not below xoff, {shown(self.xoff)}"
            hint = f"a class is paused at xoff and resumes at xon; try {round_down(self.xoff * 2 // 3)}"
            raise at("queues.pfc.xon", why, hint, given=["queues.pfc.xoff"])
        return self


_MARKS: Final = "marking starts at kmin and is certain from kmax on"


def _above(path: str, value: int, other: str, limit: int, what: str, *, given: list[str]) -> PydanticCustomError:
    return at(
        path, f"is above {other}, {shown(limit)}", f"{what}; try {round_down(min(value, limit) // 4)}", given=given
    )


class QueuesSpec(Strict):
    """The queues of every port: classes, the buffer of its switch, marking and pausing."""

    lossless: list[int] = Field(default=[3])
    control: int = Field(default=6, ge=0, le=CLASSES - 1)
    best_effort: int = Field(default=0, ge=0, le=CLASSES - 1)
    # Shares of a port, in whole packets per turn. A class that only this key names is an additional lossy class.
    weights: Annotated[dict[str, int], _Keyed] = Field(default={})
    dscp: Annotated[dict[str, int], _Keyed] = Field(default={})
    ecn: EcnSpec = EcnSpec()
    pfc: PfcSpec = PfcSpec()
    buffer: Annotated[BufferSpec, BeforeValidator(_one_for_all)] = BufferSpec()
    reserve: Size = Field(default=10_000, ge=0, le=2**31)  # guaranteed bytes of each class of each port
    alpha: float = Field(default=1.0, gt=0, le=64)
    scheduler: Literal["auto", "htb", "ets"] = "auto"
    burst: int = Field(default=2, ge=1, le=16)  # packets that a port with a backlog may send at once

    @property
    def numbers(self) -> tuple[int, ...]:
        """Classes in use, ascending."""
        named = {self.control, self.best_effort, *self.lossless, *(int(word) for word in self.weights)}
        return tuple(sorted(named))

    @model_validator(mode="after")
    def _classes_exist(self) -> QueuesSpec:
        for place, number in enumerate(self.lossless):
            path = f"queues.lossless.{place}"
            if not 0 <= number < CLASSES:
                raise at("queues.lossless", f"has {number}, {_NO_CLASS}", _EIGHT)
            if number in self.lossless[:place]:
                raise at("queues.lossless", f"has {number} twice", "keep one of the two")
            for key, why in (("control", "is served before all others"), ("best_effort", "may be dropped")):
                if number == getattr(self, key):
                    hint = f"set one of the two to another of 0 to {CLASSES - 1}"
                    given = [f"queues.{key}", path]
                    raise at("queues.lossless", f"has {number}, the class {key}, which {why}", hint, given=given)
        if self.best_effort == self.control:
            hint = "try 0, or another number for queues.control"
            raise at("queues.best_effort", "is also the class of queues.control", hint, given=["queues.control"])
        for path, words in (("queues.weights", self.weights), ("queues.ecn.classes", self.ecn.classes)):
            _classes_of(path, words)
        for word, weight in self.weights.items():
            path = f"queues.weights.{word}"
            if int(word) == self.control:
                why = "is for the control class, which has no weight: it is served before all others"
                raise at(path, why, "remove it", given=["queues.control"])
            if not 1 <= weight <= _HEAVIEST:
                why = "is below 1" if weight < 1 else f"is above {_HEAVIEST}"
                raise at(path, why, f"allowed: 1 to {_HEAVIEST}, in packets per turn")
        return self

    @model_validator(mode="after")
    def _names_are_of_classes(self) -> QueuesSpec:
        given = ["queues.lossless", "queues.control", "queues.best_effort", "queues.weights"]
        some = "classes in use: " + ", ".join(str(number) for number in self.numbers)
        for word in self.ecn.classes:
            if int(word) not in self.numbers or int(word) == self.control:
                why = "is not in use" if int(word) != self.control else "is the control class, which is not marked"
                raise at(f"queues.ecn.classes.{word}", why, some, given=given)
        for word, number in self.dscp.items():
            path = f"queues.dscp.{word}"
            if not (word.isdecimal() and len(word) <= 2 and int(word) < DSCPS):
                raise at(path, "has a key that is not a DSCP", f"DSCPs are 0 to {DSCPS - 1}")
            if number not in self.numbers:
                hint = f"{some}; add class {number} with queues.weights.{number}" if 0 <= number < CLASSES else some
                raise at(path, "is not a class in use", hint, given=given)
        return self

    @model_validator(mode="after")
    def _nothing_waits_under_ets(self) -> QueuesSpec:
        if self.scheduler == "ets" and self.lossless and self.pfc.enabled:
            which = "class " + ", ".join(str(number) for number in self.lossless)
            why = f"does not work with {which}, which PFC may pause: sch_ets then serves no weighted class at all"
            hint = "remove it: auto selects htb here, and ets for queues.lossless: []; or set queues.pfc.enabled: false"
            raise at("queues.scheduler", why, hint, given=["queues.lossless", "queues.pfc.enabled"])
        return self


_HEAVIEST: Final = 100
_NO_CLASS: Final = "which is not a class"
_EIGHT: Final = f"classes are 0 to {CLASSES - 1}, as in a PFC frame"


def _classes_of(path: str, words: Iterable[str]) -> None:
    for word in words:
        if not (word.isdecimal() and len(word) == 1 and int(word) < CLASSES):
            raise at(f"{path}.{word}", "has a key that is not a class", _EIGHT)
