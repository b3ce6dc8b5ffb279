"""Packets that switches trimmed, as a cause of a slow run.

In:  a Case. Out: CauseResult.
"""

from __future__ import annotations

from typing import Final

from heddle.base.tables import many
from heddle_plugins.engineering.diagnosis.case import Case, CauseResult, Finding, Observation

_LINES: Final = 3  # of evidence


def trimmed(case: Case) -> CauseResult:
    """The buffer of a switch was too small for the traffic, which trimming made cheap: the port that trimmed most."""
    if not case.traffic:
        return CauseResult(unknown="the run left no counters")
    ports = {port: [each for each in rows.values() if each.trimmed] for port, rows in case.traffic[0].tallies.items()}
    heads = {port: sum(each.trimmed for each in rows) for port, rows in ports.items() if rows}
    if not heads:
        return CauseResult(ruled_out="no switch trimmed a packet")
    worst, source = max(heads, key=lambda port: heads[port]), case.traffic[0].source
    share = heads[worst] / sum(each.offered for each in ports[worst])
    lines = [Observation(f"{port} trimmed {many(count, 'packet')}", source) for port, count in heads.items()][:_LINES]
    node = worst.partition(":")[0]
    what = f"the buffer of {node} was too small: {worst} trimmed {share:.0%} of the packets of their class"
    return CauseResult((Finding("trimmed", worst, what, "established", tuple(lines), tuple(heads.keys() - {worst})),))
