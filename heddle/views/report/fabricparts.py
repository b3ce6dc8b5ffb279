"""Sections of what the fabric did in a run: use of links, queues over time, proof of paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from heddle.base.tables import Table
from heddle.base.units import format_bytes, format_rate
from heddle.views import queuepicture
from heddle.views.fabricsvg import fabric_svg, legend_svg
from heddle.views.linkloads import LinkLoad, amount, describe_run, link_loads, spreads
from heddle.views.pathstext import choices_text, delivery_text, entropy_text, verdict_text
from heddle.views.picturelayout import PictureLayout
from heddle.views.report.section import Chart, NotCarriedError, Values, counted, figure

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle.runs.series import Recorded
    from heddle.runs.stored import StoredRun

ROWS: Final = 200  # of QPs; those that are not proven come first


def loads_of(run: StoredRun) -> Sequence[LinkLoad]:
    """What the run put on each link; empty where it has no paths."""
    fabric, proof = run.fabric.value, run.proof.value
    if fabric is None or proof is None:
        return ()
    return link_loads(fabric, run.evidence.sent, proof.links, run.evidence.seconds)


def fabric(run: StoredRun) -> Values:
    """The drawing with the use of links, and the same as a table."""
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
            name: int(columns[name][at].sum()) for name in ("marks", "drops", "pfc_sent", "pfc_received", "paused_ns")
        }
        deepest, held = int(columns["peak"][at].max(initial=0)), int(columns["occupancy_peak"][at].max(initial=0))
        rows.append((deepest, (
            label.port, str(label.traffic_class), label.kind, format_bytes(deepest), format_bytes(held),
            counted(total["marks"]), counted(total["drops"]), counted(total["pfc_sent"]),
            counted(total["pfc_received"]), f"{total['paused_ns'] / 1e6:,.1f}",
        )))  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    heads = (
        "port", ">class", "kind", ">deepest egress queue", ">most in ingress buffer", ">marks", ">drops",
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
    title = f"QPs: {len(shown)} of {len(proof.flows)}" + (", those that are not proven first" if wrong else "")
    columns = (
        "from",
        "to",
        ">QPN",
        ">UDP source port",
        ">packets",
        "predicted",
        "kernel lookup (oracle)",
        "counted",
        "verdict",
    )
    note = "" if len(shown) == len(proof.flows) else f"./inv paths --run {run.id} --all prints every QP."
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
            ("oracle", "the forwarding decision of each switch, asked hop by hop", f"choices made: {made}"),
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
    return Table("Uplinks", ("uplink", ">QPs", ">packets", ">bytes", ">seconds at its rate", ">use"), rows, note)


def _flow(proof: PathsResult, each: FlowProof) -> tuple[str, ...]:
    src, dst = proof.ends(each)
    predicted = "-" if each.predicted is None else " ".join(each.predicted)
    return (
        src, dst, each.flow.label, str(each.flow.sport), counted(each.sent.packets), predicted,
        " ".join(each.oracle) or "-", " ".join(each.measured) or "-", each.why or "agree",
    )  # fmt: skip
