"""The keys of a cluster file: a fabric, jobs that arrive, and failures. Strict: an unknown key is an error with a line.

In:  YAML (spec/yamlfile.py). Out: ClusterSpec, frozen. Times are seconds of the hardware. clusterfile.py checks what
needs the fabric.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from heddle.cli.helptexts import EXAMPLE_PORT, EXAMPLE_SWITCH
from heddle.spec.keys import Strict, at, reading, wrong

MOST_JOBS: Final = 1_000_000
_LARGEST: Final = 1 << 20
_MOST_S: Final = 10 * 366 * 86400
_NUMBER: Final = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_UNITS: Final = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(rf"({_NUMBER}) ?([a-z]*)")
_KINDS: Final = {"exponential": 1, "uniform": 2}


def seconds(text: str) -> float:
    """Seconds of a time as `400s`, `15min`, `24h` or a number. ValueError: `reason; hint`."""
    found = _TIME.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError("is not a time; write seconds, or a time as 200ms, 15min, 24h or 30d")
    if (value := float(found[1]) * _UNITS[found[2]]) > _MOST_S:
        raise ValueError("is longer than 10 years; write a shorter time")
    return value


def lasting(text: str) -> float:
    """Seconds above 0. ValueError: `reason; hint`."""
    if not (found := seconds(text)):
        raise ValueError("is 0; write a time above 0")
    return found


def whole(text: str) -> int:
    """A positive whole number. ValueError: `reason; hint`."""
    if not re.fullmatch("[0-9]{1,12}", text.strip()) or not int(text):
        raise ValueError("is not a whole number of 1 or more; write it as 1000")
    return int(text)


@dataclass(frozen=True, slots=True)
class Draw:
    """A random number: one of some values, exponential with a mean, or uniform between two values, both included.

    whole: draw whole numbers where it is uniform.
    """

    kind: str
    values: tuple[float, ...]
    whole: bool = False

    def one(self, random: np.random.Generator) -> float:
        """Draw."""
        if self.kind == "exponential":
            return float(random.exponential(self.values[0]))
        if self.kind == "uniform":
            low, high = self.values
            return float(random.integers(int(low), int(high) + 1) if self.whole else random.uniform(low, high))
        return self.values[int(random.integers(len(self.values)))]


def _draw(reader: Callable[[str], float], value: Any) -> Any:
    """`400s`, `exponential 400s`, `uniform 10s 60s`, or a list of values."""
    if isinstance(value, list):
        try:
            found = tuple(reader(str(each)) for each in value)
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            raise at("", f"has a value that {why}", hint) from None
        if not found:
            raise at("", "is empty", "write one value or more")
        return Draw("one of", found)
    if value is None or isinstance(value, dict | bool):
        raise wrong("is not a number, nor a list of them", "write a value, a list, or `exponential` and a mean")
    kind, *rest = str(value).split()
    if kind not in _KINDS:
        with reading():
            return Draw("one of", (reader(str(value)),))
    if len(rest) != _KINDS[kind]:
        raise wrong(f"needs {_KINDS[kind]} after {kind}", "write exponential MEAN, or uniform LEAST MOST")
    with reading():
        drawn = Draw(kind, tuple(map(reader, rest)), reader is whole)
    if kind == "uniform" and drawn.values[0] > drawn.values[1]:
        raise wrong("has the larger value first", "exchange them")
    return drawn


def _time(value: Any) -> Any:
    if value is None or isinstance(value, dict | list | bool):
        raise wrong("is not a time", "write seconds, or a time as 200ms, 15min, 24h or 30d")
    with reading():
        return seconds(str(value))


def _positive(value: Any) -> Any:
    if not (found := _time(value)):
        raise wrong("is 0", "write a time above 0, or remove the key")
    return found


def _short(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


Seconds = Annotated[float, PlainValidator(_time)]
Positive = Annotated[float, PlainValidator(_positive)]
Times = Annotated[Draw, PlainValidator(partial(_draw, seconds))]
Lasting = Annotated[Draw, PlainValidator(partial(_draw, lasting))]
Wholes = Annotated[Draw, PlainValidator(partial(_draw, whole))]
Count = Annotated[int, Field(ge=1, le=10**12)]


class ClusterFabric(Strict):
    """A preset or a fabric file, with changed keys. A relative path is relative to the cluster file."""

    use: str = Field(examples=["dc"])
    set: dict[str, Any] = Field(default={})


class _Work(Strict):
    """What all jobs of a kind do. compute: of one iteration. checkpoint: a job that ends by a failure begins there.

    Other keys are those of a workload's job: collective, size, qps.
    """

    model_config = ConfigDict(extra="allow")
    compute: Seconds | None = None
    checkpoint: Count | None = None

    @property
    def sends(self) -> dict[str, Any]:
        """The keys of a workload."""
        return dict(self.model_extra or {})


class ClusterJob(_Work):
    """One job of a list. lasts: instead of a number of iterations, the time that it would take alone."""

    example: ClassVar[dict[str, Any]] = {"name": "a", "ranks": 2, "iterations": 1}
    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,23}$", examples=["a"])
    ranks: int = Field(ge=2, le=_LARGEST, examples=[64])
    arrives: Seconds = 0.0
    iterations: Count | None = None
    lasts: Positive | None = None

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        _check_end(self)
        return self


class Generated(_Work):
    """Jobs that are drawn. every: the time between two arrivals."""

    count: int = Field(ge=1, le=MOST_JOBS, examples=[200])
    every: Times = Field(examples=["exponential 400s"])
    ranks: Wholes = Field(examples=["[64, 128]"])
    iterations: Wholes | None = None
    lasts: Lasting | None = None
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if min(self.ranks.values) < 2 or self.ranks.kind == "exponential":
            raise at(".ranks", "can give fewer than 2 ranks", "write numbers from 2 on, or uniform LEAST MOST")
        _check_end(self)
        return self


class ClusterTrace(_Work):
    """A CSV file with the columns arrival_s, ranks, and iterations or duration_s, in order of arrival."""

    file: str = Field(examples=["jobs.csv"])


def _check_end(job: ClusterJob | Generated) -> None:
    given = [key for key in ("iterations", "lasts") if getattr(job, key) is not None]
    if len(given) != 1:
        why = "has iterations and lasts, which exclude each other" if given else "has neither iterations nor lasts"
        raise at("", why, "write iterations: 1000, or lasts: 2h", given=(".iterations", ".lasts"))


class ClusterFailure(Strict):
    """A failure. down: a node, or a port as rtsw1:eth3; drain: a switch. lasts: without it, until the end."""

    example: ClassVar[dict[str, Any]] = {"at": 0, "down": "host1"}
    at_: Seconds = Field(alias="at", examples=["1h"])
    lasts: Positive | None = Field(default=None, alias="for")
    down: str = ""
    drain: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.down) == bool(self.drain):
            why = "has down and drain, which exclude each other" if self.down else "has neither down nor drain"
            raise at("", why, f"write down: host3, down: {EXAMPLE_PORT}, or drain: {EXAMPLE_SWITCH}")
        return self


class RandomFailures(Strict):
    """Mean times between failures of each link between switches, each NIC, host and switch; exponential."""

    link: Positive | None = None
    nic: Positive | None = None
    host: Positive | None = None
    switch: Positive | None = None
    repair: Times = Field(examples=["30min"])
    seed: int = Field(default=0, ge=0)


class ClusterSpec(Strict):
    """A cluster file. workload: keys of all jobs, which those of a job replace. duration: else until all jobs end."""

    title: str = ""
    fabric: Annotated[ClusterFabric, _short("use")] = Field(examples=["dc"])
    placement: str = Field(default="packed", examples=["packed"])
    backfill: bool = False
    seed: int = Field(default=0, ge=0)
    duration: Positive | None = None
    workload: dict[str, Any] = Field(default={})
    compute: Seconds = 0.0
    checkpoint: Count | None = None
    jobs: list[ClusterJob] = Field(default=[])
    generate: Generated | None = None
    trace: Annotated[ClusterTrace, _short("file")] | None = None
    failures: list[ClusterFailure] = Field(default=[])
    mtbf: RandomFailures | None = None

    @model_validator(mode="after")
    def _has_jobs(self) -> Self:
        if not (self.jobs or self.generate or self.trace):
            hint = "add jobs: [{name: a, ranks: 2, ...}]"
            raise at("jobs", "is missing, and so are generate and trace", hint, given=("generate", "trace"))
        if self.mtbf and not any((self.mtbf.link, self.mtbf.nic, self.mtbf.host, self.mtbf.switch)):
            raise at("mtbf", "has no time of a link, nic, host or switch: nothing fails", "add link: 2000h")
        if self.mtbf and self.duration is None:
            raise at("duration", "is missing: failures of mtbf never end", "add duration: 24h")
        return self
