"""The best algorithm, channels and QPs for each size of a collective on one fabric, for NCCL's example tuner plugin.

In:  finished runs of one collective that differ in these settings. Out: choices with their margin and whether noise
explains it; `nccl_tuner.conf`; the CSV of measurements that the plugin's scripts/optimize_config.py reads
(NVIDIA/nccl, plugins/tuner/example). Means of equal runs count; the best must beat every other setting (noise.py).
Only algorithms of NCCL are measured: an all-reduce by rings and trees, all else by rings. A chain through all ranks is
NCCL's ring of a broadcast and a reduce. Protocols are not modelled; a line needs one, and the plugin takes any other
word for `simple`. A line has no QPs: it is NCCL_IB_QPS_PER_CONNECTION of the whole job, so one number is chosen.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from math import log
from operator import itemgetter
from statistics import fmean
from typing import Any, Final

from heddle.base.units import emulated_words
from heddle.runs.compare import REPEAT, Verdict, busbw_of, judged, several_paths
from heddle.runs.noise import LEVEL, STEADY, chance_of_groups, middle, steady_p
from heddle.runs.runrecord import RunRecord, unfit
from heddle.runs.runtable import SizeRow

COLLECTIVES: Final[Mapping[str, str]] = {
    "all-reduce": "allreduce", "all-gather": "allgather", "reduce-scatter": "reducescatter",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
# Heddle's algorithms -> NCCL's (src/graph/tuning.cc: a broadcast and a reduce have only rings there).
ALGORITHMS: Final[Mapping[str, Mapping[str, str]]] = {
    "all-reduce": {"ring": "ring", "tree": "tree"},
    "all-gather": {"ring": "ring"},
    "reduce-scatter": {"ring": "ring"},
    "broadcast": {"chain": "ring"},
    "reduce": {"chain": "ring"},
}
ANY: Final = -1  # channels that were not varied, and what a line matches always
_PROTOCOL: Final = "simple"
_CSV: Final = (
    "collective", "size_bytes", "algorithm", "protocol", "channels", "nodes", "ranks", "pipeOps", "regBuff",
    "bandwidth_gbps", "latency_us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TunerSetting:
    """What is varied. algorithm: NCCL's word."""

    algorithm: str
    channels: int
    qps: int

    @property
    def text(self) -> str:
        """`tree, 2 channels, 4 QPs`."""
        channels = "" if self.channels == ANY else f", {self.channels} channel{'' if self.channels == 1 else 's'}"
        return f"{self.algorithm}{channels}, {self.qps} QP{'' if self.qps == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class TunerPoint:
    """One setting at one size. doubt: why no verdict rests on it; chance: why another run may differ more.

    equal: busbw of equal runs and this one, GB/s, emulated; their mean counts.
    """

    setting: TunerSetting
    row: SizeRow
    doubt: str
    chance: str
    equal: tuple[float, ...]

    @property
    def busbw(self) -> float:
        """The mean of equal runs."""
        return middle(self.equal, counted=False) if self.equal else self.row.busbw

    @property
    def time_us(self) -> float:
        """The mean of equal runs."""
        return self.row.time_us * self.row.busbw / self.busbw


@dataclass(frozen=True, slots=True)
class TunerChoice:
    """The fastest setting of a size, and the next one. verdict: against all others. margin: how much longer the next
    takes, as a share.
    """

    size: int
    best: TunerPoint
    second: TunerPoint | None
    verdict: Verdict
    why: str

    @property
    def margin(self) -> float | None:
        """The share; None with one setting."""
        return None if self.second is None else self.second.time_us / self.best.time_us - 1


