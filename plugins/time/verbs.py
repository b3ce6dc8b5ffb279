"""What `./inv predict --time` prints."""

from __future__ import annotations

from dataclasses import replace

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask
from heddle.traffic.workload import Workload
from heddle.views.graph import write_file


def predict_time(
    out: Console, fabric: Fabric, workload: Workload, ask: Ask, calibrate: str | None = None, flows: str | None = None,
    background: str | None = None,
) -> None:  # fmt: skip
    """Forecast, and print the result. calibrate: a run whose time over its own forecast divides the rates.

    flows: a file for all messages, of a kind that its name says. background: a job, for what the others leave it.
    """
    from heddle_plugins.time.background import background_of
    from heddle_plugins.time.calibration import calibration
    from heddle_plugins.time.forecast import time_forecast
    from heddle_plugins.time.messages import check_name, file_of
    from heddle_plugins.time.text import background_text, render

    if background is not None:
        if others := [f"--{word}" for word, value in (("calibrate", calibrate), ("flows", flows)) if value is not None]:
            raise InputError(Problem("", others[0], "is not for --background", "leave one of them out"))
        found = background_of(fabric, workload, ask, background, out.observer)
        return out.result(found.to_json(), background_text(found))
    if flows is not None:
        check_name(flows)
    known = None if calibrate is None else calibration(calibrate)
    factor = known.factor if known else 1.0
    result = time_forecast(fabric, workload, ask, out.observer, factor=factor, log=flows is not None)
    if known:
        result = replace(result, notes=(known.text, *result.notes))
    text = render(result)
    if flows is not None and result.messages is not None:
        written = file_of(flows, result.messages, fabric.policy.ib_mtu)
        write_file(real(flows), written.encode(), flows, flag="--flows")
        text += f"\n\nwrote {flows}"
    return out.result({**result.to_json(), "written": flows} if out.json else {}, text)
