"""What happened to the learner's long run: whether the link was up before it, and what was lost and retransmitted."""

from __future__ import annotations

from heddle_plugins.workshop.observe import NotDoneError, Seen, UnitLab, run_facts


def through(lab: UnitLab) -> Seen:
    """Facts of the last run with at least 50 iterations. NotDoneError when there is none."""
    record = lab.last_run(iters=">= 50")
    state = record.fabric_state
    if state is None:
        raise NotDoneError(f"run {record.id} has no state of the fabric before and after it")
    before, after = state.before.converged, state.after.converged
    facts = run_facts(record)
    return Seen(
        {
            "before": "converged" if before else "degraded",
            "failed": before and (not after or bool(state.changed)),
            "lost": facts.get("drops", 0),
            "wrong": facts["wrong"],
            "qps": facts["qps"],
            "placement": facts["placement"],
        },
        f"run {record.id}",
        record.id,
    )
