"""How much slower a live run was than its own forecast: a factor for forecasts of the same congestion control.

In:  a stored run. Out: Calibration: live time over forecast, and the sentence that says where it comes from.
The factor has all that a forecast leaves out: rate control, queues, pauses, acknowledgements. It is that of one run on
one fabric, and is printed wherever it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.base.events import Silent
from heddle.base.problems import InputError, Problem
from heddle.fabric.hashmodes import PREDICTED
from heddle.offline.forecast import Ask
from heddle.runs.runrecord import unfit
from heddle.runs.store import open_runs
from heddle.traffic.workload import Workload
from heddle_plugins.time.forecast import time_forecast


@dataclass(frozen=True, slots=True)
class Calibration:
    """factor: links carry 1 / factor of their rate."""

    factor: float
    text: str


def calibration(word: str) -> Calibration:
    """Of a run, as `compare` names it. InputError for one that measured nothing alone, or cannot be trusted."""
    (run,) = open_runs([word])
    record, fabric = run.result, run.needed(run.fabric)
    why = "was a job beside others" if record.beside else "was a program" if record.launch else ""
    if why := why or ("had faults" if record.options.faults else ""):
        raise InputError(Problem("", f"--calibrate {word}", why, "name a run of one collective, alone, without faults"))
    if found := unfit(record):
        raise InputError(Problem("", f"--calibrate {word}", f"is not to be trusted: {found.why}", "run it again"))
    state = record.fabric_state
    if state is not None and state.word != "converged":
        raise InputError(Problem("", f"--calibrate {word}", f"ran on a fabric that was {state.word}", "run it again"))
    if state is not None and (faults := state.before.link_text() or state.after.link_text()):
        raise InputError(Problem("", f"--calibrate {word}", f"ran with faults of links: {faults}", "remove them first"))
    mode = record.ecmp if record.ecmp in PREDICTED else None
    made = time_forecast(fabric, Workload.of(record.options), Ask(mode=mode), Silent(), gains=False)
    largest = max(record.rows, key=lambda row: row.size)
    factor = largest.time_us / 1e6 / next(each.seconds for each in made.jobs[0].sizes if each.size == largest.size)
    control = record.options.congestion
    text = (
        f"rates are divided by {factor:.3f}: {run.what} (congestion control {control}, {len(record.ranks)} ranks) took "
        f"{factor:.3f} times its forecast"
    )
    return Calibration(factor, text)
