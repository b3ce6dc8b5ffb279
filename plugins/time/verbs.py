"""What `./inv predict --time` prints."""

from __future__ import annotations

from dataclasses import replace

from heddle.cli.console import Console
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask
from heddle.traffic.workload import Workload


def predict_time(out: Console, fabric: Fabric, workload: Workload, ask: Ask, calibrate: str | None = None) -> None:
    """Forecast, and print the result. calibrate: a run whose time over its own forecast divides the rates."""
    from heddle_plugins.time.calibration import calibration
    from heddle_plugins.time.forecast import time_forecast
    from heddle_plugins.time.text import render

    known = None if calibrate is None else calibration(calibrate)
    result = time_forecast(fabric, workload, ask, out.observer, factor=known.factor if known else 1.0)
    if known:
        result = replace(result, notes=(known.text, *result.notes), factor=known.factor)
    out.result(result.to_json() if out.json else {}, render(result))
