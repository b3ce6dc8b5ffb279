"""The figures of a run, each once: its unit, its meaning, where it is observed, and how a run or a prediction gives it.

In:  a run, stored or just made; a prediction; links with their use.
Out: FIGURES by the name that users write. Experiments and their benchmark report, `impact`, units of the workshop,
tests and comparisons name them. A plugin adds one as a part of kind `figure`. UnknownValueError has the reason where a
run has no value. Units: GB/s emulated, seconds, packets, bytes; shares of links in percent of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from typing import TYPE_CHECKING, Final

from heddle.base.conditions import UnknownValueError, divided
from heddle.base.plugins import Registry
from heddle.base.tables import flat
from heddle.fabric.model import Role
from heddle.runs.parts import PARTS
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import stats_of

if TYPE_CHECKING:
    from heddle.offline.result import Prediction
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runtable import SizeRow

Keys = Mapping[str, str]

RANKS: Final = "endpoint software: clocks of the ranks"
NICS: Final = "endpoint software: counters of the emulated NICs"
QUEUES: Final = "DUT telemetry: counters of switch ports, egress, all classes"
PAUSES: Final = "DUT telemetry: pause frames and closed gates, all ports and classes"
LINKS: Final = "DUT telemetry: egress bytes of the uplinks below which ranks are, all classes"
KERNELS: Final = "DUT telemetry: changes of routes in the kernels of switches"
HOST: Final = "the host machine: use of its CPUs"


@dataclass(frozen=True, slots=True)
class LinkShare:
    """A link that counts. percent: its use; used: whether it carried flows."""

    port: str
    direction: str
    percent: float
    used: bool
    uplink: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. unit, text: for people. seen: who observed it. title: its name where two runs
    are compared; empty: it is not.

    Readers; a value is None where a run does not have it. size: of a measured size. run: of a job. links: of links that
    count, of a run or a prediction. predicted: of a prediction, in its first mode, with the keywords of an expression.
    summed: of a run with several jobs, it is their sum; others are of the first job, as queues and paths are of all.
    """

    unit: str
    text: str
    seen: str = NICS
    title: str = ""
    size: Callable[[SizeRow], float | None] | None = None
    run: Callable[[RunRecord], float | None] | None = None
    links: Callable[[Sequence[LinkShare]], float] | None = None
    predicted: Callable[[Prediction, Keys], float | None] | None = None
    summed: bool = False

    def of(self, outcome: RunRecord) -> float | None:
        """The value of a job, at its largest size; None for a figure of links, which needs the paths."""
        if self.size is not None:
            return self.size(outcome.largest)
        return None if self.run is None else self.run(outcome)


def _iterations(name: str) -> Callable[[SizeRow], float | None]:
    """Of the slowest rank of each iteration."""

    def of(row: SizeRow) -> float | None:
        found = stats_of(row.first.slowest_us)
        return None if found is None else float(getattr(found, name)) * (1 if name == "cv_pct" else 1e-6)

    return of


def _queues(name: str) -> Callable[[RunRecord], float | None]:
    return lambda job: None if (used := job.part(QueueUse)) is None else getattr(used, name)


def _ideal(name: str) -> Callable[[RunRecord], float | None]:
    return lambda job: None if (ideal := job.part(IdealUse)) is None else getattr(ideal, name)


def _proof(name: str) -> Callable[[RunRecord], float | None]:
    return lambda job: None if job.proof is None else getattr(job.proof, name)


def _sent(name: str) -> Callable[[RunRecord], float | None]:
    """Of the flows, which a stored record does not have."""
    return lambda job: sum(getattr(flow.sent, name) for flow in job.flows) if job.flows else None


def _effects(name: str) -> Callable[[RunRecord], float | None]:
    def of(job: RunRecord) -> float | None:
        faults = () if (found := job.part(FaultEffects)) is None else found.faults
        return max((getattr(each, name) or 0.0 for each in faults), default=None)

    return of


def _by_switch(links: Sequence[LinkShare]) -> Sequence[int]:
    """How many links each switch used, of those that used any."""
    counts = Counter(each.port.partition(":")[0] for each in links if each.used)
    if not counts:
        raise UnknownValueError("no link was used")
    return [*counts.values()]


def _shares(of: Callable[[Sequence[float]], float]) -> Callable[[Sequence[LinkShare]], float]:
    return lambda links: of([each.percent for each in links])


def _fairness(shares: Sequence[float]) -> float:
    return divided(sum(shares) ** 2, len(shares) * sum(each * each for each in shares))


def _mode(name: str) -> Callable[[Prediction, Keys], float | None]:
    return lambda prediction, _: getattr(prediction.modes[0], name)


def _predicted_mmr(prediction: Prediction, keys: Keys) -> float | None:
    wires, mmr, way = prediction.wires, prediction.modes[0].mmr, keys.get("direction")
    chosen = [d for d in mmr if (fnmatchcase(wires.direction_name(d), way) if way else d in wires.upward)]
    return max((value for d in chosen if (value := mmr[d]) is not None), default=None)


