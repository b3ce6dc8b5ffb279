"""Sections of a run's part of the report, in the order of the page (page.py).

Its figures at a glance; link utilization; its table in nccl-tests' form, its bandwidth; queues over time; the proof of
paths; every parameter and version, and the commands that make it again. And the part that compares two runs.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from heddle.base.tables import Table, flat, value_text
from heddle.base.units import emulated_words, format_bytes, format_rate, format_size
from heddle.endpoints.runoptions import option_fields, plain, typed_options
from heddle.fabric.policydata import dump_policy
from heddle.proof.verdict import source_words
from heddle.runs.runrecord import unfit
from heddle.runs.runtable import Figures
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import parse_sizes
from heddle.views import queuepicture, runpicture
from heddle.views.fabricsvg import fabric_svg, legend_svg
from heddle.views.linkloads import LinkLoad, amount, describe_run, link_loads, spreads
from heddle.views.pathstext import choices_text, delivery_text, entropy_text, verdict_text
from heddle.views.picturelayout import PictureLayout
from heddle.views.report.section import Chart, NotCarriedError, Values, counted, figure
from heddle.views.runstext import how_judged, number_text, ratio_name

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle.runs.compare import Comparison
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.series import Recorded
    from heddle.runs.stored import StoredRun

Card = tuple[str, str, str]  # name, value, what it means or whether it is good
_WORDS = {"same": "the same", "noise": "noise explains it", "differs": "differs", "unknown": "not known"}


def summary(run: StoredRun) -> Values:
    """What came of the run, in cards; and everything that makes its figures doubtful."""
    record, rows = run.record, run.record.rows
    cards: list[Card] = []
    scale = f"emulated, k = {record.k}"
    if rows:
        largest = record.largest
        size, time = format_size(largest.size), f"{figure(largest.time_us / 1e3)} ms"
        right = "the result is wrong" if record.wrong else "every array was checked"
        cards += [
            (f"busbw at {size}", f"{figure(largest.busbw)} GB/s", scale),
            (f"time at {size}", time, "an iteration, mean over ranks; emulated"),
            ("wrong elements", counted(record.wrong), right),
        ]  # fmt: skip
    if record.exit_code is not None:
        cards.append(("exit code", str(record.exit_code), "of the first rank that failed; 0 if none did"))
    cards += _counted(record, "flows" if record.launch else "QPs")
    return {"cards": cards, "doubts": _doubts(run), "failure": "\n".join(record.failure)}


def _counted(record: RunRecord, units: str) -> list[Card]:
    cards: list[Card] = []
    if (proof := record.proof) is not None:
        said = f"{source_words(proof.sources)} agree" if proof.agree else f"{proof.unproven} {units} are not proven"
        cards.append(("paths", f"{proof.qps - proof.unproven} of {proof.qps} {units} proven", said))
        cards.append(
            (
                "MMR of the uplinks",
                figure(proof.mmr_bytes, 3),
                f"bytes, max/mean; of flows {figure(proof.mmr_flows, 3)}",
            )
        )
    return [*cards, *(card for part in record.parts.values() for card in part.cards())]


def _doubts(run: StoredRun) -> list[str]:
    record = run.record
    if not record.done:
        return []
    reason = unfit(record)
    found = [f"no verdict rests on this run: {reason.why}"] if reason is not None else []
    found += [line for part in record.parts.values() for line in part.doubt_lines()]
    if record.icrc_errors:
        found.append(f"{record.icrc_errors:,} packets arrived with a wrong ICRC")
    state = record.fabric_state
    if state is not None and state.word != "converged":
        found.append(f"the fabric was {state.word} during this run")
    return [*found, *record.warnings]


def results(run: StoredRun) -> Values:
    """The tables of nccl-tests, a table for each buffer mode that was measured; the transport's counters."""
    rows, options = run.record.rows, run.record.options
    if not rows:
        raise NotCarriedError("no size was measured")
    pattern = options.pattern
    spread = any(row.iteration_us for row in rows)
    columns = (
        ">size (B)",
        ">count (elements)",
        "type",
        "redop",
        ">root",
        ">time (us)",
        ">algbw (GB/s)",
        ">busbw (GB/s)",
        ">#wrong",
    )
    note = "time is the mean over ranks and iterations. algbw = size / time; busbw = algbw x the factor of nccl-tests"
    k, tables = run.record.k, []
    for at, which in enumerate(("out of place", "in place")):
        measured = [(row, found) for row in rows if (found := run.record.sides(row)[at]) is not None]
        lines = []
        for row, found in measured:
            common = (
                counted(row.size), counted(run.record.count(row)), pattern.printed_type, pattern.redop,
                str(pattern.printed_root),
                figure(found.time_us, 6), figure(found.algbw), figure(found.busbw), counted(found.wrong),
            )  # fmt: skip
            lines.append((*common, _range(found)) if spread else common)
        if measured:
            mean = figure(sum(found.busbw for _, found in measured) / len(measured))
            tables.append(Table(
                f"Results, {which}. Bandwidths are emulated: rates are 1/{k} of the hardware's (k = {k}).",
                (*columns, ">iterations (us)") if spread else columns, tuple(lines),
                f"{note} for this collective. Average busbw: {mean} GB/s, emulated.",
            ))  # fmt: skip
    return {"tables": [*tables, *_transport(run)]}


