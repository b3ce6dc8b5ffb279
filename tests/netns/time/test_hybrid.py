"""A job that runs live beside a forecast of the others, on a part of the fabric, against the same with all live."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints.workloadfile import load_workload
from heddle.offline.forecast import Ask
from heddle.runs.run import run_workload
from heddle_plugins.time.background import background_of
from tests.conftest import FabricLab

LINK = {"host": "25mbit", "fabric": "25mbit"}
NEEDS = "qps: 2\niters: 4\nwarmup: 1\n"
BOTH = f"""{NEEDS}
jobs:
  a: {{collective: all-reduce, size: 512K, ranks: "0:8:2"}}
  b: {{collective: matrix, matrix: "shift:4", size: 256K, ranks: "1:16:2", repeat: background}}
"""
ALONE = f"{NEEDS}collective: all-reduce\nsize: 512K\nplacement: host1,host3,host5,host7\n"


@pytest.mark.long
def test_a_job_beside_forecast_load_takes_as_long_as_beside_live_load(fabric_lab: FabricLab, tmp_path: Path) -> None:
    both, alone = tmp_path / "both.yml", tmp_path / "alone.yml"
    both.write_text(BOTH)
    whole = fabric_lab(racks=4, ctsw=4, hosts_per_rack=4, link=LINK)
    workload = load_workload(str(both)).workload
    found = background_of(whole.fabric, workload, Ask(), "a", Silent())
    live = run_workload(whole, workload, Silent()).jobs[0]
    zone = fabric_lab(racks=2, ctsw=4, hosts_per_rack=4, link=LINK)
    here = [each for each in found.faults if each.partition(":")[0] in zone.fabric.by_name]
    assert here, "the other job takes a part of its links"
    times = []
    for faults in (here, []):
        listed = "".join(f"\n  - '{each}'" for each in faults)
        alone.write_text(ALONE + (f"fault:{listed}\n" if faults else ""))
        times.append(run_workload(zone, load_workload(str(alone)).workload, Silent()).jobs[0].rows[0].time_us)
    assert live.wrong == 0 and times[0] == pytest.approx(live.rows[0].time_us, rel=0.1)
    assert times[1] < 0.75 * times[0], "without the load it is faster"
