"""Assertions on runs, paths, queues and labs, with readable failures.

In:  RunRecord of `heddle_run()`, PathsResult of `heddle_paths()`, QueuesResult of `heddle_queues()`, Lab of
`heddle_lab`. Out: nothing, or AssertionError: expected, observed, where, and the command that shows more.
Limits are inclusive: `assert_mmr_below(paths, 1.5)` passes for 1.5. A figure of a run with wrong data or unproven
paths never passes, that of an unreliable run only if ACCEPTED has the word (runs/runrecord.py); which links packets
took does not depend on processors. What was not counted never passes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from heddle.base.problems import CheckError, Problem, first_lines
from heddle.base.tables import many, table

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.lab.queues import QueuesResult
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle.runs.runrecord import RunRecord, UnfitKind

_WIDTH: Final = 96
_INDENT: Final = " " * 10
ACCEPTED: Final[set[UnfitKind]] = set()  # "unreliable" with --heddle-accept-unreliable
ROWS: Final = 6  # of a table in a message
_PATHS: Final = "./inv paths shows all queue pairs; pytest --heddle-keep leaves the lab up for it"
_QUEUES: Final = "./inv queues --all shows all ports; pytest --heddle-keep leaves the lab up for it"
_STATUS: Final = "./inv validate checks the whole lab; pytest --heddle-keep leaves the lab up for it"


def failed(claim: str, *, expected: str, observed: str, where: Sequence[str] = (), more: str = "") -> NoReturn:
    """Raise AssertionError. claim: what is wrong, in one line. where: lines that are kept as they are."""
    __tracebackhide__ = True
    lines = [claim, *_field("expected", expected), *_field("observed", observed)]
    for number, line in enumerate(where):
        lines.append(f"{'where' if not number else '':<10}{line}".rstrip())
    if more:
        # A problem's text names the program as the user started it.
        lines += _field("more", str(Problem("", more, "")))
    raise AssertionError("\n".join(lines))


def _field(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, _WIDTH - len(_INDENT), break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{name if not number else '':<10}{line}" for number, line in enumerate(wrapped)]


def rest(count: int, word: str) -> list[str]:
    """`and 3 more queues`, when a table shows only some."""
    return [f"and {many(count, f'more {word}')}"] if count > 0 else []


def run_text(result: RunRecord) -> str:
    """`run 0002 of lab t1: all-reduce, 4 ranks, 16 QPs`."""
    o = result.options
    what = f"{o.collective}, {len(result.ranks)} ranks, {many(o.qps, 'QP')}"
    return f"run {result.id or '-'} of lab {result.lab}: {what}"


_FIT: Final = "right results, proven paths, processor time to spare"


def _assert_right(paths: PathsResult) -> None:
    """The run of these paths has the right results."""
    __tracebackhide__ = True
    if paths.wrong:
        observed = many(paths.wrong, "wrong element")
        failed("no verdict rests on this run", expected=_FIT, observed=observed, more=_PATHS)


def _uncounted(run: RunRecord, what: str) -> NoReturn:
    __tracebackhide__ = True
    failed(f"{what} were not counted", expected="a run that counts them", observed="no count", where=[run_text(run)])


def _assert_done(run: RunRecord) -> None:
    """The run came to its end: of another one, only some sizes were measured."""
    __tracebackhide__ = True
    if not run.done:
        failed("the run did not finish", expected="a finished run", observed=run.why_not_done, where=[run_text(run)])


def _assert_fit(run: RunRecord) -> None:
    """A verdict may rest on the run, whatever its figures are."""
    __tracebackhide__ = True
    from heddle.runs.runrecord import unfit

    _assert_done(run)
    found = unfit(run)
    if found is not None and found.kind not in ACCEPTED:
        more = "pytest --heddle-accept-unreliable accepts such runs" if found.kind == "unreliable" else _PATHS
        failed("no verdict rests on this run", expected=_FIT, observed=found.why, where=[run_text(run)], more=more)


def assert_paths_agree(paths: PathsResult) -> None:
    """Prediction, kernel lookup and counters name the same path for every queue pair that sent packets."""
    __tracebackhide__ = True
    if paths.agree:
        return
    wrong = [proof for proof in paths.flows if proof.why]
    lines = [line for proof in wrong[:ROWS] for line in _disagreement(proof)]
    lines += rest(len(wrong) - ROWS, "queue pair") if wrong else list(paths.notes)
    failed(
        "the sources do not agree on the paths",
        expected=f"{paths.source_names} name the same path for {_all(len(paths.flows))}",
        observed=f"they do not for {len(wrong):,} of {many(len(paths.flows), 'queue pair')}"
        if wrong
        else "see the notes below",
        where=lines,
        more=_PATHS,
    )


def _disagreement(proof: FlowProof) -> list[str]:
    flow = proof.flow
    paths = [("kernel lookup", proof.oracle), ("counters", proof.measured)]
    if proof.predicted is not None:
        paths.insert(0, ("prediction", proof.predicted))
    return [
        f"{flow.src} to {flow.dst}, QP {flow.label}, source port {flow.sport}: {proof.why}",
        *(f"  {name:<14}{' '.join(path) or '-'}" for name, path in paths),
    ]


def assert_mmr_below(paths: PathsResult, limit: float, *, by: Literal["bytes", "flows"] = "bytes") -> None:
    """The busiest uplink carries at most `limit` times the mean of the uplinks (MMR, of bytes or of flows).

    Uplinks that were down or drained before the run do not count.
    """
    __tracebackhide__ = True
    _assert_right(paths)
    value = paths.mmr.bytes if by == "bytes" else paths.mmr.flows
    if value is not None and value <= limit:
        return assert_paths_agree(paths)
    links = sorted(paths.uplinks.links, key=lambda link: -getattr(link, by))
    mean = sum(getattr(link, by) for link in links) / len(links) if links else 0.0
    rows = [
        (link.port, f"{link.flows:,}", f"{link.bytes:,}", f"{getattr(link, by) / mean:.2f}" if mean else "-")
        for link in links
    ]
    failed(
        f"the MMR of {by} is above {limit:g}" if value is not None else f"there is no MMR of {by}",
        expected=f"at most {limit:g} ({paths.uplinks.text('switch')})",
        observed=f"{value:g}" if value is not None else "no uplink carried anything",
        where=_table(("uplink", "flows", "bytes", f"{by} / mean"), rows, "uplink"),
        more=_PATHS,
    )


def assert_lossless(subject: RunRecord | QueuesResult | PathsResult) -> None:
    """No packet was dropped: by a queue, between two counters, or at the receiving NIC.

    A RunRecord covers the run, a QueuesResult the test, a PathsResult the packets whose paths it proves.
    """
    __tracebackhide__ = True
    from heddle.lab.queues import QueuesResult
    from heddle.runs.runrecord import RunRecord

    if isinstance(subject, RunRecord):
        return _lossless_run(subject)
    return _lossless_queues(subject) if isinstance(subject, QueuesResult) else _lossless_paths(subject)


def _lossless_run(result: RunRecord) -> None:
    __tracebackhide__ = True
    _assert_fit(result)
    drops = result.lost
    if drops is None or "queues" not in result.parts:
        _uncounted(result, "lost packets")
    if drops:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in drops.items())
        failed(
            "packets were dropped during the run",
            expected="no drop",
            observed=f"{many(sum(drops.values()), 'packet')}: {causes}",
            where=[run_text(result)],
            more=_QUEUES,
        )


def _lossless_queues(result: QueuesResult) -> None:
    __tracebackhide__ = True
    rows = sorted((row for row in result.rows if row.dropped), key=lambda row: -row.dropped)
    if rows:
        shown = [(row.port, str(row.traffic_class), row.kind, f"{row.dropped:,}", ", ".join(row.drops)) for row in rows]
        failed(
            "queues dropped packets",
            expected="no drop",
            observed=f"{many(sum(row.dropped for row in rows), 'packet')} at {many(len(rows), 'queue')}",
            where=_table(("port", "class", "kind", "packets", "cause"), shown, "queue"),
            more=_QUEUES,
        )


def _lossless_paths(paths: PathsResult) -> None:
    __tracebackhide__ = True
    _assert_right(paths)
    found = paths.delivery
    missing = found.counted - found.received if found is not None and found.received is not None else 0
    lost = dict(paths.lost) | ({"after the last counters": missing} if missing > 0 else {})
    if lost:
        rows = [(port, f"{count:,}") for port, count in sorted(lost.items(), key=lambda each: -each[1])]
        failed(
            "packets were lost between two counters",
            expected="every packet that one counter saw is also seen by the next one",
            observed=f"missing: {many(sum(lost.values()), 'packet')}",
            where=_table(("lost after", "packets"), rows, "port"),
            more=_PATHS,
        )
    assert_paths_agree(paths)


def assert_converged(lab: Lab, *, within: float = 30.0, degraded: bool = False) -> None:
    """Every kernel forwards as configured, every BGP session is up, and every daemon answers.

    within: seconds to wait for it. degraded: accept links that are down and drained switches, and expect the routes
    of a fabric without them.
    """
    __tracebackhide__ = True
    wrong = _unconverged(lab, within, degraded=degraded)
    if wrong:
        how = "as a fabric without the links that are down" if degraded else "as configured"
        failed(
            f"the fabric has not converged within {within:g} s",
            expected=f"every kernel forwards {how}, and every daemon answers",
            observed=many(len(wrong), "fault"),
            where=[*wrong[:ROWS], *rest(len(wrong) - ROWS, "fault")],
            more=_STATUS,
        )


def _unconverged(lab: Lab, within: float, *, degraded: bool) -> list[str]:
    """Faults after the wait, one line each: first links, daemons and queues, because routes depend on them."""
    from heddle.lab import facts, linkstate

    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        return list(first_lines(lost))
    late: tuple[Problem, ...] = ()
    try:
        if degraded:
            linkstate.wait(lab, within)
        else:
            lab.wait(timeout=within)
    except CheckError as error:
        late = error.problems
    kinds = ("daemons", "route") if degraded else facts.FACTS
    now = lab.snapshot(facts.parts(lab))
    found = facts.as_set(lab, now, facts.facts(lab, now, kinds))
    return [*(each.text for each in found), *first_lines(late)]


def assert_no_wrong(result: RunRecord) -> None:
    """Every rank has the right result: `#wrong` is 0 for all sizes."""
    __tracebackhide__ = True
    _assert_done(result)
    if not result.rows:
        _uncounted(result, "wrong elements")
    bad = [row for row in result.rows if row.all_wrong]
    if bad:
        failed(
            "the collective gave wrong results",
            expected="0 wrong elements",
            observed=f"{many(result.wrong, 'wrong element')} at {len(bad)} of {many(len(result.rows), 'size')}",
            where=[
                run_text(result),
                *_table(("size", "wrong"), [(f"{row.size:,}", f"{row.all_wrong:,}") for row in bad[:ROWS]], "size"),
            ],
            more=f"./inv runs {result.lab} shows the runs; pytest --heddle-keep leaves the lab up for it",
        )


def assert_busbw_above(result: RunRecord, gb_per_s: float, *, size: int | None = None) -> None:
    """The bus bandwidth is at least `gb_per_s` GB/s, emulated. size: bytes; None: the mean over all sizes."""
    __tracebackhide__ = True
    _assert_fit(result)
    rows = [row for row in result.rows if size is None or row.size == size]
    if not rows:
        known = ", ".join(f"{row.size:,}" for row in result.rows) or "no size"
        wanted = "a size" if size is None else f"{size:,} bytes"
        failed("the run has no such size", expected=f"a row for {wanted}", observed=f"rows for {known}")
    value = sum(row.busbw for row in rows) / len(rows)
    if not value >= gb_per_s:  # NaN
        failed(
            f"the bus bandwidth is below {gb_per_s:g} GB/s",
            expected=f"at least {gb_per_s:g} GB/s (emulated, k = {result.k:,})",
            observed=f"{value:.4g} GB/s",
            where=[
                run_text(result),
                *_table(
                    ("size", "time (us)", "busbw (GB/s)"),
                    [(f"{row.size:,}", f"{row.time_us:,.0f}", f"{row.busbw:.4g}") for row in rows],
                    "size",
                ),
            ],
            more="./inv run prints the whole table; compare figures with the same k only",
        )


def assert_marked_below(result: RunRecord, share: float) -> None:
    """At most this share (0 to 1) of the data packets arrived with ECN's mark CE."""
    __tracebackhide__ = True
    _assert_fit(result)
    packets = sum(flow.sent.packets for flow in result.flows)
    marked = sum(flow.ce for flow in result.flows)
    if not packets:
        _uncounted(result, "packets")
    if marked / packets > share:
        most = sorted((flow for flow in result.flows if flow.ce), key=lambda flow: -flow.ce)
        ends = [(flow.sent.flow, flow.ce, flow.sent.packets) for flow in most]
        rows = [(f"{at.src} to {at.dst}", str(at.qpn), f"{ce:,}", f"{packets:,}") for at, ce, packets in ends]
        failed(
            f"more than {share:.1%} of the packets were marked",
            expected=f"at most {share:.1%} with CE",
            observed=f"{marked / packets:.1%}: {marked:,} of {packets:,} packets",
            where=[run_text(result), *_table(("hosts", "QP", "marked", "packets"), rows, "queue pair")],
            more=_QUEUES,
        )


