"""The choices of a tuner run as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from heddle.base.units import emulated_words, format_size
from heddle.views.style import WIDTH

if TYPE_CHECKING:
    from heddle.runs.tuning import TunerChoice, Tuning

_VERDICTS: Final = {
    "differs": "better", "noise": "no difference beyond noise", "same": "no difference", "unknown": "not known",
}  # fmt: skip


def tuning_text(found: Tuning) -> str:
    """One table; below it which number of QPs the file is for, and reasons."""
    lines = [f"{found.collective} on {found.fabric}: {found.nodes} nodes, {found.ranks} ranks, hashing {found.hashing}"]
    lines.append(f"{'size':>10} {'time (us)':>12} {'busbw':>9}  {'best':<28} {'margin':>8}  verdict")
    lines += map(_row, found.best())
    lines.append("")
    whys: dict[str, list[str]] = {}
    for each in found.best():
        if each.verdict == "unknown":
            whys.setdefault(each.why, []).append(format_size(each.size))
    said = [
        f"emulated, k = {found.k}: {emulated_words(found.k)}. The margin is what the second best takes longer.",
        f"NCCL sets QPs for the whole job: the file is for NCCL_IB_QPS_PER_CONNECTION={found.qps}, "
        + ("the best over all sizes." if found.decided else "which is not decided: no difference beyond noise."),
        *(f"not known at {', '.join(sizes)}: {why}" for why, sizes in whys.items()),
    ]
    if len({(each.setting.algorithm, each.setting.channels) for each in found.points}) == 1:
        said.append("The file has no lines: one algorithm with one number of channels is no choice; use --channels.")
    for text in said:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _row(each: TunerChoice) -> str:
    row, margin = each.best.row, "-" if each.margin is None else f"{each.margin:.1%}"
    figures = f"{format_size(each.size):>10} {row.time_us:>12,.1f} {row.busbw:>9.4g}"
    return f"{figures}  {each.best.setting.text:<28} {margin:>8}  {_VERDICTS[each.verdict]}"