def _moved(key: str) -> Callable[[Prediction, Keys], float | None]:
    def of(prediction: Prediction, _: Keys) -> float | None:
        return moves.share(key) if (moves := prediction.moved) is not None and key in moves.moved else None

    return of


def _collisions(prediction: Prediction, _: Keys) -> float | None:
    if prediction.modes[0].flows is None:
        return None
    upward = {prediction.wires.direction_name(d) for d in prediction.wires.upward}
    rows = [row for row in prediction.links() if row["ranked"] and row["direction"] in upward]
    return max((row["flows"] for row in rows), default=0)


# fmt: off
FIGURES: Final[Registry[Figure]] = Registry("figure", {
    "busbw": Figure(unit="GB/s emulated", text="bus bandwidth, as nccl-tests defines it", seen=RANKS,
                    size=lambda row: row.busbw),
    "algbw": Figure(unit="GB/s emulated", text="bytes of the size / time", seen=RANKS, size=lambda row: row.algbw),
    "time": Figure(unit="s", text="of an iteration, mean over ranks; of a prediction, of its busiest link",
                   seen=RANKS, size=lambda row: row.time_us / 1e6, predicted=_mode("seconds")),
    "p50": Figure(unit="s", text="median over iterations of the slowest rank", seen=RANKS, size=_iterations("p50_us")),
    "p95": Figure(unit="s", text="95th percentile over iterations of the slowest rank",
                  seen=RANKS, size=_iterations("p95_us")),
    "p99": Figure(unit="s", text="99th percentile over iterations of the slowest rank",
                  seen=RANKS, size=_iterations("p99_us")),
    "slowest": Figure(unit="s", text="maximum over iterations of the slowest rank",
                  seen=RANKS, size=_iterations("max_us")),
    "cv": Figure(unit="%", text="standard deviation / mean over iterations of the slowest rank",
                  seen=RANKS, size=_iterations("cv_pct")),
    "mmr_flows": Figure(unit="max/mean", text="of flows, over the uplinks below which ranks are", seen=LINKS,
                        title="MMR of flows", run=_proof("mmr_flows")),
    "mmr": Figure(
        unit="max/mean", title="MMR of bytes", seen=LINKS, run=_proof("mmr_bytes"), predicted=_predicted_mmr,
        text="of bytes, over the uplinks below which ranks are; of a prediction, the largest of any direction upwards, "
             "or of this `direction`"),
    "completion": Figure(
        unit="x the ideal", title="job completion ratio", seen=RANKS, run=_ideal("ratio"), predicted=_mode("ratio"),
        text="time of an iteration / that on NICs alone; of a prediction, time / the shortest possible time"),
    "exposed": Figure(unit="share", title="exposed communication", seen=RANKS, run=_ideal("share"),
                      text="of an iteration in which a rank does not compute, mean over ranks that compute"),
    "marks": Figure(unit="packets", text="that got the mark CE", title="marks", seen=QUEUES, run=_queues("marks")),
    "drops": Figure(unit="packets", text="that queues dropped", title="drops", seen=QUEUES, run=_queues("dropped")),
    "trims": Figure(unit="packets", text="that switches trimmed", title="trims", seen=QUEUES, run=_queues("trims")),
    "lost": Figure(unit="packets", text="lost anywhere, also by faults and sockets", seen=QUEUES,
                   run=lambda job: None if job.lost is None else sum(job.lost.values())),
    "pauses": Figure(unit="frames", text="pause frames of switches", title="pause frames", seen=PAUSES,
                     run=_queues("pauses")),
    "paused_ports": Figure(unit="ports", text="that were paused", seen=PAUSES, run=_queues("paused_ports")),
    "paused_hosts": Figure(unit="ports", text="of hosts that were paused", seen=PAUSES, run=_queues("paused_hosts")),
    "paused_ms": Figure(unit="ms of all ports", text="in pause", title="paused", seen=PAUSES,
                        run=_queues("paused_ms")),
    "storms": Figure(unit="storms", text="that the watchdog ended", seen=PAUSES, run=_queues("storms")),
    "deepest": Figure(unit="bytes", text="of the deepest queue of a switch", title="deepest queue", seen=QUEUES,
                      run=_queues("deepest")),
    "packets": Figure(unit="packets", text="of data that were sent", run=_sent("packets"), summed=True),
    "bytes": Figure(unit="bytes", text="of data packets that were sent", run=_sent("bytes"), summed=True),
    "qps": Figure(unit="QPs", text="flows whose paths were checked", run=_proof("qps")),
    "qps_spread": Figure(unit="QPs", text="flows whose packets may take several paths", seen=LINKS,
                         run=_proof("spread")),
    "unproven": Figure(unit="QPs", text="flows whose paths are not proven", seen=LINKS, run=_proof("unproven")),
    "wrong": Figure(unit="elements", text="of results that are wrong", run=lambda job: job.wrong, summed=True),
    "icrc_errors": Figure(unit="packets", text="that arrived with a wrong ICRC", run=lambda job: job.icrc_errors,
                          summed=True),
    "limited": Figure(unit="jobs", text="1 if the host CPU was or may have been the bottleneck, else 0", seen=HOST,
                      run=lambda job: job.limited, summed=True),
    "busy": Figure(unit="share", text="of the host's CPU time that was used, mean over the run",
                   title="processors busy", seen=HOST,
                   run=lambda job: None if (used := job.part(MachineUse)) is None else used.cpu_share),
    "last_loss": Figure(unit="s", text="from the start of the worst fault to the last lost packet", seen=QUEUES,
                        run=_effects("last_loss_s")),
    "settled": Figure(unit="s", text="from the start of the worst fault to the last change of a route", seen=KERNELS,
                      run=_effects("settled_s")),
    "links": Figure(unit="links", text="that could be used", seen=LINKS, links=len),
    "links_used": Figure(unit="links", text="that carried flows", seen=LINKS,
                         links=lambda links: sum(each.used for each in links)),
    "links_used_most": Figure(unit="links", text="that one switch used, the most of any", seen=LINKS,
                              links=lambda links: max(_by_switch(links))),
    "links_used_least": Figure(unit="links", text="that one switch used, the least of any that used one", seen=LINKS,
                               links=lambda links: min(_by_switch(links))),
    "link_max": Figure(unit="%", text="utilization of the busiest link: of the time of the run; offline, of the "
                                      "shortest possible time", seen=LINKS, links=_shares(max)),
    "link_min": Figure(unit="%", text="utilization of the least used link", seen=LINKS, links=_shares(min)),
    "link_mean": Figure(unit="%", text="mean utilization", seen=LINKS, links=_shares(fmean)),
    "link_spread": Figure(unit="points", text="busiest minus least used", seen=LINKS,
                          links=_shares(lambda each: max(each) - min(each))),
    "link_jfi": Figure(unit="", text="Jain's fairness index of their utilization: 1 is even, 1/links is one link alone",
                       seen=LINKS, links=_shares(_fairness)),
    "flows": Figure(unit="flows", text="of all jobs", predicted=lambda prediction, _: prediction.flows),
    "unreachable": Figure(unit="flows", text="without a path", predicted=lambda prediction, _: prediction.unreachable),
    "moved": Figure(unit="share", text="of flows with a new path after `down` or `drain`, by hash-threshold",
                    predicted=_moved("threshold")),
    "moved_resilient": Figure(unit="share", text="the same with resilient groups", predicted=_moved("resilient")),
    "collisions": Figure(unit="flows", text="on the fullest uplink below which ranks are", predicted=_collisions),
}, Figure)
# fmt: on


