"""What `./inv predict --time` prints."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask
from heddle.traffic.workload import Workload


def predict_time(out: Console, fabric: Fabric, workload: Workload, ask: Ask) -> None:
    """Forecast, and print the result."""
    from heddle_plugins.time.forecast import time_forecast
    from heddle_plugins.time.text import render

    result = time_forecast(fabric, workload, ask, out.observer)
    out.result(result.to_json() if out.json else {}, render(result))
