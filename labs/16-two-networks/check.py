"""How much of its bandwidth training keeps beside another job, and how much longer ingestion takes with fewer hosts."""

from __future__ import annotations

from heddle.runs.runrecord import RunRecord
from heddle_plugins.workshop.observe import NotDoneError, Seen, UnitLab


def beside(lab: UnitLab) -> Seen:
    """The best of the last three runs beside other jobs, in percent of the best one alone; 0 without one alone."""
    runs = [each for each in lab.runs if each.options.collective == "all-reduce"]
    together = [each for each in runs if each.beside]
    if not together:
        raise NotDoneError("no training was run beside another job")
    last = together[-1]
    same = [each for each in together if each.workload == last.workload]
    alone = [each.largest.busbw for each in runs if not each.beside and each.options.sizes == last.options.sizes]
    # A busy machine only makes a run slower.
    percent = 100 * max(each.largest.busbw for each in same[-3:]) / max(alone) if alone else 0
    return Seen({"workload": last.workload, "percent": round(percent, 1)}, f"run {last.id}", last.id)


def half(lab: UnitLab) -> Seen:
    """The servers of the last ingestion, and its time over the shortest one with all of them; 0 without such a run."""
    runs = [each for each in lab.runs if each.options.collective == "ingest" and not each.beside]
    if not runs:
        raise NotDoneError("no run of ingest was made")
    last = runs[-1]
    full = {word: len(lab.lab.fabric.servers(word)) for word in ("storage", "preprocess")}
    whole = [each for each in runs if _servers(each) == full and each.options.sizes == last.options.sizes]
    times = last.largest.time_us / min(each.largest.time_us for each in whole) if whole else 0
    return Seen({**_servers(last), "times": round(times, 2)}, f"run {last.id}", last.id)


def _servers(record: RunRecord) -> dict[str, int]:
    return {word: sum(end.serves == word for end in record.ranks) for word in ("storage", "preprocess")}
