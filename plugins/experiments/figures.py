"""The figures of one run that expressions can use: of a live run, of a prediction, of a measure.

In:  the results of a run with the verdict on its paths; a Prediction; or what a measure returned.
Out: `value` of a name with keywords. UnknownValueError when the run does not have it, with the reason.
Units: GB/s emulated, seconds, packets, bytes; shares of links in percent of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Protocol

from heddle.base.tables import flat, many
from heddle.base.units import format_size, parse_size
from heddle.runs.parts import PARTS
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RunRecord, reasons
from heddle.runs.runtable import stats_of
from heddle_plugins.experiments.expressions import UnknownValueError, divided

if TYPE_CHECKING:
    from heddle.offline.result import Prediction
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import SizeRow

Keys = Mapping[str, str]


class RunFigures(Protocol):
    """What a run gives. proven: None where it has no paths."""

    @property
    def ids(self) -> Sequence[str]:
        """IDs of its stored runs."""

    @property
    def proven(self) -> bool | None:
        """Whether its paths are proven."""

    @property
    def doubt(self) -> str:
        """Why no verdict rests on them: the text of an Unfit (runs/runrecord.py); empty if one may."""

    def value(self, name: str, keys: Keys) -> float:
        """A figure. UnknownValueError with the reason when the run does not have it."""

    def to_json(self) -> dict[str, float]:
        """Every figure that needs no keyword."""


def _iterations(name: str) -> Callable[[SizeRow], float | None]:
    def of(row: SizeRow) -> float | None:
        found = stats_of(row.first.slowest_us)
        return None if found is None else float(getattr(found, name)) * (1 if name == "cv_pct" else 1e-6)

    return of


# Of one size. Times are those of an iteration, in seconds; percentiles and cv are of the slowest rank of each.
OF_SIZES: Final[Mapping[str, Callable[[SizeRow], float | None]]] = {
    "busbw": lambda row: row.busbw,
    "algbw": lambda row: row.algbw,
    "time": lambda row: row.time_us / 1e6,
    "p50": _iterations("p50_us"),
    "p95": _iterations("p95_us"),
    "p99": _iterations("p99_us"),
    "slowest": _iterations("max_us"),
    "cv": _iterations("cv_pct"),
}
# Of a whole run. docs/site/meanings.yml says what each is.
OF_RUNS: Final = (
    "completion", "drops", "lost", "marks", "pauses", "paused_ports", "paused_hosts", "paused_ms", "storms", "deepest",
    "packets", "bytes", "qps", "qps_spread", "unproven", "wrong", "icrc_errors", "limited", "last_loss", "settled",
    "mmr", "mmr_flows",
)  # fmt: skip


def _queues(name: str) -> Callable[[RunRecord], float | None]:
    return lambda job: None if (used := job.part(QueueUse)) is None else getattr(used, name)


def _proof(name: str) -> Callable[[RunRecord], float | None]:
    return lambda job: None if job.proof is None else getattr(job.proof, name)


def _effects(name: str) -> Callable[[RunRecord], float | None]:
    def of(job: RunRecord) -> float | None:
        faults = () if (found := job.part(FaultEffects)) is None else found.faults
        return max((getattr(each, name) or 0.0 for each in faults), default=None)

    return of


_OF_FIRST: Final[Mapping[str, Callable[[RunRecord], float | None]]] = {
    "completion": lambda job: None if (ideal := job.part(IdealUse)) is None else ideal.ratio,
    "drops": _queues("dropped"),
    **{
        name: _queues(name)
        for name in ("marks", "pauses", "paused_ports", "paused_hosts", "paused_ms", "storms", "deepest")
    },
    "lost": lambda job: None if job.lost is None else sum(job.lost.values()),
    "last_loss": _effects("last_loss_s"),
    "settled": _effects("settled_s"),
    "mmr": _proof("mmr_bytes"),
    "mmr_flows": _proof("mmr_flows"),
    "qps": _proof("qps"),
    "qps_spread": _proof("spread"),
    "unproven": _proof("unproven"),
}
# Of links: by default the uplinks that an MMR counts; `port` and `direction` choose others.
OF_LINKS: Final = (
    "links", "links_used", "links_used_most", "links_used_least", "link_max", "link_min", "link_mean", "link_spread",
    "link_jfi",
)  # fmt: skip
OFFLINE: Final = (
    "completion", "time", "mmr", "links", "links_used", "link_max", "link_min", "link_mean", "link_spread", "link_jfi",
    "flows", "unreachable", "moved", "moved_resilient", "collisions",
)  # fmt: skip


def counters() -> list[str]:
    """The counters of all transports, and of congestion control and admission."""
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS
    from heddle.endpoints.congestion.controlled import CNP_COLUMNS
    from heddle.endpoints.transports import TRANSPORTS

    every = [column for kind in TRANSPORTS.values() for column in getattr(kind, "columns", ())]
    return [each.key for each in (*every, *CNP_COLUMNS, *ADMISSION_COLUMNS)]


@dataclass(frozen=True, slots=True)
class LinkShare:
    """A link that counts. percent: its use; used: whether it carried flows."""

    port: str
    direction: str
    percent: float
    used: bool
    uplink: bool


def of_links(name: str, links: Sequence[LinkShare], keys: Keys) -> float:
    """One of OF_LINKS over the links that the keywords choose. UnknownValueError when they choose none."""
    if "port" in keys or "direction" in keys:
        port, way = keys.get("port", "*"), keys.get("direction", "*")
        links = [each for each in links if fnmatchcase(each.port, port) and fnmatchcase(each.direction, way)]
    else:
        links = [each for each in links if each.uplink]
    if not links:
        raise UnknownValueError("no link matches")
    shares = [each.percent for each in links]
    if name in ("link_max", "link_min", "link_mean", "link_spread"):
        low, high = min(shares), max(shares)
        return {"link_max": high, "link_min": low, "link_spread": high - low}.get(name, sum(shares) / len(shares))
    if name == "link_jfi":
        return divided(sum(shares) ** 2, len(shares) * sum(each * each for each in shares))
    used = [each for each in links if each.used]
    if name in ("links", "links_used"):
        return float(len(links if name == "links" else used))
    by_switch: dict[str, int] = {}
    for each in used:
        switch = each.port.partition(":")[0]
        by_switch[switch] = by_switch.get(switch, 0) + 1
    if not by_switch:
        raise UnknownValueError("no link was used")
    return float(max(by_switch.values()) if name == "links_used_most" else min(by_switch.values()))


@dataclass
class LiveFigures:
    """Of a live run: the result of each job, and the verdict on the paths of all. ids: of the stored runs."""

    jobs: Sequence[RunRecord]
    paths: PathsResult | None
    ids: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = [job.id for job in self.jobs]
        self._links = [*self._shares()]

    @property
    def proven(self) -> bool:
        """Whether three sources agree on the path of every flow."""
        return self.paths is not None and self.paths.agree

    @property
    def doubt(self) -> str:
        """Wrong data before a busy machine before unproven paths, which `proven` tells as well; names a path."""
        found = {each.kind: each.why for job in self.jobs for each in reasons(job)}
        whys = [] if self.paths is None else [each.why for each in self.paths.flows if each.why]
        if whys:
            found["unproven"] = f"{many(len(whys), 'path')} not proven: {whys[0]}"
        return found.get("wrong data") or found.get("unreliable") or found.get("unproven", "")

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the run, of one of its jobs, or of one of its sizes."""
        if name in OF_LINKS:
            return of_links(name, self._links, keys)
        jobs = [job for job in self.jobs if keys.get("job", job.job) == job.job]
        if not jobs:
            names = ", ".join(job.job for job in self.jobs)
            raise UnknownValueError(f"the run has no job {keys['job']}; jobs: {names or 'one without a name'}")
        if name in OF_SIZES:
            if len(jobs) > 1:
                raise UnknownValueError(f'several jobs have {name}; choose one: {name}(run, job="{jobs[0].job}")')
            found = OF_SIZES[name](_row(jobs[0], keys))
        elif "." in name:
            found = _of_part(jobs[0], name)
        else:
            found = self._whole(name, jobs)
        if found is None:
            raise UnknownValueError(f"the run has no {name}")
        return float(found)

    def to_json(self) -> dict[str, float]:
        """Every figure that the run has; those of sizes at the largest size, of the first job."""
        found, first = {}, self.jobs[0].job
        for name in dict.fromkeys([*OF_SIZES, *OF_RUNS, *OF_LINKS, *counters()]):
            with suppress(UnknownValueError):
                found[name] = self.value(name, {"job": first} if name in OF_SIZES else {})
        return found

    def _whole(self, name: str, jobs: Sequence[RunRecord]) -> float | None:
        """Of the whole run: queues and paths are of all jobs, counters of the chosen ones."""
        if name in _OF_FIRST:
            found = _OF_FIRST[name](jobs[0])
            return None if found is None else float(found)
        if name in ("packets", "bytes"):
            return float(sum(getattr(flow.sent, name) for job in jobs for flow in job.flows))
        if name in ("wrong", "icrc_errors", "limited"):
            counts = [getattr(job, name) for job in jobs]
            return None if None in counts else float(sum(map(float, counts)))
        return sum(known) if (known := [job.counters[name] for job in jobs if name in job.counters]) else None

    def _shares(self) -> Iterator[LinkShare]:
        if self.paths is None:
            return
        counted = {link.port for link in self.paths.uplinks.links}
        for link in self.paths.links:
            if link.usable:
                percent = 100 * (link.utilisation or 0.0)
                yield LinkShare(link.port, link.direction, percent, link.flows > 0, link.port in counted)