def _range(found: Figures) -> str:
    if not found.iteration_us:
        return "-"
    return f"{figure(min(found.iteration_us), 6)} to {figure(max(found.iteration_us), 6)} ({len(found.iteration_us)})"


def _transport(run: StoredRun) -> list[Table]:
    record = run.record
    if not record.transport.columns:
        return []
    rows = [(c.text, c.unit, counted(record.counters.get(c.key, 0))) for c in record.transport.columns]
    more = [
        ("with a wrong ICRC", "packets", counted(record.icrc_errors)),
        ("stray", "packets", counted(record.stray)),
        ("for another MAC", "packets", counted(record.foreign)),
    ]
    caption = f"Transport {record.transport.name}, all queue pairs together"
    return [Table(caption, ("what", "unit", ">count"), (*rows, *more))]


def bandwidth(run: StoredRun) -> Values:
    """busbw by size, the load of each uplink, the timed iterations of each rank."""
    rows = run.record.rows
    if not rows:
        raise NotCarriedError("no size was measured")
    best = max(rows, key=lambda row: row.busbw)
    told = f"Highest busbw: {best.busbw:.4g} GB/s emulated at {format_size(best.size)}."
    return {"charts": [Chart.of("run", "Bandwidth, uplinks and iterations", told, runpicture.draw("svg", [run]))]}


def comparison(found: Comparison) -> Values:
    """Settings that differ, ratios with their verdicts, a chart."""
    settings = tuple((row.name, row.a, row.b) for row in found.settings)
    rows = tuple(
        (
            ratio_name(row), row.unit, number_text(row.a), number_text(row.b),
            "-" if row.ratio is None else f"{row.ratio:.3f}", _WORDS[row.verdict], row.why,
        )
        for row in found.ratios
    )  # fmt: skip
    sized = [row for row in found.ratios if row.size is not None and row.figure == "busbw" and row.ratio is not None]
    chart = None
    if sized:
        count = Counter(_WORDS[row.verdict] for row in sized)
        told = f"{len(sized)} sizes: {', '.join(f'{word}: {many}' for word, many in count.items())}."
        chart = Chart.of("runs", "A and B", told, runpicture.draw("svg", [found.a, found.b]))
    heads = ("figure", "unit", ">A", ">B", ">B / A", "verdict", "why")
    return {
        "a": found.a, "b": found.b,
        "settings": Table("Settings that differ", ("setting", "A", "B"), settings) if settings else None,
        "ratios": Table("Ratios", heads, rows, how_judged()),
        "chart": chart, "left_out": found.left_out, "notes": found.notes,
    }  # fmt: skip


