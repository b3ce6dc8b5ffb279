"""Commands that Heddle runs: what an error names when one fails or takes too long."""

from __future__ import annotations

import pytest

from heddle.base.problems import MachineError
from heddle.base.process import run


def failure(*argv: str, called: str = "", timeout: float = 20.0) -> str:
    with pytest.raises(MachineError) as failed:
        run(argv, called=called, timeout=timeout)
    return str(failed.value)


def test_a_command_that_takes_too_long_is_ended_and_the_error_says_what_to_try() -> None:
    hint = "\n  hint: uptime shows how busy this machine is: end other work, then try again"
    assert failure("sleep", "60", timeout=0.1) == f"sleep 60 did not end within 0.1 s{hint}"
    said = failure("sleep", "60", called="tiny: the start of 3 nodes", timeout=0.1)
    assert said == f"tiny: the start of 3 nodes did not end within 0.1 s{hint}"


def test_a_command_that_fails_is_named_with_its_first_lines() -> None:
    assert failure("sh", "-c", "echo no >&2; exit 4") == "sh -c 'echo no >&2; exit 4' failed with exit code 4: no"
    assert failure("false", called="the start of 3 nodes") == (
        "the start of 3 nodes failed with exit code 1: it printed nothing"
    )
