"""The report that the BMWG draft for AI training fabrics asks for in its section 13: ten parts, in Markdown.

In:  the result of a folder of experiments, with the directories of its copied runs.
Out: the text: what was measured, where, and how often. The draft sets no pass or fail. Where it asks yes or no, or
states a value, the report has the state of that check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from heddle.base.tables import flat, many, value_text
from heddle.base.units import format_bytes, format_rate, format_size
from heddle.fabric.wiring import BACKEND
from heddle.runs.figures import FIGURES, NICS
from heddle_plugins.experiments.experimenttext import HEAD, cells, remarks
from heddle_plugins.experiments.outcome import FAILED

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.runs.stored import StoredRun
    from heddle_plugins.experiments.folders import FolderResult
    from heddle_plugins.experiments.loading import Variant
    from heddle_plugins.experiments.outcome import ExperimentResult

PARTS: Final = (
    "DUT Identification", "Test Topology", "Test Configuration", "Observation Points", "Host Configuration",
    "Test Results", "Anomalies", "Trial Accounting", "Repeatability Statement", "Comparability Statement",
)  # fmt: skip
_PREDICTED: Final = "predicted: no packet was sent"


def benchmark_report(result: FolderResult) -> str:
    """The whole report."""
    return _Report(result).text()


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, and an empty one; without rows, a dash."""
    if not rows:
        return ["-", ""]
    lines = [[each.replace("|", "\\|").replace("\n", " ") for each in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [[*heads], ["---"] * len(heads), *lines]] + [""]


class _Report:
    """Makes the parts."""

    def __init__(self, result: FolderResult) -> None:
        self._folder, self._results = result.folder, result.results

    def text(self) -> str:
        """Title, statement, ten parts."""
        spec = self._folder.spec
        lines = [f"# {spec.title}", "", f"Method: {spec.source}.", "", spec.statement.strip(), ""]
        parts = (
            self._dut, self._topology, self._configuration, self._points, self._hosts, self._measured,
            self._anomalies, self._trials, self._repeatability, self._comparability,
        )  # fmt: skip
        for count, (title, part) in enumerate(zip(PARTS, parts, strict=True), 1):
            lines += [f"## {count}. {title}", "", *part()]
        return "\n".join(lines).rstrip() + "\n"

    @cached_property
    def _run(self) -> StoredRun | None:
        """A stored run, which has versions, the machine and the policy of its fabric."""
        from heddle.runs.store import open_runs

        directories = [each for result in self._results for each in result.directories.values()]
        return open_runs([f"{directories[0]}/"])[0] if directories else None

    @property
    def _around(self) -> dict[str, str]:
        """Versions and the machine; of a report without a live run, nothing."""
        found = None if self._run is None else self._run.surroundings.value
        if found is None:
            return {}
        machine = {"processors": f"{found.processors} x {found.processor}", "memory": format_bytes(found.memory)}
        return {**found.versions, **machine, "runtime": found.runtime, "prediction": found.selftest.text()}

    def _fabrics(self) -> dict[str, Variant]:
        """Each fabric once, with a variant of it."""
        return {each.fabric_text: each for result in self._results for each in result.experiment.variants}

    def _dut(self) -> Iterator[str]:
        around = self._around
        rates = sorted({link.rate_bps for each in self._fabrics().values() for link in each.fabric.fabric.links})
        yield from _table(
            ("parameter", "value"),
            [
                ("switch vendor, model", f"Heddle {around.get('Heddle', '')}, an emulation".replace(" ,", ",")),
                ("switch ASIC", "none: the forwarding of the Linux kernel, with BPF for queues, PFC and hashing"),
                ("NOS version", f"Linux {around.get('Linux', '-')}, FRR {around.get('FRR', '-')}"),
                ("port speed", f"emulated: {', '.join(map(format_rate, rates))}"),
                ("buffer", "shared by all ports of a switch; sizes in part 3"),
                ("optics, cables", "none: veth pairs"),
                ("NIC vendor, model, firmware", "emulated by Heddle in software; no firmware"),
                ("host configuration", "part 5"),
            ],
        )

    def _topology(self) -> Iterator[str]:
        yield "Cables are veth pairs; `./inv graph FABRIC` draws each of these fabrics. Classes of the draft: A is a"
        yield "2-tier Clos, B a 3-tier Clos, C rail-optimized."
        yield ""
        yield from _table(
            ("fabric", "class", "switches", "NICs", "links of switches"),
            [(text, *_shape(each.fabric.fabric)) for text, each in self._fabrics().items()],
        )

    def _configuration(self) -> Iterator[str]:
        from heddle.fabric.policydata import dump_policy

        seen: set[tuple[str, str]] = set()
        for text, each in self._fabrics().items():
            policy = flat(dump_policy(each.fabric.fabric.policy))
            new = [(key, value_text(value)) for key, value in policy.items() if (key, value_text(value)) not in seen]
            yield f"{'All of' if not seen else 'What differs in'} `{text}`. Sizes in bytes, durations in nanoseconds."
            yield ""
            yield from _table(("key", "value"), new)
            seen |= set(new)
        live = [
            (result.experiment.name, each.title, value_text(changed))
            for result in self._results for each in result.experiment.variants
            if (changed := each.spec.model_dump(exclude_defaults=True, include={"hashing", "queues", "down", "drain"}))
        ]  # fmt: skip
        yield "Changes of single runs:"
        yield ""
        yield from _table(("test", "run", "change"), live)

    def _points(self) -> Iterator[str]:
        yield "The paths of packets are proven from three sources: the prediction, the kernel's lookup, and counters."
        yield ""
        rows = [
            (result.experiment.name, check.name, "; ".join(dict.fromkeys(_point(result, call) for call in calls)))
            for result in self._results for check in result.experiment.checks
            if (calls := check.expression.calls)
        ]  # fmt: skip
        yield from _table(("test", "value", "observation point"), rows)

    def _hosts(self) -> Iterator[str]:
        head = [] if self._run is None else [("k", f"rates of hardware are divided by {self._run.record.k}")]
        yield "The hosts are Linux namespaces. Collectives are Heddle's own; NICs speak RoCEv2 in user space."
        yield ""
        yield from _table(("what", "value"), [*self._around.items(), *head])

    def _measured(self) -> Iterator[str]:
        for result in self._results:
            spec = result.experiment.spec
            source = "" if spec.claim is None else f"{spec.claim.source}: "
            yield from (f"### {source}{spec.title} ({result.experiment.name})", "")
            if result.skipped:
                yield from (f"Not run: {result.skipped}.", "")
                continue
            yield from _table(HEAD, [cells(row) for row in result.rows])
            yield from _table(("run", "N", "S", "algorithm (verified)", "S_fabric", "placement"), [*_offered(result)])
        yield "Algorithm (verified): every rank ran this program, and every result was compared element by element."
        yield "S_fabric: payload bytes per rank and iteration at the largest S, derived from algorithm and placement."
        yield ""

    def _anomalies(self) -> Iterator[str]:
        rows = [
            (result.experiment.name, f"{row.name}: {row.result}")
            for result in self._results for row in result.rows if row.state in FAILED
        ]  # fmt: skip
        rows += [(result.experiment.name, line) for result in self._results for line in remarks(result)]
        rows += [(each.what, f"not done: {each.why}") for each in self._folder.spec.left_out]
        done = {result.experiment.name for result in self._results}
        rows += [(each.name, "did not run") for each in self._folder.experiments if each.name not in done]
        yield from _table(("test", "deviation or observation"), rows)

    def _trials(self) -> Iterator[str]:
        rows = []
        for result in self._results:
            left = [each.why for each in result.done if each.figures is None]
            doubtful = sum(bool(each.figures and each.figures.doubt) for each in result.done)
            why = "; ".join(dict.fromkeys(left)) or result.skipped
            rows.append((result.experiment.name, len(result.done), len(result.done) - len(left), why, doubtful))
        yield "A trial is one repeat of one run. Those that no verdict rests on are included, and counted: wrong data,"
        yield "paths that are not proven, or a host CPU that may limit them."
        yield ""
        heads = ("test", "attempted", "included", "reason of exclusion", "without verdict")
        yield from _table(heads, [tuple(map(str, row)) for row in rows])

    def _repeatability(self) -> Iterator[str]:
        rows = [
            (name, row.name, str(len(sample.values)), "-" if sample.cv is None else f"{sample.cv:.1f} %")
            for name, row in ((result.experiment.name, row) for result in self._results for row in result.rows)
            if (sample := row.sample) is not None
        ]
        yield "CV: standard deviation / mean. Predictions are exact, and are made once."
        yield ""
        yield from _table(("test", "value", "repeats", "CV"), rows)

    def _comparability(self) -> Iterator[str]:
        yield f"{many(len(self._fabrics()), 'fabric')} of one emulation, as in part 2."
        yield "Values of different tests are not compared with each other. N, S and placement stand with each result,"
        yield "rates in part 1, load balancing in part 3. No value is divided by the capacity of switches."
        yield ""


def _shape(fabric: Fabric) -> tuple[str, ...]:
    """Class of the draft, of the network of ranks; switches, NICs, links between switches, of all networks."""
    rails = any(len(nics) > 1 for nics in fabric.nics_of.values())
    levels = {node.level for node in fabric.switches if fabric.level_of(node).network == BACKEND}
    kind = "C" if rails else "A" if len(levels) <= 2 else "B"
    kind = "-" if fabric.sideways else kind
    switches = {node.name for node in fabric.switches}
    cables = sum(link.a[0] in switches and link.b[0] in switches for link in fabric.links)
    return kind, str(len(fabric.switches)), str(len(fabric.nics)), str(cables)


def _point(result: ExperimentResult, call: Any) -> str:
    run = result.experiment.spec.runs[call.run]
    if run.measure is not None:
        from heddle_plugins.experiments.measures import MEASURES

        return f"measure {run.measure}: {MEASURES[run.measure].figures[call.figure]}"
    if run.offline:
        return _PREDICTED
    if "." in call.figure:
        return f"part {call.figure} of the run"
    return FIGURES[call.figure].seen if call.figure in FIGURES else NICS  # a counter


def _offered(result: ExperimentResult) -> Iterator[tuple[str, ...]]:
    """A row for each run that ranks made."""
    from heddle.offline.loads import traffic_of

    for each in result.done:
        variant = each.variant
        if each.repeat > 1 or each.figures is None or variant.workload is None or not variant.live:
            continue
        jobs = [job.options for job in variant.sent.jobs]
        ends = [len(part) for part in variant.sent.endpoints(variant.fabric.fabric)]
        traffic = traffic_of(variant.fabric.fabric, variant.sent)
        payload = sum(int(each.volume.payload.sum(axis=1)[each.connections.kind].sum()) for each in traffic)
        yield (
            variant.title, ", ".join(map(str, ends)),
            ", ".join(dict.fromkeys(format_size(size) for job in jobs for size in job.sizes)),
            ", ".join(dict.fromkeys(f"{job.collective}/{job.algorithm}" for job in jobs)),
            format_bytes(round(payload / sum(ends))), ", ".join(dict.fromkeys(job.placement for job in jobs)),
        )  # fmt: skip