def parameters(run: StoredRun) -> Values:
    """Tables of all of them."""
    record, around = run.record, run.surroundings.value
    words = {each.name: each.word for each in option_fields()}
    chosen = {"launch": shlex.join(record.launch)} if record.launch else plain(record.options)
    options = [(words.get(name, name), value_text(value)) for name, value in chosen.items()]
    tables = [
        _run_table(run),
        Table("Options of the run", ("option", "value"), tuple(options)),
    ]
    if record.transport.parameters:
        rows = tuple((name, value_text(value)) for name, value in record.transport.parameters.items())
        tables.append(Table(f"Transport {record.transport.name}", ("parameter", "value"), rows))
    tables += [found for part in record.parts.values() if (found := part.table()) is not None]
    if (built := run.fabric.value) is not None:
        rows = tuple((name, value_text(value)) for name, value in flat(dump_policy(built.policy)).items())
        note = "sizes in bytes, durations in nanoseconds, rates are those of the fabric file"
        tables.append(Table("Policy of the fabric", ("key", "value"), rows, note))
    if around is not None and around.queues:
        heads = ("key", "value", "nodes")
        tables.append(Table("Queues that were set while the lab ran", heads, _live_rows(around.queues)))
    if around is not None:
        machine = {
            "processors": f"{around.processors} x {around.processor}", "memory": format_bytes(around.memory),
            "runtime": around.runtime, "prediction": around.selftest.text(),
        }  # fmt: skip
        tables.append(Table("Versions and machine", ("what", "value"), (*around.versions.items(), *machine.items())))
    why = "" if around is not None else f"Versions and machine: {run.surroundings.why}."
    return {"tables": tables, "without": why}


def _live_rows(live: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for node, settings in live.items():
        for path, value in settings.items():
            found.setdefault((f"queues.{path}", value_text(value)), []).append(node)
    return tuple((path, value, ", ".join(nodes)) for (path, value), nodes in found.items())


def _run_table(run: StoredRun) -> Table:
    record = run.record
    rows = (
        ("run", f"{run.id} of lab {record.lab}"),
        ("made from", record.fabric),
        ("started (UTC)", record.when),
        ("wall time", f"{record.seconds:g} s"),
        ("k", f"{record.k}: {emulated_words(record.k)}"),
        ("hashing", record.ecmp),
        ("ranks", ", ".join(f"{rank.host}:{rank.port}" for rank in record.ranks)),
        ("flows" if record.launch else "queue pairs", f"{record.qps:,}"),
        *([("foreign endpoints", "; ".join(record.recorded))] if record.recorded else []),
        ("Heddle", record.heddle),
    )
    return Table("The run", ("what", "value"), rows)


def reproduce(run: StoredRun) -> Values:
    """The commands, and the fabric file where the run carries it."""
    record, around = run.record, run.surroundings.value
    spec = around.spec if around is not None else {}
    file = f"{record.lab}.yml" if spec else record.fabric
    live = []
    if around is not None:
        live += _hashing(around.hashing, around.fabric.policy.routing.hash.to_json())
        live += _queues(around.queues, len(around.fabric.nodes))
    lines = [f"./inv up {shlex.quote(file)}", *live, *_commands(record), "./inv paths"]
    import yaml

    text = yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=None, width=100) if spec else ""
    note = "" if around is not None else f"The fabric file is not here: {run.surroundings.why}."
    return {"commands": "\n".join(lines), "file": file if spec else "", "yaml": text, "note": note}


def _commands(record: RunRecord) -> list[str]:
    if record.launch:
        return [shlex.join(["./inv", *record.command])]
    return run_commands(record.options, record.lab)


