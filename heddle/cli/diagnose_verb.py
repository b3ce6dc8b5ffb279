"""The verb `diagnose`: from a run to a cause, with evidence."""

from __future__ import annotations

from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    group="Results",
    help={"no_probes": "send no packets: judge only what was recorded, and the state of the lab"},
    root=True,
    tool=Tool(
        "Find why a run was slow or failed: a cause with its object, how certain it is, the evidence, and what was "
        "ruled out. Sends probes over all paths of a running lab when counters do not decide.",
        runs=("run",),
    ),
)
def diagnose(out: Console, lab: str | None = None, run: str | None = None, no_probes: bool = False) -> None:
    """Find why a run was slow or failed: a cause, its evidence, and what was ruled out.

    The run is the last one, or --run ID; while a run is measured, the lab is watched for a second instead. It reads
    counters, states, queues and times, and never the record of faults that were set. Where they do not decide, it
    sends probes over every link. The exit code is 0 with and without a cause, and 2 without a run.
    """
    from heddle.engineering.diagnosis.diagnosis import diagnose as judge
    from heddle.lab.opening import open_lab
    from heddle.runs.store import History
    from heddle.views.diagnosistext import diagnosis_text

    where = open_lab(lab)
    history = History.of(where)
    watched = run is None and history.writing()
    stored = None if watched else history.open(run)
    found = judge(stored, where, None if no_probes or watched else out.observer)
    out.result(found.to_json(), diagnosis_text(found))