def _row(job: RunRecord, keys: Keys) -> SizeRow:
    if "size" not in keys:
        return job.largest
    try:
        size = parse_size(keys["size"])
    except ValueError as error:
        raise UnknownValueError(f"size {keys['size']} {str(error).partition('; ')[0]}") from None
    found = next((row for row in job.rows if row.size == size), None)
    if found is None:
        sizes = ", ".join(format_size(row.size) for row in job.rows)
        raise UnknownValueError(f"the run has no size {keys['size']}; sizes: {sizes}")
    return found


def _of_part(job: RunRecord, name: str) -> float | None:
    """A number of a part of the run, by its key in the run's document: `admission.waits.p90_s`."""
    part, _, key = name.partition(".")
    if part not in PARTS:
        raise UnknownValueError(f"a run has no part {part}; parts: {', '.join(PARTS)}")
    if part not in job.parts:
        return None
    values = flat(job.parts[part].to_json())
    numbers = {path: each for path, each in values.items() if type(each) in (int, float)}  # not bool
    if key not in numbers:
        raise UnknownValueError(f"part {part} has no number {key}; it has: {', '.join(numbers)}")
    return float(numbers[key])


@dataclass
class OfflineFigures:
    """Of a prediction, in its first mode."""

    prediction: Prediction
    ids: Sequence[str] = ()
    proven: bool | None = None
    doubt: str = ""

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the prediction."""
        from heddle.fabric.model import Role

        prediction = self.prediction
        first, wires = prediction.modes[0], prediction.wires
        upward = {wires.direction_name(d) for d in wires.upward}
        if name in OF_LINKS and name in OFFLINE:
            full = prediction.roofline.seconds
            hosts = {node.name for node in wires.fabric.nodes if node.role is Role.HOST}
            shares = [
                LinkShare(
                    row["port"], row["direction"], 100 * row["seconds"] / full if full else 0.0, row["bytes"] > 0,
                    row["ranked"] and row["direction"] in upward,
                )
                for row in prediction.links() if row["port"].partition(":")[0] not in hosts
            ]  # fmt: skip
            return of_links(name, shares, keys)
        found: float | None = None
        if name == "mmr":
            way = keys.get("direction")
            chosen = [d for d in first.mmr if (fnmatchcase(wires.direction_name(d), way) if way else d in wires.upward)]
            found = max((value for d in chosen if (value := first.mmr[d]) is not None), default=None)
        elif name in ("moved", "moved_resilient"):
            key = "threshold" if name == "moved" else "resilient"
            found = moves.share(key) if (moves := prediction.moved) is not None and key in moves.moved else None
        elif name == "collisions":
            rows = [row for row in prediction.links() if row["ranked"] and row["direction"] in upward]
            found = None if first.flows is None else max((row["flows"] for row in rows), default=0)
        else:
            more = {"flows": prediction.flows, "unreachable": prediction.unreachable}
            found = {"completion": first.ratio, "time": first.seconds, **more}.get(name)
        if found is None:
            raise UnknownValueError(f"the prediction has no {name}")
        return float(found)

    def to_json(self) -> dict[str, float]:
        found = {}
        for name in OFFLINE:
            with suppress(UnknownValueError):
                found[name] = self.value(name, {})
        return found


@dataclass
class OwnFigures:
    """What a measure returned. proven: of its runs; None if it made none."""

    values: Mapping[str, float]
    ids: Sequence[str] = ()
    proven: bool | None = None
    doubt: str = ""

    def value(self, name: str, keys: Keys) -> float:
        """A figure of the measure."""
        if name not in self.values:
            raise UnknownValueError(f"the measure gave no {name}; it gave: {', '.join(self.values)}")
        return float(self.values[name])

    def to_json(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items()}
