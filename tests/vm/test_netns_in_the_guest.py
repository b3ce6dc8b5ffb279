"""Suite netns on the full kernel: tests that need it run in the guest."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.marks import deep
from tests.vm.conftest import Machine

# Of RED, ETS and netem each once: order by strict priority and weight, the curve of marks, delay, jitter, reordering.
QUEUES: Final = "share_by_weight and [ets] or marks_of_red_are_counted or 150-red"
LINKS: Final = "have_left_their_queue or jitter_keeps_the_order or overtake_the_others or cause_naks or cable_times_k"

# Files of tests/netns, the words that choose tests in each, and the least number of tests that must pass.
CHOSEN: Final = (
    ("test_disciplines.py test_ecn.py", QUEUES, 3),
    ("test_link_faults.py test_runs_with_link_faults.py test_link_keys_live.py", LINKS, 5),
    deep("test_disciplines.py test_classes.py", "", 11),
    deep("test_ecn.py", "held and red]", 5),
    deep("test_link_faults.py", "", 12),
    deep("test_runs_with_link_faults.py", "", 9),
    deep("test_marking_picture.py", "", 9),
    deep("test_prediction_exact.py", "", 1),
    ("test_rxe.py", "not deep", 10),
    deep("test_rxe.py", "deep", 4),
    ("test_rxe_interop.py", "not deep", 12),
    deep("test_rxe_interop.py", "deep", 5),
)
APART: Final = "not deep and (all-to-all or obeys or killed or launch)"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("file", "words", "least"), CHOSEN)
def test_tests_of_the_full_kernel_pass_there(machine: Machine, file: str, words: str, least: int) -> None:
    passed_in_the_guest(machine, file, words, least)


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
    done = machine.inv("vm", "ssh", "--", "sh", "-c", script, place="here")
    assert done.returncode == 0, done.stderr


def passed_in_the_guest(machine: Machine, file: str, words: str, least: int) -> None:
    """At least so many of the chosen tests pass there, and none fails."""
    chosen = ("-k", words) if words else ()
    files = [f"tests/netns/{each}" for each in file.split()]
    done = machine.inv("test", "netns", "--", *files, "-q", *chosen, timeout=1200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-2000:]