def assert_depth_below(result: RunRecord, size: str | int) -> None:
    """No switch queue was deeper than this size (`"100KB"`) at any time of the run."""
    __tracebackhide__ = True
    _assert_fit(result)
    from heddle.base.units import format_bytes, parse_size

    limit = parse_size(size)
    from heddle.runs.parts.queues import QueueUse

    used = result.part(QueueUse)
    if used is None:
        _uncounted(result, "depths of queues")
    if used.deepest > limit:
        failed(
            f"a queue was deeper than {format_bytes(limit)}",
            expected=f"at most {format_bytes(limit)} in every queue of a switch",
            observed=f"{format_bytes(used.deepest)}",
            where=[used.deepest_at, run_text(result)],
            more="./inv plot queues draws the depths over time; pytest --heddle-keep leaves the lab up for it",
        )


def assert_no_pauses(result: RunRecord) -> None:
    """No port was paused by PFC during the run."""
    __tracebackhide__ = True
    _assert_fit(result)
    from heddle.runs.parts.queues import QueueUse

    used = result.part(QueueUse)
    if used is None:
        _uncounted(result, "pause frames")
    if used.pauses or used.paused_ports:
        failed(
            "ports were paused",
            expected="no pause frame",
            observed=f"{many(used.pauses, 'pause frame')}; {many(used.paused_ports, 'port')} paused, "
            f"{used.paused_hosts} of them of hosts, {used.paused_ms:,.0f} ms in all",
            where=[run_text(result)],
            more=_QUEUES,
        )


def assert_reliable(result: RunRecord) -> None:
    """The host CPU was not the bottleneck of the run, so its figures describe the fabric."""
    __tracebackhide__ = True
    from heddle.runs.parts.machine import MachineUse

    if result.part(MachineUse) is None:
        _uncounted(result, "processor times")
    if result.limited:
        causes = [cause.text for cause in result.doubts]
        failed(
            "the host CPU was the bottleneck of the run",
            expected="processor time to spare, and no packet lost at sockets",
            observed=many(len(causes), "cause"),
            where=[run_text(result), *causes[:ROWS], *rest(len(causes) - ROWS, "cause")],
            more="lower link.host in the fabric marker, or use fewer ranks; ./inv doctor shows the packet budget",
        )


def _all(count: int) -> str:
    return f"all {count:,} queue pairs" if count != 1 else "the queue pair"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], word: str) -> list[str]:
    """The first rows, and how many more there are. word: for one row."""
    return [*table(header, rows[:ROWS], width=1 << 16).splitlines(), *rest(len(rows) - ROWS, word)]
