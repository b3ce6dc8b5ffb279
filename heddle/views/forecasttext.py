"""A prediction as text: tables of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

import numpy as np

from heddle.base.units import format_bytes, format_size
from heddle.fabric.model import BACKEND, Fabric
from heddle.offline.loads import Traffic
from heddle.offline.result import ModeResult, Prediction
from heddle.offline.wires import Wires
from heddle.traffic.matrixrows import names_bytes
from heddle.traffic.options import TRANSPORT
from heddle.traffic.sequence import PartSequence
from heddle.views.style import WIDTH
from heddle.wire.layout import DSCP_DATA

_LINKS = 8  # rows in the table of the busiest links


def render(result: Prediction) -> str:
    """The whole report."""
    parts = [
        _pathless(result), _head(result), _modes(result), _trials(result), _moved(result), _busiest(result),
        _remarks(result),
    ]  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in (list(part) for part in parts) if lines)


def _pathless(result: Prediction) -> Iterator[str]:
    """Flows without a path in BGP, with the NICs at their ends."""
    if result.unreachable:
        some = ", ".join(result.named)
        count, total = result.unreachable, result.flows
        more = ", ..." if count > len(result.named) * max(job.connections.each for job in result.jobs) else ""
        yield from wrapped(f"{count:,} of {total:,} flows have no path; all figures leave them out: {some}{more}")


def _head(result: Prediction) -> Iterator[str]:
    fabric = result.wires.fabric
    counts = Counter(fabric.level_of(node) for node in fabric.switches)
    rows = [
        " x ".join(f"{count:,} {level.title}" for level, count in counts.items() if level.network == network)
        for network in fabric.networks
    ]
    switches = " beside ".join(rows)
    yield f"prediction for {fabric.name}: {switches}, {len(fabric.nics):,} NICs"
    if len(result.jobs) > 1:
        yield f"{result.workload.name}: {len(result.jobs)} jobs, one iteration of each"
        width = max(len(job.job.name) for job in result.jobs)
        for job in result.jobs:
            yield from wrapped(f"{job.job.name:<{width}}  {_job(job, fabric)}; {format_bytes(job.bytes)}", width + 2)
        if any(job.job.after for job in result.jobs):
            yield "jobs that run one after the other are added up: bytes are those of the whole workload"
    else:
        yield from wrapped(_job(result.jobs[0], fabric))
    yield from dict.fromkeys(job.split for job in result.jobs if job.split)
    for job in result.jobs:
        pattern = job.job.options.pattern
        for line in pattern.lines() if isinstance(pattern, PartSequence) else ():
            yield from wrapped(f"{job.job.name} step: ".lstrip() + line)
    if result.trouble:
        words = [f"down: {', '.join(result.trouble.down)}"] if result.trouble.down else []
        words += [f"drained: {', '.join(result.trouble.drained)}"] if result.trouble.drained else []
        yield "; ".join(words)
    if result.idle:
        yield from wrapped(result.idle)
    yield f"times are emulated, at 1/{result.k} of the hardware's rates: compare figures within one table only"
    roofline = result.roofline
    if not roofline.seconds:
        yield "no flow that carries bytes has a path"
        return
    yield f"roofline {seconds_text(roofline.seconds)}: {roofline.what}" + (
        "" if roofline.seconds == roofline.nic_s else f" (the busiest NIC needs {seconds_text(roofline.nic_s)})"
    )


def _job(traffic: Traffic, fabric: Fabric) -> str:
    job, options = traffic.job, traffic.job.options
    what = f"{options.algorithm} {options.collective}" if job.runs[0] == "collective" else " ".join(job.runs)
    what = "its steps" if options.steps else what
    what += "" if options.transport == TRANSPORT else f" over {options.transport}"
    size = "" if names_bytes(what) else f" of {format_size(max(options.sizes))}"
    size += " at the busiest rank" * bool(options.steps)
    size += f", the largest of {len(options.sizes)} sizes" if len(options.sizes) > 1 else ""
    count = traffic.connections
    some, qps = ("" if number == 1 else "s" for number in (len(count), count.qps))
    sprayed = f" of {count.sports} source ports" if count.sports > 1 else ""
    flows = f"{count.flows:,} flows: {len(count):,} connection{some} of {count.qps} QP{qps}{sprayed}"
    placement = options.placement if len(options.placement) <= 24 else f"{options.placement[:21]}..."
    placed = f"{len(traffic.endpoints):,} ranks placed {placement}"
    number = fabric.policy.queues.class_of_dscp[options.dscp]
    where = f"; class {number} (DSCP {options.dscp})" if options.dscp != DSCP_DATA else ""
    return f"{what}{size}, {placed}; {flows} ({options.qp_mode}){where}"


def _between(wires: Wires, mode: ModeResult) -> list[int]:
    """Directions between switches; those of another network than the ranks' only if something passes them."""
    levels = wires.fabric.levels
    other = {d for d, ends in enumerate(wires.directions) if any(levels[end].network != BACKEND for end in ends)}
    return [d for d, mmr in mode.mmr.items() if not wires.at_hosts(d) and (d not in other or mmr is not None)]


