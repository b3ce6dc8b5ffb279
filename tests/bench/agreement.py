"""The forecast of time against arithmetic, live runs, and published results of simulators: one ratio for each pair.

`./inv bench agreement` measures the live runs and prints the ratios. `python -m tests.bench.agreement` also writes
docs/results/agreement.csv, from which docs/agreement.md is generated. A ratio is time / forecast.
Published: docs/results/htsim.csv, with its source. A run that is UNRELIABLE is made once more; if it is so again, its
ratio is shown, and is not in the median and the worst.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from heddle.base.events import Observer, Silent
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import TE
from heddle.fabric.model import Fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.outages import link_down
from heddle.lab.rehash import put_in_force, set_hashing, take_out
from heddle.offline.columns import cutting
from heddle.offline.forecast import Ask
from heddle.runs.run import run_workload
from heddle.runs.together import WorkloadResult
from heddle.spec.routingpolicy import HashOptions
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.workload import Workload
from heddle_plugins.engineering.te import PARTS, of_run, plan_for
from heddle_plugins.time.forecast import time_forecast

from . import BenchResult, Figure, at_least, at_most

RESULTS: Final = Path(__file__).resolve().parents[2] / "docs/results/agreement.csv"
HTSIM: Final = RESULTS.with_name("htsim.csv")
_LAB: Final = "benchag"
_MEDIAN, _WORST = 5.0, 10.0  # percent


@dataclass(frozen=True)
class Setup:
    """A fabric: preset and overrides."""

    name: str
    preset: str
    overrides: tuple[str, ...]

    def fabric(self) -> Fabric:
        return load_fabric(self.preset, name=_LAB, overrides=self.overrides).fabric


@dataclass(frozen=True)
class Case:
    """A workload on a fabric. text: a workload file; down: a port. exact: seconds by arithmetic."""

    name: str
    setup: Setup
    text: str
    mode: str = "flow"
    down: str = ""
    exact: Callable[[Fabric], float] | None = None
    live: bool = True

    @property
    def ask(self) -> Ask:
        return Ask(mode=self.mode, down=(self.down,) if self.down else ())

    def workload(self) -> Workload:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "work.yml")
            path.write_text("iters: 3\nwarmup: 1\n" + self.text)
            return load_workload(str(path)).workload

    def forecast(self, fabric: Fabric) -> list[float]:
        """Seconds of an iteration of each job."""
        return self.modelled(fabric)[0]

    def modelled(self, fabric: Fabric) -> tuple[list[float], str]:
        """The same, and the model: `flows` that share links, or `packets` in queues."""
        found = time_forecast(fabric, self.workload(), self.ask, Silent(), gains=False)
        return [job.sizes[0].seconds for job in found.jobs], "packets" if found.packets else "flows"


def _rate(mbit: int) -> tuple[str, ...]:
    return f"link.host={mbit}mbit", f"link.fabric={mbit}mbit"


_TWO_RACKS: Final = ("racks=2", "hosts_per_rack=4")
EVEN: Final = Setup("1:1", "tiny", (*_TWO_RACKS, "ctsw=4", *_rate(25)))
HALF: Final = Setup("2:1", "tiny", (*_TWO_RACKS, "ctsw=2", *_rate(25)))
RAIL: Final = Setup("rails, 10 Mb/s", "rail", ("hosts_per_pod=2", "nics_per_host=4", *_rate(10)))  # 16 NICs
LARGE: Final = Setup("32 NICs, 2:1", "tiny", ("racks=4", "hosts_per_rack=8", "ctsw=4", *_rate(25)))
ZONE: Final = Setup("zone", "zone", ("hosts_per_rack=1", *_rate(25)))


def _wire(fabric: Fabric, payload: int, qps: int = 1, transport: str = "rc") -> float:
    """Seconds of a message at a NIC's rate, its parts on some queue pairs."""
    frames = cutting(fabric, qps, "split", 1 << 30, transport).frames(np.array([payload // qps] * qps))
    return 8 * int(frames.sum()) / fabric.nics[0].rate_bps


def _ring(ranks: int, size: int, qps: int = 1) -> Callable[[Fabric], float]:
    """Each of 2 (n - 1) steps takes as long as its messages."""
    return lambda fabric: 2 * (ranks - 1) * (size // ranks // _CHUNK) * _wire(fabric, _CHUNK, qps)


def _incast(senders: int, size: int) -> Callable[[Fabric], float]:
    """The receiver's link carries all, and a credit for each sender's next iteration."""
    return lambda fabric: senders * (_wire(fabric, size // (senders + 1)) + _wire(fabric, CREDIT_BYTES))


def _every(fabric: Fabric) -> float:
    return 3 * _wire(fabric, _CHUNK)


def _shift(size: int, over: int) -> Callable[[Fabric], float]:
    """All flows cross links with `over` times as much to carry as a NIC."""
    return lambda fabric: over * size // _CHUNK * _wire(fabric, _CHUNK, transport="srd")


_CHUNK: Final = 1 << 17
_RING: Final = "collective: all-reduce\nsize: 2M\nplacement: cyclic\nqps: 4\n"
_SPRAY: Final = "transport: srd\nmatrix: shift:4\nsize: 1M\n"
CASES: Final = (
    Case("ring", EVEN, "collective: all-reduce\nsize: 2M\n", exact=_ring(8, 2 << 20)),
    Case("ring, 4 QPs, cyclic", EVEN, _RING),
    Case("ring, e-ecmp", EVEN, _RING, "e-ecmp"),
    Case("ring, pinned", EVEN, _RING, "pinned", exact=_ring(8, 2 << 20, qps=4)),
    Case("ring, te", EVEN, _RING, "te", exact=_ring(8, 2 << 20, qps=4)),
    Case("halving-doubling", EVEN, "collective: all-reduce\nalgorithm: halving-doubling\nsize: 2M\nqps: 4\n"),
    Case("tree", EVEN, "collective: all-reduce\nalgorithm: tree\nsize: 1M\n"),
    Case("broadcast, chain", EVEN, "collective: broadcast\nsize: 2M\n"),
    Case("all-to-all", EVEN, "collective: all-to-all\nsize: 4M\n"),
    Case("incast of 4", EVEN, "collective: incast\nsize: 500K\nranks: 5\n", exact=_incast(4, 500 << 10)),
    Case("incast of 4, admission", EVEN, "collective: incast\nsize: 500K\nranks: 5\nadmission: on\n"),
    Case("ring of 4, admission", EVEN, "collective: all-reduce\nsize: 1M\nranks: 4\nadmission: on\n"),
    Case("two jobs: ring, all-to-all", EVEN, """\
qps: 4
size: 2M
jobs:
  a: {collective: all-reduce, ranks: "0:8:2"}
  b: {collective: all-to-all, ranks: "1:8:2"}
"""),
    Case("shift", HALF, "matrix: shift:4\nsize: 1M\nqps: 4\n"),
    Case("all-to-all", HALF, "collective: all-to-all\nsize: 4M\n"),
    Case("ring, cyclic", HALF, _RING),
    Case("two jobs: rings, one 1 s later", HALF, """\
size: 1M
qps: 4
placement: cyclic
jobs:
  a: {collective: all-reduce, ranks: "0:8:2"}
  b: {collective: all-reduce, ranks: "1:8:2", start: 1s}
"""),
    Case("shift, a link down", HALF, "matrix: shift:4\nsize: 1M\nqps: 4\n", down="rtsw1:eth1"),
    Case("shift, spray", HALF, _SPRAY, "spray", exact=_shift(1 << 20, over=2)),
    Case("shift, spray, a link down", HALF, _SPRAY, "spray", down="rtsw1:eth1", exact=_shift(1 << 20, over=4)),
    Case("hierarchical", RAIL, "collective: all-reduce\nalgorithm: hierarchical\nsize: 3M\n"),
    Case("ring of 32", LARGE, "collective: all-reduce\nsize: 4M\n", exact=_ring(32, 4 << 20), live=False),
    Case("incast of 31", LARGE, "collective: incast\nsize: 512K\n", exact=_incast(31, 512 << 10), live=False),
    Case("all-to-all of 4", LARGE, "matrix: all-to-all\nranks: 4\nsize: 128K\n", exact=_every, live=False),
    Case("ring, a link down", ZONE, _RING, down="rtsw1:eth1", exact=_ring(8, 2 << 20, qps=4)),
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """Cases of uet-htsim: a permutation of 8,192 NICs, in 128 racks, all packets sprayed. name: of its result file.

    In fail1 the links of one spine have 100 Gb/s. An even split has no use for them, so the forecast has 63 spines.
    """

    name: str
    gbps: int
    spines: int

    def forecast(self) -> dict[int, float]:
        """Megabytes of a flow -> microseconds until the last one has ended, of another permutation."""
        link = f"{{host: {self.gbps}mbit, fabric: {self.gbps}mbit, delay: 1us}}"
        text = (
            f"name: htsim\nracks: 128\nctsw: {self.spines}\nhosts_per_rack: 64\nscale: 1000\nlink: {link}\n"
            "routing: {ecmp: spray}\n"
        )
        found: dict[int, float] = {}
        with tempfile.TemporaryDirectory() as scratch:
            fabric, work = Path(scratch, "htsim.yml"), Path(scratch, "work.yml")
            fabric.write_text(text)
            for sizes in ("1000000:64000000:x2", "100MB"):
                work.write_text(f"collective: permutation\nsize: {sizes}\nchunk: 128K\niters: 1\nwarmup: 0\n")
                result = time_forecast(
                    load_fabric(str(fabric)).fabric, load_workload(str(work)).workload, Ask(), Silent(), gains=False
                )
                for each in result.jobs[0].sizes:
                    found[each.size // 1_000_000] = each.seconds * 1e6 / 1000  # the hardware is `scale` times as fast
        return found


PUBLISHED: Final = (
    Published("400g_nscc", 400, 64), Published("400g_rccc", 400, 64), Published("200g_nscc", 200, 64),
    Published("800g_nscc", 800, 64), Published("400g_nscc_4_to_1", 400, 16), Published("400g_nscc_8_to_1", 400, 8),
    Published("400g_nscc_fail1", 400, 63),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One comparison. case: with the job, paths, or megabytes. times in seconds; doubt: why a run is UNRELIABLE.

    model: of the forecast, `flows` or `packets`.
    """

    case: str
    fabric: str
    source: str
    forecast_s: float
    time_s: float
    doubt: str = ""
    model: str = "flows"

    @property
    def ratio(self) -> float:
        return self.time_s / self.forecast_s


def compared(observer: Observer, *, simulators: bool = True) -> Iterator[Row]:
    """All comparisons. simulators: also with their published results, which takes minutes."""
    for case in CASES:
        if case.exact is not None:
            fabric = case.setup.fabric()
            yield Row(case.name, case.setup.name, "arithmetic", case.forecast(fabric)[0], case.exact(fabric))
    for setup, group in groupby((case for case in CASES if case.live), key=lambda case: case.setup):
        labs.up(load_fabric(setup.preset, name=_LAB, overrides=setup.overrides), observer=observer, rollback=True)
        try:
            for case in group:
                observer.say(f"{setup.name}: {case.name}")
                yield from _live_rows(open_lab(_LAB), case)
        finally:
            labs.down(_LAB, observer)
    if simulators:
        times = published()
        made: dict[tuple[int, int], dict[int, float]] = {}
        for each in PUBLISHED:
            observer.say(f"8,192 NICs: {each.name}")
            key = each.gbps, each.spines
            made[key] = made[key] if key in made else each.forecast()
            for (name, paths, megabytes), tail_us in times.items():
                if name == each.name:
                    what = f"{name}, {paths} paths, {megabytes} MB"
                    yield Row(what, "8,192 NICs", "htsim", made[key][megabytes] / 1e6, tail_us / 1e6)


def published() -> dict[tuple[str, int, int], float]:
    """(file, paths, megabytes) -> microseconds, of the committed results."""
    with HTSIM.open(encoding="utf-8") as file:
        return {
            (row["file"], int(row["paths"]), int(row["megabytes"])): float(row["tail_us"])
            for row in csv.DictReader(file)
        }


def _live_rows(lab: Lab, case: Case) -> Iterator[Row]:
    """Of each job. A run that is UNRELIABLE is made once more."""
    (ahead, model), done = case.modelled(lab.fabric), live(lab, case)
    if any(job.doubts for job in done.jobs):
        done = live(lab, case)
    for job, forecast_s in zip(done.jobs, ahead, strict=True):
        name = f"{case.name}: job {job.job}" if job.job else case.name
        doubt = job.doubts[0].text if job.doubts else ""
        yield Row(name, case.setup.name, "live", forecast_s, job.rows[0].time_us / 1e6, doubt, model)


def live(lab: Lab, case: Case) -> WorkloadResult:
    """Run a case, with its hashing and its link down."""
    with ExitStack() as kept:
        if case.down:
            kept.enter_context(link_down(lab, case.down))
        if case.mode != TE:
            set_hashing(lab, case.mode, HashOptions())
            return run_workload(lab, case.workload(), Silent())
        set_hashing(lab, "e-ecmp", HashOptions())
        run_workload(lab, case.workload(), Silent())
        put_in_force(lab, plan_for(lab, of_run(lab), lab.snapshot(PARTS)).tables, _LAB)
        kept.callback(take_out, lab, _LAB)
        return run_workload(lab, case.workload(), Silent())


def read_rows() -> list[Row]:
    """The committed results."""
    with RESULTS.open(encoding="utf-8") as file:
        return [
            Row(
                each["case"],
                each["fabric"],
                each["source"],
                float(each["forecast_s"]),
                float(each["time_s"]),
                each["doubt"],
                each["model"],
            )
            for each in csv.DictReader(file)
        ]


def write_rows(rows: Sequence[Row]) -> None:
    """Write docs/results/agreement.csv."""
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of a table: fabric, case, and the ratios of arithmetic, live runs and htsim; the last column is empty."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        marks = "p" * (row.model == "packets") + "*" * bool(row.doubt)
        shown = f"{row.ratio:.4f}{marks}" if row.source != "htsim" else f"{row.ratio:.2f}"
        case = row.case.rpartition(", ")[0] if row.source == "htsim" else row.case
        found.setdefault((row.fabric, case), {}).setdefault(row.source, []).append(shown)
    return [
        [fabric, case, *(" ".join(each.get(source, ["-"])) for source in ("arithmetic", "live", "htsim")), "-"]
        for (fabric, case), each in sorted(found.items(), key=lambda item: item[0][0])
    ]


def errors(rows: Sequence[Row]) -> list[float]:
    """Percent that live times differ from the forecast, without UNRELIABLE runs."""
    return [100 * abs(row.ratio - 1) for row in rows if row.source == "live" and not row.doubt]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Sentences for the page."""
    counted, ratios = errors(rows), [row.ratio for row in rows if row.source == "htsim"]
    every = [row for row in rows if row.source == "live"]
    if counted:
        shown = f"median error {statistics.median(counted):.1f} %, worst {max(counted):.1f} %"
        yield f"Live, {len(counted)} of {len(every)} times count: {shown}."
    all_errors = [100 * abs(row.ratio - 1) for row in every]
    yield f"With the others, too: median {statistics.median(all_errors):.1f} %, worst {max(all_errors):.1f} %."
    above, band = sum(each > 1.1 for each in ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
    yield f"htsim: {len(ratios)} times are {band} of the forecast, {above} of them above 1.10."


def figures(observer: Observer) -> Iterator[Figure]:
    """Measure, and give the figures."""
    yield from figures_of([*compared(observer)])


def figures_of(rows: Sequence[Row]) -> list[Figure]:
    """The ratios, then median and worst of the live ones, then the least and the largest of htsim's."""
    found = []
    for row in rows:
        doubt = f", UNRELIABLE: {row.doubt}" if row.doubt else ""
        found.append(Figure(f"{row.fabric}, {row.case}", row.ratio, "x", f"forecast, {row.source}{doubt}"))
    if ratios := [row.ratio for row in rows if row.source == "htsim"]:
        found.append(at_least("htsim: least ratio", min(ratios), "x", 1.0, "forecast"))
        found.append(Figure("htsim: largest ratio", max(ratios), "x", "forecast"))
    if live_errors := errors(rows):
        found.append(at_most("live: median error", statistics.median(live_errors), "%", _MEDIAN))
        found.append(at_most("live: worst error", max(live_errors), "%", _WORST))
    return found


if __name__ == "__main__":
    measured = [*compared(Silent())]
    write_rows(measured)
    print(BenchResult(tuple(figures_of(measured))).text())
