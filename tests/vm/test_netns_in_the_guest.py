"""Suite netns on the full kernel: tests that need it run in the guest."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.marks import deep
from tests.vm.conftest import Machine

# Files of tests/netns, the words that choose tests in each, and the least number of tests that must pass.
CHOSEN: Final = (
    # Shares of classes and marks over time need a processor that serves each packet in time; TCG is too slow for that.
    deep("test_disciplines.py", "not share and not closed_gate and not counted", 5),
    deep("test_prediction_exact.py", "", 1),
    ("test_rxe.py", "", 6),
    ("test_rxe_interop.py", "", 11),
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("file", "words", "least"), CHOSEN)
def test_tests_of_the_full_kernel_pass_there(machine: Machine, file: str, words: str, least: int) -> None:
    chosen = ("-k", words) if words else ()
    done = machine.inv("test", "netns", "--", f"tests/netns/{file}", "-q", *chosen, timeout=1200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-2000:]