def figures_with(*readers: str) -> list[str]:
    """The names of figures that have one of these readers: `size`, `run`, `links`, `predicted`."""
    return [name for name, each in FIGURES.items() if any(getattr(each, reader) is not None for reader in readers)]


def counters() -> list[str]:
    """The counters of all transports, and of congestion control and admission: figures, too, summed over jobs."""
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS
    from heddle.endpoints.congestion.controlled import CNP_COLUMNS
    from heddle.endpoints.transports import TRANSPORTS

    every = [column for kind in TRANSPORTS.values() for column in getattr(kind, "columns", ())]
    return [each.key for each in (*every, *CNP_COLUMNS, *ADMISSION_COLUMNS)]


def part_figure(job: RunRecord, name: str) -> float | None:
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


def link_figure(name: str, links: Sequence[LinkShare], keys: Keys) -> float:
    """A figure over the links that the keywords `port` and `direction` choose; without them, uplinks below which ranks
    are. UnknownValueError when there are none.
    """
    if "port" in keys or "direction" in keys:
        port, way = keys.get("port", "*"), keys.get("direction", "*")
        links = [each for each in links if fnmatchcase(each.port, port) and fnmatchcase(each.direction, way)]
    else:
        links = [each for each in links if each.uplink]
    of = FIGURES[name].links
    if not links or of is None:
        raise UnknownValueError("no link matches")
    return float(of(links))


def links_of_paths(paths: PathsResult) -> Iterator[LinkShare]:
    """The links of a run that could be used."""
    counted = {link.port for link in paths.uplinks.links}
    for link in paths.links:
        if link.usable:
            percent = 100 * (link.utilisation or 0.0)
            yield LinkShare(link.port, link.direction, percent, link.flows > 0, link.port in counted)


def links_of_prediction(prediction: Prediction) -> Iterator[LinkShare]:
    """The links between switches, and those to hosts in the direction of the host."""
    wires, full = prediction.wires, prediction.roofline.seconds
    upward = {wires.direction_name(d) for d in wires.upward}
    hosts = {node.name for node in wires.fabric.nodes if node.role is Role.HOST}
    for row in prediction.links():
        if row["port"].partition(":")[0] not in hosts:
            percent = 100 * row["seconds"] / full if full else 0.0
            uplink = row["ranked"] and row["direction"] in upward
            yield LinkShare(row["port"], row["direction"], percent, row["bytes"] > 0, uplink)
