"""What workshop units 06 and 07 do with hosts that are containers: unit 01 is taken through containers as a whole.

In unit 06 a program of the host's image, its Python, sends a pause frame. Unit 07 has runs with admission and DCQCN.
"""

from __future__ import annotations

import shlex

import pytest
import yaml

from heddle.base import resources
from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.past import paths_of
from heddle.runs.run import run
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import run_options
from tests.netns.pfc_lab import until

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
LOSSLESS = 3


def test_a_program_of_a_host_pauses_its_switch(tiny: Lab) -> None:
    solution = yaml.safe_load((resources.HERE.content(resources.LABS) / "06-pfc/solution.yml").read_text())
    (typed,) = (each["run"] for each in solution["commands"] if "./inv exec" in each["run"])
    _, _, _, *command = shlex.split(typed)
    port = tiny.fabric.by_name["host1"].ports[0]
    with LabQueues.pinned(tiny.fabric) as queues:
        row = queues.ids[port.peer_node, port.peer_port] * 8 + LOSSLESS
        paused_ns = queues.agent["paused_ns"]
        before = int(paused_ns[row])
        assert tiny.exec("host1", command) == 0
        until(lambda: paused_ns[row] > before)  # counted when the pause is over


def test_runs_have_admission_and_dcqcn(tiny: Lab) -> None:
    result = run(tiny, run_options(size="256K", iters=2, admission="on", dcqcn="on"), Silent())
    assert result.wrong == 0
    assert result.admission is not None
    assert paths_of(tiny).agree
