"""How many packets are trimmed where senders use NSCC, compared with senders without it."""

from __future__ import annotations

from heddle.runs.figures import FIGURES
from heddle_plugins.workshop.observe import Seen, UnitLab


def nscc(lab: UnitLab) -> Seen:
    """Trims of the last incast with NSCC, in percent of those of the last one without."""
    without = lab.last_run(ranks=4, transport="srd", congestion="none", trims="> 0")
    last = lab.last_run(ranks=4, transport="srd", congestion="nscc")
    trims = [FIGURES["trims"].of(each) or 0 for each in (last, without)]
    facts = {"trims": int(trims[0]), "percent": round(100 * trims[0] / trims[1]), "wrong": last.wrong}
    return Seen({**facts, "timeouts": last.counters.get("timeouts", 0)}, f"runs {without.id} and {last.id}", last.id)
