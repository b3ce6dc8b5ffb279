"""The runs of labs as tables of at most 100 columns, and as JSON; the comparison of two; the choices of a tuner run.

In:  for each lab its kept runs, oldest first, and the limits; or a Comparison.
Out: one table per lab, and below it why runs failed, were interrupted or cannot be read; for a comparison settings that
differ, ratios with verdicts, notes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from heddle.base.units import emulated_words, format_bytes, format_size
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison, Ratio
    from heddle.runs.curve import Shapes
    from heddle.runs.store import Limits
    from heddle.runs.stored import StoredRun
    from heddle.runs.tuning import Tuning

_HEADER: Final = (
    "id", "when (UTC)", "collective", "ranks", "size", "qps", "hashing", "busbw", "wrong", "agree", "bytes",
)  # fmt: skip
_RIGHT: Final = ("ranks", "qps", "busbw", "wrong", "bytes")
_ALGORITHM, _HASHING = _HEADER.index("collective"), _HEADER.index("hashing")
UNKNOWN: Final = "-"
_MOST: Final = {_ALGORITHM: 20, _HASHING: 11}  # largest width of columns with long words
_CELL: Final = 32  # letters of a setting's value
VERDICTS: Final = {"same": "same", "noise": "noise", "differs": "differs", "unknown": "not known"}


def runs_json(kept: Mapping[str, Sequence[StoredRun]], keep: Limits, removed: Sequence[str]) -> dict[str, Any]:
    """`runs`, oldest first, and `keep`: the limits. busbw is of the largest size, in GB/s, emulated."""
    rows = [_row(run, last=run is _last(runs)) for runs in kept.values() for run in runs]
    return {"runs": rows, "keep": {"runs": keep.runs, "bytes": keep.bytes}, "removed": list(removed)}


def _last(runs: Sequence[StoredRun]) -> StoredRun | None:
    """The run that verbs read when the user names none."""
    return next((run for run in reversed(runs) if not run.interrupted), None)


def _row(run: StoredRun, *, last: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"id": run.id, "lab": run.lab, "last": last, "bytes": run.bytes, "path": str(run.path)}
    if run.damage:
        return {**row, "state": "unreadable", "why": [run.damage]}
    record, options = run.record, run.record.options
    row |= {
        "state": record.state,
        "why": list(record.failure),
        "when": record.when, "seconds": record.seconds, "fabric": record.fabric,
        "ranks": len(record.ranks), "hashing": record.ecmp, **({"launch": list(record.launch)} if record.launch else {
            "collective": options.collective, "algorithm": options.algorithm, "sizes": list(options.sizes),
            "qps": options.qps, "qp_mode": options.qp_mode, "iters": options.iters, "transport": options.transport,
        }),
        "emulated": {"k": record.k}, "heddle": record.heddle,
        **({"job": record.job} if record.job else {}), **({"workload": record.workload} if record.workload else {}),
    }  # fmt: skip
    if not record.done:
        return row | ({"measured": [asdict(each) for each in record.rows]} if record.rows else {})
    proof = record.proof
    figures: dict[str, Any] = {"exit_code": record.exit_code, "warnings": list(record.warnings)}
    if not record.launch:
        figures = {
            "busbw": record.largest.busbw, "wrong": record.wrong, "machine_limited": record.limited,
            "unreliable": [asdict(cause) for cause in record.doubts],
        }  # fmt: skip
    return {
        **row, **figures,
        "agree": proof.agree if proof and proof.qps else None,
        "mmr": {"flows": proof.mmr_flows, "bytes": proof.mmr_bytes} if proof else None,
    }  # fmt: skip


def runs_text(kept: Mapping[str, Sequence[StoredRun]], keep: Limits, removed: Sequence[str]) -> str:
    """One block per lab."""
    parts = [f"removed run {', '.join(removed)}"] if removed else []
    parts += [_block(lab, runs, keep) for lab, runs in kept.items()]
    return "\n\n".join(parts) or "no lab exists, so there are no runs; run ./inv up zone to start one"


def _block(lab: str, runs: Sequence[StoredRun], keep: Limits) -> str:
    if not runs:
        return f"lab {lab}: no run yet; run ./inv run --lab {lab} --collective all-reduce"
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    total = format_bytes(sum(run.bytes for run in runs))
    most = f"{keep.runs} run{'' if keep.runs == 1 else 's'}, {format_bytes(keep.bytes)}"
    head = f"lab {lab}: {count}, {total} (limits: {most})"
    scales = dict.fromkeys(run.record.k for run in runs if not run.damage)
    units = f"busbw: GB/s of the largest size, emulated, k = {', '.join(map(str, scales))}"
    foot = [f"{units}; agree: all paths proven"] if scales else []
    if any(_limited(run) for run in runs):
        foot.append("*: unreliable: the host CPU was or may have been the bottleneck; --format json has the reasons")
    why = [line for run in runs for line in _reasons(run)]
    return "\n".join([head, *_table([_cells(run) for run in runs]), *foot, *why])


def _reasons(run: StoredRun) -> list[str]:
    if run.damage:
        said = f"{run.id} cannot be read: {run.damage}"
    elif run.record.interrupted:
        said = (
            f"{run.id} partial: {'; '.join(run.record.failure)}, so busbw is of size {_size(run.record.largest.size)}"
        )
    elif not run.record.done:
        said = f"{run.id} failed: {'; '.join(each.partition(chr(10))[0] for each in run.record.failure)}"
    elif run.record.exit_code:
        said = ": ".join((f"{run.id} exit code {run.record.exit_code}", *run.record.warnings[:1]))
    else:
        return []
    return textwrap.wrap(said, WIDTH, subsequent_indent="     ")


def _cells(run: StoredRun) -> tuple[str, ...]:
    size = format_bytes(run.bytes)
    if run.damage:
        return (run.id, *[UNKNOWN] * (len(_HEADER) - 3), "error", size)
    record, options = run.record, run.record.options
    when = record.when.removesuffix("Z").replace("T", " ")[5:16]
    what = f"{record.title}: " * bool(record.title) + record.work
    sizes, qps = ("-", "-") if record.launch else (_sizes(options.sizes), str(options.qps))
    setup = (run.id, when, what, str(len(record.ranks)), sizes, qps, record.ecmp)
    return (*setup, *_results(run), size)


def _results(run: StoredRun) -> tuple[str, str, str]:
    record = run.record
    if record.interrupted:
        return (f"{record.largest.busbw:.4g}", str(record.wrong), "partial")
    if not record.done:
        return (UNKNOWN, UNKNOWN, "failed")
    proof = record.proof  # of no flow, when a program sent nothing: that is no proof
    agree = UNKNOWN if proof is None or not proof.qps else "yes" if proof.agree else "NO"
    if record.launch:
        return ("-", "-", agree)
    return (f"{record.largest.busbw:.4g}{'*' if record.limited else ''}", str(record.wrong), agree)


def _limited(run: StoredRun) -> bool:
    """Whether the host CPU may have been the bottleneck, not the fabric."""
    return not run.damage and run.record.limited


def _sizes(sizes: Sequence[int]) -> str:
    """`64K`, or `64K:16M` for several, as the user types them."""
    return ":".join(_size(size) for size in dict.fromkeys((sizes[0], sizes[-1])))


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, with two spaces between them; one where two would be too wide."""
    cut = [[_short(text, _MOST.get(at, WIDTH)) for at, text in enumerate(row)] for row in rows]
    cells = [list(_HEADER), *cut]
    sizes = [max(len(row[at]) for row in cells) for at in range(len(_HEADER))]
    gap = "  " if sum(sizes) + 2 * (len(sizes) - 1) <= WIDTH else " "
    return [
        gap.join(
            text.rjust(size) if name in _RIGHT else text.ljust(size)
            for text, size, name in zip(row, sizes, _HEADER, strict=True)
        ).rstrip()
        for row in cells
    ]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def ratio_name(ratio: Ratio) -> str:
    """`busbw 64 KiB`, or the figure alone where it is of the whole run."""
    return ratio.figure if ratio.size is None else f"{ratio.figure} {format_size(ratio.size)}"


