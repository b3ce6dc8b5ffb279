"""The short form of `./inv soak`; and that it finds what is left, changed or lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from heddle.base import owners
from heddle.base.events import Silent
from heddle.base.process import run
from tests.soak import soak
from tests.soak.kinds import STEPS

SYSCTL = Path("/proc/sys/net/ipv4/igmp_max_msf")


@pytest.mark.parametrize(
    "times",
    [
        {STEPS: 2, "up": 1},
        pytest.param({"run": 1, "races": 1}, marks=pytest.mark.deep),
        pytest.param({STEPS: 2, "damage": 2, "races": 5, "te": 2, "fault": 2}, marks=pytest.mark.long),
        pytest.param({"down": 2, "experiment": 2, "launch": 2, "agents": 2, "shards": 2}, marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_nothing_is_left_of_what_was_killed(times: dict[str, int]) -> None:
    result = soak(60, Silent(), seed=int(time.time()), times=times)
    assert result.ok, result.text()
    assert dict(result.times) == times and result.sent > 100


@pytest.mark.deep
def test_what_a_removal_forgets_or_disturbs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    removed, forgotten, value = owners.disown_lab, set[str](), SYSCTL.read_text()
    beside = f"kb{os.getpid() % 10**6}"

    def forget(lab: str) -> None:
        """The owner, once; meanwhile a link of the lab beside is down, and a sysctl changes."""
        if lab == beside or lab in forgotten:
            removed(lab)
        else:
            forgotten.add(lab)
            SYSCTL.write_text(f"{int(value) + 1}\n")
            for state in ("down", "up"):
                run(["ip", "-n", f"heddle-{beside}-host1", "link", "set", "eth1", state])
                time.sleep(0.05)

    monkeypatch.setattr(owners, "disown_lab", forget)
    try:
        result = soak(60, Silent(), seed=1, times={"agents": 1})
    finally:
        SYSCTL.write_text(value)
    assert not result.ok and result.left["agents"] == 2 and result.lost["agents"] > 0
    (failure, _) = result.failures
    (lab,) = forgotten
    for text in (
        "round 1, agents (", " killed ", " after the lock of a run",
        f"left: {owners.LOCKS / lab}.json", "left: sysctl net.ipv4.igmp_max_msf = ",
        " packets of the lab beside were lost",
    ):  # fmt: skip
        assert text in failure, failure
