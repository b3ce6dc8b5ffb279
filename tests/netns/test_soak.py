"""The short form of `./inv soak`; and that it finds what is left, changed or lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from heddle.base import owners
from heddle.base.events import Silent
from heddle.base.process import run
from tests.soak import soak
from tests.soak.kinds import CHANGE, STEPS
from tests.soak.leaks import Leaks
from tests.soak.memory import kernel_mb_of, own_group, trouble

SYSCTL = Path("/proc/sys/net/ipv4/igmp_max_msf")


@pytest.mark.parametrize(
    "times",
    [
        {STEPS: 2, "up": 1},
        pytest.param({"run": 1, "races": 1}, marks=pytest.mark.deep),
        pytest.param({STEPS: 2, "damage": 2, "races": 5, "te": 2, "fault": 2}, marks=pytest.mark.long),
        pytest.param({"down": 2, "experiment": 2, "launch": 2, "agents": 2, "shards": 2}, marks=pytest.mark.long),
        pytest.param({CHANGE: 4}, marks=pytest.mark.long),
        pytest.param({"memory": 4}, marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_nothing_is_left_of_what_was_killed(times: dict[str, int]) -> None:
    if "memory" in times and (why := trouble()):
        pytest.skip(why)
    result = soak(60, Silent(), seed=int(time.time()), times=times)
    assert result.ok, result.text()
    # A kill may come too late, thrice, where the machine's pace changes: that shows nothing of Heddle.
    assert any(result.times.values()) and result.times.keys() <= times.keys() and result.sent > 100


GROWS = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * int(line))
    print(len(kept), flush=True)
"""


def test_a_process_that_grows_by_4_mb_an_hour_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes; a sample comes each minute of a clock that is ahead."""
    leaks, now, pipe = Leaks(), time.monotonic(), subprocess.PIPE
    with ExitStack() as stack:
        both = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", GROWS], stdin=pipe, stdout=pipe, text=True))
            for _ in range(2)
        ]
        for minute in range(60):
            for process, size in zip(both, (0, 70_000), strict=True):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{size}\n")
                process.stdin.flush()
                process.stdout.readline()
            monkeypatch.setattr(time, "monotonic", lambda at=now + 60 * minute: at)
            leaks.sample({name: process.pid for name, process in zip(("still", "grows"), both, strict=True)})
            monkeypatch.undo()
        for process in both:
            process.kill()
    found = {each.what: each for each in leaks.slopes()}
    assert found["still"].verdict == "ok" and found["grows"].verdict == "LEAK", found
    assert found["grows"].value == pytest.approx(60 * 70_000 / 2**20, rel=0.1)


KEEPS = """
import ctypes
kept = []
for line in iter(input, ""):
    for _ in range(int(line)):
        ctypes.CDLL(None).unshare(0x40000000)  # CLONE_NEWNET
        kept.append(open("/proc/self/ns/net"))
    print(len(kept), flush=True)
"""


def test_namespaces_that_are_left_are_charged_to_the_soak_and_those_of_others_are_not() -> None:
    if why := trouble():
        pytest.skip(why)
    with ExitStack() as stack:

        def keeper() -> subprocess.Popen[str]:
            argv, pipe = [sys.executable, "-c", KEEPS], subprocess.PIPE
            return stack.enter_context(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))

        def grown(process: subprocess.Popen[str]) -> float:
            assert group is not None and process.stdin is not None and process.stdout is not None
            before = kernel_mb_of(group)
            process.stdin.write("40\n")
            process.stdin.flush()
            process.stdout.readline()
            return kernel_mb_of(group) - before

        other = keeper()
        group = stack.enter_context(own_group())
        ours = keeper()
        stack.callback(lambda: [each.communicate("\n") for each in (other, ours)])
        assert grown(ours) > 1 > abs(grown(other))


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