@dataclass(frozen=True, slots=True)
class Tuning:
    """All measurements of one collective. nodes: hosts of a communicator; ranks: of it."""

    collective: str
    lab: str
    fabric: str
    hashing: str
    k: int
    nodes: int
    ranks: int
    points: tuple[TunerPoint, ...]

    @classmethod
    def of(
        cls, results: Mapping[TunerSetting, RunRecord], equal: Mapping[TunerSetting, Sequence[RunRecord]] | None = None
    ) -> Tuning:
        """From the runs of all settings. equal: equal runs of each in the history, with itself."""
        first = next(iter(results.values()))
        members = first.communicators[0] if first.communicators else tuple(range(len(first.ranks)))
        nodes = len({first.ranks[rank].host for rank in members})
        points = []
        for setting, result in results.items():
            for row in result.rows:
                why, runs = unfit(result, row.size), (equal or {}).get(setting, ())
                known = tuple(value for run in runs if (value := busbw_of(row.size, run)) is not None)
                chance = several_paths(result)
                points.append(TunerPoint(setting, row, "" if why is None else why.why, chance, known))
        return cls(
            first.options.collective, first.lab, first.fabric, first.ecmp, first.k, nodes, len(members), tuple(points)
        )

    @property
    def qps(self) -> int:
        """The smallest number of QPs that is slower at no size than the one with the best times."""
        return self._qps[0]

    @property
    def decided(self) -> bool:
        """Whether all other numbers of QPs are slower at some size, beyond noise."""
        return len(self._qps) == 1

    @property
    def _qps(self) -> list[int]:
        """The numbers of QPs that are slower at no size than the one with the smallest geometric mean of best times."""
        numbers, sizes = sorted({each.setting.qps for each in self.points}), self._sizes()
        of = {n: [[each for each in group if each.setting.qps == n] for group in sizes] for n in numbers}
        best = min(numbers, key=lambda n: fmean(log(group[0].time_us) for group in of[n]))
        tests = (len(numbers) - 1) * len(sizes)
        return [
            n
            for n in numbers
            if n == best
            or not any(
                _choice([top[0], *rest], tests).verdict == "differs" for top, rest in zip(of[best], of[n], strict=True)
            )
        ]

    def _sizes(self) -> list[list[TunerPoint]]:
        sizes = sorted({each.row.size for each in self.points})
        by_time = sorted(self.points, key=lambda each: each.time_us)
        return [[each for each in by_time if each.row.size == size] for size in sizes]

    def best(self) -> list[TunerChoice]:
        """The best setting of each size over all that was varied."""
        return [_choice(group) for group in self._sizes()]

    def lines(self) -> list[tuple[int, TunerSetting | None]]:
        """For each size what the file has, with the chosen number of QPs; None where nothing is better than noise.

        Where only channels make no difference, the algorithm is chosen, and its channels are not.
        """
        found: list[tuple[int, TunerSetting | None]] = []
        for group in self._sizes():
            best, *others = [each for each in group if each.setting.qps == self.qps]
            algorithms = [each for each in others if each.setting.algorithm != best.setting.algorithm]
            rivals = ((others, best.setting), (algorithms, replace(best.setting, channels=ANY)))
            better = (setting for rest, setting in rivals if _choice([best, *rest]).verdict == "differs")
            found.append((best.row.size, next(better, None)))
        return found

    @property
    def assumed(self) -> str:
        """What a line of single runs rests on; empty where all settings have equal runs."""
        single = any(len(each.equal) < 2 for each in self.points)
        return f"Assumed for single runs: equal ones differ by at most {STEADY:.0%}. Repeat to measure it." * single

    def conf(self) -> str:
        """`nccl_tuner.conf`."""
        return "\n".join([*self._head(), *self._ranges()]) + "\n"

    def _head(self) -> Iterator[str]:
        varied = [sorted({str(getattr(each.setting, name)) for each in self.points}) for name in ("algorithm", "qps")]
        channels = sorted({each.setting.channels for each in self.points})
        named = "the default" if channels == [ANY] else ", ".join(map(str, channels))
        yield "# Tuner file for NCCL's example plugin, measured by Heddle on an emulated fabric, not on hardware."
        yield f"# Fabric {self.fabric}, hashing {self.hashing}: {self.nodes} nodes, {self.ranks} ranks."
        yield f"# k = {self.k}: {emulated_words(self.k)}."
        algorithms, qps = (", ".join(each) for each in varied)
        yield f"# Measured: {COLLECTIVES[self.collective]}; {algorithms}; channels: {named}; QPs: {qps}."
        yield f"# These lines are for NCCL_IB_QPS_PER_CONNECTION={self.qps}{'' if self.decided else ', not decided'}."
        yield "# Protocols are not modelled. A line needs one, so each has simple."
        if self.assumed:
            yield f"# {self.assumed}"
        yield "# A line ends halfway to the next measured size."
        yield "# A size without a line: no difference beyond noise, or not known."
        yield "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

    def _ranges(self) -> list[str]:
        """A line for each range of sizes with the same choice."""
        sizes, settings = zip(*self.lines(), strict=True)
        ends = [*((low + high) // 2 for low, high in pairwise(sizes)), sizes[-1]]
        begins = [0, *(end + 1 for end in ends[:-1])]
        groups = groupby(zip(settings, begins, ends, strict=True), key=itemgetter(0))
        about = f"{self.nodes},{self.ranks},{ANY},{ANY}"
        name = COLLECTIVES[self.collective]
        return [
            f"{name},{spans[0][1]},{spans[-1][2]},{each.algorithm},{_PROTOCOL},{each.channels},{about}"
            for each, spans in ((each, [*same]) for each, same in groups)
            if each is not None
        ]

    def csv(self) -> str:
        """The measurements with the chosen number of QPs: the script takes the best row, and a line has no QPs."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(_CSV)
        for each in (point for group in self._sizes() for point in group if point.setting.qps == self.qps):
            row, setting = each.row, each.setting
            table.writerow([
                COLLECTIVES[self.collective], row.size, setting.algorithm, _PROTOCOL, setting.channels, self.nodes,
                self.ranks, ANY, ANY, f"{each.busbw:.6g}", round(each.time_us, 3),
            ])  # fmt: skip
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """The document of the verb, without the names of files."""
        return {
            "collective": self.collective, "lab": self.lab, "fabric": self.fabric, "hashing": self.hashing,
            "nodes": self.nodes, "ranks": self.ranks, "qps": self.qps, "qps_decided": self.decided,
            "measured": [
                {**asdict(each.setting), "size": each.row.size, "time_us": each.time_us, "busbw": each.busbw,
                 "equal_runs": len(each.equal), "doubt": each.doubt}
                for each in self.points
            ],
            "best": [
                {"size": each.size, **asdict(each.best.setting), "margin": each.margin, "verdict": each.verdict,
                 "why": each.why}
                for each in self.best()
            ],
            "emulated": {"k": self.k, "means": emulated_words(self.k)},
        }  # fmt: skip


def _against(best: TunerPoint, other: TunerPoint) -> tuple[float, Verdict, str]:
    """p of two settings if they do not differ, 1 where the first is not faster; why a line may not rest on it."""
    groups = (best.equal, other.equal)
    doubt = next((f"{each.setting.text}: {each.doubt}" for each in (best, other) if each.doubt), "")
    found = None if doubt else chance_of_groups(groups, counted=False, names=(best.setting.text, other.setting.text))
    if found is not None and found.means is not None:
        p = found.p if found.means[0] > found.means[1] else 1.0
        return p, "unknown" if found.unsure else "noise", found.words
    verdict, why = judged(best.row, other.row, (), doubt, best.chance or other.chance)
    if verdict == "differs" and best.row.busbw > other.row.busbw:
        return steady_p(best.row.busbw, other.row.busbw), verdict, why
    return 1.0, "unknown" if verdict == "differs" else verdict, why.removesuffix(f": {REPEAT}")


def _choice(group: Sequence[TunerPoint], tests: int = 1) -> TunerChoice:
    """The first of some points, in order of time, against all others. tests: how many such choices are one decision.

    All must differ at the levels of S. Holm (Scandinavian Journal of Statistics 6, 1979).
    """
    best, *others = group
    if not others:
        return TunerChoice(best.row.size, best, None, "unknown", "only one setting was measured")
    found = sorted((_against(best, other) for other in others), key=itemgetter(0))
    # What is at fault: the first that does not differ, and of those one that is not known.
    failed = [each for at, each in enumerate(found) if each[0] > LEVEL / tests / (len(found) - at)]
    if not failed:
        return TunerChoice(best.row.size, best, others[0], "differs", found[-1][2])
    _, verdict, why = next((each for each in failed if each[1] == "unknown"), failed[0])
    return TunerChoice(best.row.size, best, others[0], "noise" if verdict == "differs" else verdict, why)