def _hashing(live: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """A command for each mode that was set while the lab ran. usual: options of the fabric file."""
    modes: dict[str, list[str]] = {}
    options: dict[str, Any] = {}
    for switch, rule in live.items():
        mode = str(rule.get("mode", ""))
        modes.setdefault(mode, []).append(switch)
        options[mode] = rule.get("options")
    lines = []
    for mode, switches in modes.items():
        lines.append(f"./inv hashing {shlex.quote(mode)} --switch {','.join(switches)}")
        own = {path: value for path, value in flat(options[mode] or {}).items() if flat(usual).get(path) != value}
        if own:
            lines.append(f"# with options (--set): {value_text(own)}")
    return lines


def _queues(live: Mapping[str, Mapping[str, Any]], every: int) -> list[str]:
    """A command for each set of thresholds that nodes were given while the lab ran. every: how many nodes there are."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node, settings in live.items():
        words = tuple(shlex.quote(f"{path}={_plain(value)}") for path, value in settings.items())
        groups.setdefault(words, []).append(node)
    return [
        " ".join(["./inv queues set", *words, *([] if len(nodes) == every else [f"--switch {','.join(nodes)}"])])
        for words, nodes in groups.items()
        if words
    ]


def _plain(value: Any) -> str:
    """A value as --set and `queues set` read it."""
    return json.dumps(value) if isinstance(value, bool | list | None) else str(value)


def run_commands(options: RunOptions, lab: str) -> list[str]:
    """`./inv run` with every option that is not the default; once for each size where no range has exactly these."""
    if options.steps:
        return [f"# its steps are in a workload file: ./inv run --lab {shlex.quote(lab)} --workload FILE"]
    if (sizes := _range_of(options.sizes)) is not None:
        return [_run_command(options, lab, sizes)]
    return [_run_command(options, lab, str(size)) for size in options.sizes]


def _run_command(options: RunOptions, lab: str, sizes: str) -> str:
    words = ["./inv", "run", "--lab", lab]
    for word, texts in typed_options(options).items():
        for text in [sizes] if word == "size" else texts:
            words += [f"--{word.replace('_', '-')}", text]
    return shlex.join(words)


def _range_of(sizes: Sequence[int]) -> str | None:
    """`65536:1048576:x2` for these sizes; None where no such range has them."""
    if len(sizes) == 1:
        return str(sizes[0])
    ends = f"{sizes[0]}:{sizes[-1]}"
    steps = (f"x{sizes[1] // max(1, sizes[0])}", str(sizes[1] - sizes[0]))
    for step in steps:
        with suppress(ValueError):
            if parse_sizes(f"{ends}:{step}") == tuple(sizes):
                return f"{ends}:{step}"
    return None


ROWS: Final = 200  # of QPs; those that are not proven come first


def loads_of(run: StoredRun) -> Sequence[LinkLoad]:
    """What the run put on each link; empty where it has no paths."""
    fabric, proof = run.fabric.value, run.proof.value
    if fabric is None or proof is None:
        return ()
    return link_loads(fabric, run.evidence.sent, proof.links, run.evidence.seconds)


def fabric(run: StoredRun) -> Values:
    """The drawing with link utilization, and the same as a table."""
    built = run.fabric.value
    if built is None:
        raise NotCarriedError(run.fabric.why)
    loads = loads_of(run)
    described, layout = describe_run(run.record), PictureLayout(built)
    title = f"Fabric {built.name}: {len(built.switches)} switches, {len(built.hosts)} hosts, {len(built.links)} links"
    rows = tuple(
        (load.a, load.b, format_rate(load.rate_bps), *_end(load, 0), *_end(load, 1))
        for load in sorted(loads, key=lambda load: -max(load.seconds))
    )
    columns = (
        "lower port",
        "upper port",
        ">rate (emulated)",
        ">sent up",
        ">packets",
        ">load",
        ">sent down",
        ">packets",
        ">load",
    )
    note = "load: share of line rate, the mean of the run" if loads and loads[0].run_s else "load: seconds at line rate"
    return {
        "title": title,
        "caption": described,
        "svg": fabric_svg(layout, loads, title=f"{title}; {described}", prefix=f"{run.name}-"),
        "legend": legend_svg(),
        "spreads": [spread.text() for spread in spreads(built, loads)],
        "without": "" if loads else run.proof.why,
        "links": Table("Every link, the busiest first", columns, rows, note) if rows else None,
    }  # fmt: skip


def _end(load: LinkLoad, side: int) -> tuple[str, str, str]:
    packets, size = ((load.a_packets, load.a_bytes), (load.b_packets, load.b_bytes))[side]
    use = f"{load.seconds[side] / load.run_s:.1%}" if load.run_s else f"{load.seconds[side]:.3g} s"
    return amount(size), counted(packets), use


def queues(run: StoredRun) -> Values:
    """The queues that held most, over time; all that were used, as a table."""
    recorded = run.recorded.value
    if recorded is None:
        raise NotCarriedError(run.recorded.why)
    drawn = queuepicture.panels(recorded)
    if not drawn:
        raise NotCarriedError("no queue ever held a packet")
    told = "; ".join(f"{panel.title}: at most {format_bytes(panel.most)}" for panel in drawn)
    picture = queuepicture.draw("svg", recorded, drawn, run.rates.value, run.record.times)
    return {"charts": [Chart.of("queues", "Queues over time", f"{told}.", picture)], "table": _queue_table(recorded)}


def _queue_table(recorded: Recorded) -> Table:
    columns = recorded.series.columns
    rows = []
    for at, label in enumerate(recorded.labels):
        total = {
            name: int(columns[name][at].sum())
            for name in ("marks", "trims", "drops", "pfc_sent", "pfc_received", "paused_ns")
        }
        deepest, held = int(columns["peak"][at].max(initial=0)), int(columns["occupancy_peak"][at].max(initial=0))
        rows.append((deepest, (
            label.port, str(label.traffic_class), label.kind, format_bytes(deepest), format_bytes(held),
            counted(total["marks"]), counted(total["trims"]), counted(total["drops"]), counted(total["pfc_sent"]),
            counted(total["pfc_received"]), f"{total['paused_ns'] / 1e6:,.1f}",
        )))  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    heads = (
        "port", ">class", "kind", ">deepest egress queue", ">most in ingress buffer", ">marks", ">trims", ">drops",
        ">pauses sent", ">pauses received", ">paused (ms)",
    )  # fmt: skip
    return Table("Every port and class that was used, the deepest first", heads, tuple(row for _, row in rows))


def paths(run: StoredRun) -> Values:
    """Verdict, the three sources, and the path of every QP by each of them."""
    proof = run.proof.value
    if proof is None:
        raise NotCarriedError(run.proof.why)
    wrong = [each for each in proof.flows if each.why]
    shown = [*wrong, *(each for each in proof.flows if not each.why)][:ROWS]
    units = "source ports" if proof.units.startswith("source") else proof.units
    title = f"{units[0].upper()}{units[1:]}: {len(shown)} of {len(proof.flows)}"
    title += ", those that are not proven first" if wrong else ""
    columns = (
        "from",
        "to",
        ">flow" if units == "flows" else ">QPN",
        ">source port",
        ">packets",
        "predicted",
        "kernel lookup",
        "counted",
        "verdict",
    )
    note = "" if len(shown) == len(proof.flows) else f"./inv paths --run {run.id} --all prints all {units}."
    return {
        "agree": proof.agree,
        "verdict": f"{'Proven: ' if proof.agree else ''}{verdict_text(proof)}.",
        "sources": _sources(proof),
        "notes": proof.notes,
        "uplinks": _uplinks(proof),
        "flows": Table(title, columns, tuple(_flow(proof, each) for each in shown), note),
        "entropy": entropy_text(proof),
    }


def _sources(proof: PathsResult) -> Table:
    """What each source is, and how far it can be trusted here."""
    selftest, made = proof.selftest.text() if proof.selftest else "-", choices_text(proof) or "-"
    used = "used" if "prediction" in proof.sources else "not used: wrong on that kernel"
    return Table(
        "Three sources", ("source", "what it is", "here"),
        (
            ("prediction", "hash and FIBs of the switches, computed before the packets", f"{used}; {selftest}"),
            ("kernel lookup", "the forwarding decision of each switch, asked hop by hop", f"choices made: {made}"),
            ("counters", "packets of each QP at each port, counted on the way", delivery_text(proof) or "-"),
        ),
    )  # fmt: skip


def _uplinks(proof: PathsResult) -> Table | None:
    links = [link for link in proof.links if link.uplink]
    if not links:
        return None
    rows = tuple(
        (
            link.port, counted(link.flows), counted(link.packets), amount(link.bytes), f"{link.seconds:.3g}",
            "-" if link.utilisation is None else f"{link.utilisation:.1%}",
        )
        for link in links
    )  # fmt: skip
    over = proof.uplinks.text(links[0].direction.partition(" to ")[0] or "switch")
    note = f"MMR ({over}): flows {figure(proof.mmr.flows, 3)}, bytes {figure(proof.mmr.bytes, 3)}."
    heads = (
        "uplink",
        ">QPs" if proof.units == "QPs" else ">flows",
        ">packets",
        ">bytes",
        ">seconds at its rate",
        ">utilization",
    )
    return Table("Uplinks", heads, rows, note)


def _flow(proof: PathsResult, each: FlowProof) -> tuple[str, ...]:
    src, dst = proof.ends(each)
    predicted = "-" if each.predicted is None else " ".join(each.predicted)
    return (
        src, dst, each.flow.label, str(each.flow.sport), counted(each.sent.packets), predicted,
        " ".join(each.oracle) or "-", " ".join(each.measured) or "-", each.why or "agree",
    )  # fmt: skip
