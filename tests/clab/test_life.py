"""One lab of containers from `up` to `down`, with processes of it killed, and its record lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.traffic.options import run_options
from tests.conftest import Up
from tests.machine import until
from tests.netns.test_pfc_life import both, found, kill_both

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(99)"


def test_a_lab_survives_what_is_killed_and_goes_down_without_its_record(
    name: str, up: Up, leftovers: Callable[[str], list[str]]
) -> None:
    lab = up(name).lab
    for victim in (0, 1):  # the agent of PFC, and its keeper
        before = both(lab)[victim]
        os.kill(before, signal.SIGKILL)
        until(lambda: found(lab)[victim] not in (before, None))  # noqa: B023
    kill_both(lab)
    assert run(lab, run_options(size="64K", iters=1), Silent()).wrong == 0
    both(lab)

    lab.output("rtsw1", ["sh", "-c", "kill -9 $(cat /run/frr/zebra.pid)"])
    until(lambda: status(name)[0].faults == ("rtsw1  zebra does not answer",))
    with pytest.raises(CheckError, match=r"rtsw1  zebra does not answer\n.*\./inv up --repair"):
        up(name)
    assert lab.exec("rtsw1", ["sh", "/etc/frr/start.sh"]) == 0
    until(lambda: health.faults(lab) == [])

    argv = ["nsenter", f"--net={lab.handle('host1').netns}", sys.executable, "-c", STUBBORN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        subprocess.run(["rm", "-rf", str(state.lab_dir(name))], check=True)
        with pytest.raises(InputError, match=f"down {name}"):
            up(name)
        assert life.down(name)
        assert process.wait(5) == -signal.SIGKILL
    assert leftovers(name) == []