def number_text(value: float | None) -> str:
    """A figure of a run."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def how_judged() -> str:
    """How noise is judged, in sentences."""
    from heddle.runs.compare import LEAST  # only here: `./inv runs` needs none of it
    from heddle.runs.noise import STEADY

    return (
        "differs: the equal runs of A and of B in the history would show such a difference by chance with p of at most "
        f"0.05; noise: a larger p. Without enough equal runs, a time within {STEADY:.0%} is noise, as two identical "
        "runs can differ by that; it differs outside the 95 % interval of the iterations of both runs (Welch's test), "
        "if each QP had one path. MMR differs if all paths are fixed, also with a busy host CPU. not known: all else, "
        f"fewer than {LEAST} iterations, or a run with wrong data, unproven paths or a bottleneck of the host CPU. "
        "Make five runs of each setting to know."
    )


def compare_text(found: Comparison) -> str:
    """All of it."""
    from heddle.runs.compare import DESPITE

    lines = [_which("A", found.a), _which("B", found.b), ""]
    if found.settings:
        lines.append(f"{'setting':<34} {'A':<{_CELL}} B")
        lines += [f"{row.name:<34.34} {_setting(row.a):<{_CELL}} {_setting(row.b)}".rstrip() for row in found.settings]
    else:
        lines.append("no setting differs")
    lines += ["", f"{'figure':<24} {'unit':<15} {'A':>14} {'B':>14} {'B/A':>8}  verdict"]
    for row in found.ratios:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
        values = f"{number_text(row.a):>14} {number_text(row.b):>14} {ratio:>8}"
        lines.append(f"{ratio_name(row):<24.24} {row.unit:<15.15} {values}  {VERDICTS[row.verdict]}")
    lines.append("")
    whys: dict[tuple[str, str], list[str]] = {}
    for row in found.ratios:
        if row.verdict in ("unknown", "differs") or row.why.startswith(DESPITE):
            whys.setdefault((VERDICTS[row.verdict], row.why), []).append(ratio_name(row))
    k = found.a.record.k
    said = [f"emulated, k = {k}: {emulated_words(k)}", how_judged()]
    names = ("A", "B") if len(found.equal) > 1 else ("A and B",)
    equal = ", ".join(f"{count} of {name}" for name, count in zip(names, found.equal, strict=False))
    said.append(f"equal runs in the history: {equal}")
    if any(row.means for row in found.ratios):
        means = ", ".join(ratio_name(row) for row in found.ratios if row.means)
        said.append(f"A, B and B/A are means of the equal runs of A and of B: {means}")
    if found.left_out:
        said.append(f"not compared, because only one run has them: {', '.join(found.left_out)}")
    said += [f"{verdict}: {', '.join(names)}: {why}" for (verdict, why), names in whys.items()]
    for line in (*said, *(f"note: {note}" for note in found.notes)):
        lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _which(name: str, run: StoredRun) -> str:
    from heddle.views.linkloads import describe_run

    text = f"{name} = run {run.id} of lab {run.record.lab}: {describe_run(run.record)}"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="    "))


def _setting(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."


def shapes_text(found: Shapes) -> str:
    """All of it."""
    lines = []
    for name, curve in (("A", found.a), ("B", found.b)):
        ranks = f", {curve.ranks} ranks" if curve.ranks else ""
        scale = f", emulated, k = {curve.k}" if curve.k else ""
        lines.append(f"{name} = {curve.name}: {curve.collective or 'collective not known'}{ranks}{scale}")
    lines += ["", f"{'size':>10} {'A GB/s':>12} {'B GB/s':>12} {'A share':>9} {'B share':>9} {'B - A':>8}"]
    lines += [
        f"{format_size(each.size):>10} {each.a:>12.4g} {each.b:>12.4g} {each.a_share:>9.1%} {each.b_share:>9.1%} "
        f"{100 * each.apart:>+8.1f}"
        for each in found.points
    ]
    halves, most = found.half_sizes, found.farthest
    said = [
        "Only the shapes are compared: a share is of the largest busbw of its own curve. Heights are of different "
        "machines. B - A is in percentage points.",
        f"Half of the largest busbw: A from {format_size(halves[0])} on, B from {format_size(halves[1])} on.",
        f"The shapes differ most at {format_size(most.size)}: {100 * abs(most.apart):.1f} points.",
    ]
    if found.left_out:
        sizes = ", ".join(map(format_size, found.left_out))
        said.append(f"not compared, because only one of them has it: {sizes}")
    said += [f"note: {each}" for each in found.notes]
    lines.append("")
    for text in said:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


_VERDICTS: Final = {
    "differs": "better", "noise": "no difference beyond noise", "same": "no difference", "unknown": "not known",
}  # fmt: skip


def tuning_text(found: Tuning) -> str:
    """One table; below it which number of QPs the file is for, and reasons."""
    lines = [f"{found.collective} on {found.fabric}: {found.nodes} nodes, {found.ranks} ranks, hashing {found.hashing}"]
    lines.append(f"{'size':>10} {'time (us)':>12} {'busbw':>9}  {'best':<28} {'margin':>8}  verdict")
    whys: dict[str, list[str]] = {}
    for each in found.best():
        margin = "-" if each.margin is None else f"{each.margin:.1%}"
        figures = f"{format_size(each.size):>10} {each.best.time_us:>12,.1f} {each.best.busbw:>9.4g}"
        lines.append(f"{figures}  {each.best.setting.text:<28} {margin:>8}  {_VERDICTS[each.verdict]}")
        if each.verdict == "unknown":
            whys.setdefault(each.why, []).append(format_size(each.size))
    lines.append("")
    said = [
        f"emulated, k = {found.k}: {emulated_words(found.k)}. The margin is what the second best takes longer.",
        f"NCCL sets QPs for the whole job: the file is for NCCL_IB_QPS_PER_CONNECTION={found.qps}, "
        + ("the best over all sizes." if found.decided else "which is not decided: no difference beyond noise."),
        *filter(None, [found.assumed]),
        *(f"not known at {', '.join(sizes)}: {why}" for why, sizes in whys.items()),
    ]
    if len({(each.setting.algorithm, each.setting.channels) for each in found.points}) == 1:
        said.append("The file has no lines: one algorithm with one number of channels is no choice; use --channels.")
    for text in said:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)