def _modes(result: Prediction) -> Iterator[str]:
    between = _between(result.wires, result.modes[0])
    names = [result.wires.direction_name(d).split(" to ") for d in between]
    width = max(11, *(len(f"{a}>{b}") + 2 for a, b in names), 0)
    if between:
        yield f"{'':46}MMR of bytes, over links with ranks below"
    yield (
        f"{'mode':<12}{'completion':>11}{'/roofline':>10}  {'busiest link':<14}"
        + "".join(f"{f'{a}>{b}':>{width}}" for a, b in names)
    ).rstrip()
    for mode in result.modes:
        ratio = "-" if mode.ratio is None else f"{mode.ratio:.2f}"
        busiest = result.wires.ports[mode.busiest] if mode.seconds else "-"
        yield (
            f"{mode.mode:<12}{seconds_text(mode.seconds):>11}{ratio:>10}  {busiest:<14}"
            + "".join(f"{'-' if (mmr := mode.mmr[d]) is None else f'{mmr:.2f}':>{width}}" for d in between)
        ).rstrip()


def _trials(result: Prediction) -> Iterator[str]:
    if not any(mode.trials for mode in result.modes):
        return
    between = [d for d in _between(result.wires, result.modes[0]) if d in result.wires.upward]
    heads = ["completion/roofline", *(f"MMR {result.wires.direction_name(d)}" for d in between)]
    yield f"over {result.trials} other set{'' if result.trials == 1 else 's'} of hash seeds"
    yield f"{'':12}" + "".join(f"{head:^26}" for head in heads).rstrip()
    yield (f"{'mode':<12}" + f"{'mean':>8}{'p5':>8}{'p95':>8}  " * len(heads)).rstrip()
    for mode in result.modes:
        if mode.trials:
            cells = [mode.trials.get(key) for key in ("ratio", *(f"mmr {d}" for d in between))]
            words = [f"{'-':>8}{'':18}" if c is None else f"{c.mean:>8.2f}{c.p5:>8.2f}{c.p95:>8.2f}  " for c in cells]
            yield f"{mode.mode:<12}{''.join(words)}".rstrip()


def _moved(result: Prediction) -> Iterator[str]:
    if result.moved is not None:
        m = result.moved
        yield f"flows whose path changes, of {m.flows:,} under {result.modes[0].mode}"
        yield f"{'next hops':<14}{'moved':>12}{'unavoidable':>13}{'share moved':>14}"
        for name, count in m.moved.items():
            yield f"{name:<14}{count:>12,}{m.lost[name]:>13,}{m.share(name):>14.1%}"


def _busiest(result: Prediction) -> Iterator[str]:
    """The links that need most time under the first mode; the first row is that mode's `busiest link`.

    All links between switches are candidates, and of each direction from or to NICs only the busiest link: NICs often
    need the same time, and would fill the table.
    """
    mode, wires = result.modes[0], result.wires
    seconds = mode.bytes * 8 / wires.rate
    candidates = np.isin(wires.direction, _between(wires, mode))
    for direction in mode.mmr:
        if wires.at_hosts(direction):
            candidates[int(np.where(wires.direction == direction, seconds, -1.0).argmax())] = True
    shown = np.where(candidates, seconds, -1.0)
    order = [int(i) for i in np.argsort(-shown, kind="stable")[:_LINKS] if shown[i] > 0]
    if not order:
        return
    yield f"busiest links under {mode.mode}, by time (NIC links: only the busiest in each direction)"
    wide = max(14, *(len(wires.ports[end]) + 1 for i in order for end in (i, wires.other[i])))
    yield f"{'port':<{wide}}{'to':<{wide}}{'flows':>12}{'bytes':>20}{'seconds':>12}{'/roofline':>10}" + (
        "  most of it" if result.shares else ""
    )
    for i in order:
        flows = "-" if mode.flows is None else f"{round(mode.flows[i]):,}"
        ratio = f"{seconds[i] / result.roofline.seconds:.2f}" if result.roofline.seconds else "-"
        yield (
            f"{wires.ports[i]:<{wide}}{wires.ports[wires.other[i]]:<{wide}}{flows:>12}{round(mode.bytes[i]):>20,}"
            f"{seconds_text(float(seconds[i])):>12}{ratio:>10}{_largest(result, i)}"
        )


def _largest(result: Prediction, port: int) -> str:
    """The job with most of a port's bytes, and its share; empty for a single job."""
    if not result.shares:
        return ""
    mine = [float(share[port]) for share in result.shares]
    at = int(np.argmax(mine))
    return f"  {result.jobs[at].job.name[:10]} {mine[at] / sum(mine):.0%}"


def _remarks(result: Prediction) -> Iterator[str]:
    yield result.entropy.text
    between = _between(result.wires, result.modes[0])
    for direction, found in ((d, found) for d, found in result.evenness.items() if d in between):
        numbers = "" if found.p_value is None else (
            f" (chi-square {found.chi_square:.1f}, {found.degrees} degrees of freedom, p = {found.p_value:.2g})"
        )  # fmt: skip
        yield f"flows {result.wires.direction_name(direction)}: {found.verdict}{numbers}"
    for note in result.notes:
        yield from wrapped(f"note: {note}")
    if result.checked:
        yield from wrapped(result.checked.text())


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Lines of the report's width."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def seconds_text(value: float) -> str:
    """Three significant digits: `0.0123 s`, `12.3 s`, `1,230 s`; below a millisecond `6.56e-06 s`."""
    if value == 0 or value >= 1000:
        return f"{value:,.0f} s"
    if value < 1e-3:
        return f"{value:.2e} s"
    decimals = max(0, 2 - int(np.floor(np.log10(value))))
    return f"{value:.{decimals}f} s"
