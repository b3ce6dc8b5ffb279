"""Suite netns on the full kernel: tests that need it run in the guest (`./inv test vm -- -m deep`).

None guards a commit: by TCG they take minutes, and a guest that hangs would end the gate. `./inv test netns --on vm`
runs the whole suite there, which takes hours by TCG.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.marks import deep
from tests.vm.conftest import Machine

# Files of tests/netns, the words that choose tests in each, and the least number of tests that must pass.
CHOSEN: Final = (
    deep("test_disciplines.py", "", 6),
    deep("test_link_keys_live.py", "cable_times_k", 1),
    deep("test_link_faults.py", "", 10),
    deep("test_runs_with_link_faults.py", "", 9),
    deep("test_prediction_exact.py", "", 1),
    deep("test_rxe.py", "", 13),
    deep("test_trimming_ends.py test_trimming_live.py", "", 10),
    deep("test_rxe_interop.py", "", 4),
)
APART: Final = "all-to-all or obeys or killed or launch"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("files", "words", "least"), CHOSEN)
def test_tests_of_the_full_kernel_pass_there(machine: Machine, files: str, words: str, least: int) -> None:
    passed_in_the_guest(machine, files, words, least)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_soft_roce_runs_where_each_namespace_has_devices_of_its_own(machine: Machine) -> None:
    assert machine.inv("down", "--all").returncode == 0
    try:
        set_rdma_mode(machine, "exclusive")
        passed_in_the_guest(machine, "test_rxe.py", APART, 5)
    finally:
        set_rdma_mode(machine, "shared")


def set_rdma_mode(machine: Machine, mode: str) -> None:
    """The kernel refuses until the last network namespace but the first is gone, which takes it some time."""
    script = f"for i in $(seq 60); do rdma system set netns {mode} && exit 0; sleep 1; done; exit 1"
    done = machine.ssh("sh", "-c", script)
    assert done.returncode == 0, done.stderr


def passed_in_the_guest(machine: Machine, files: str, words: str, least: int) -> None:
    """At least so many of the chosen tests pass there, and none fails."""
    chosen = ("-k", words) if words else ()
    paths = [f"tests/netns/{each}" for each in files.split()]
    done = machine.inv("test", "netns", "--", *paths, "-q", "--durations=10", *chosen, timeout=1200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-2000:]
