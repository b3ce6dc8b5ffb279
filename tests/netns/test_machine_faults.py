"""The machine fails in the middle of a verb: netlink, open files. Every verb ends with a sentence, and the lab
is as before, or can be repaired, or goes down without a trace.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from heddle.kernel.netlink import RouteSocket
from heddle.lab import health
from tests.typed import typed

Leftovers = Callable[[str], list[str]]
SMALL = ("tiny", "--set", "racks=1", "--set", "ctsw=1", "--set", "hosts_per_rack=1")
VERBS = (
    ("status", "NAME"),
    ("run", "--lab", "NAME", "--size", "64K", "--iters", "1"),
    ("fault", "down", "rtsw1:eth1", "--lab", "NAME"),
    ("fault", "clear", "--lab", "NAME"),
    ("queues", "set", "ecn.kmin=42KB", "--lab", "NAME"),
    ("hashing", "e-ecmp", "--lab", "NAME"),
    ("validate", "NAME"),
)
EVERY = 7  # of the messages of a verb, in the long form


class Netlink:
    """The messages to the kernel, counted; from one of them on they fail. Half of the time it alone fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self.at = 0, 0
        self._lock, send = Lock(), RouteSocket._send

        def failing(netlink: RouteSocket, requests: Sequence[tuple[int, bytes]], flags: int) -> None:
            with self._lock:
                self.count += 1
                fails = self.at and (self.count == self.at or (self.at % 2 == 0 and self.count > self.at))
            if fails:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            send(netlink, requests, flags)

        patch.setattr(RouteSocket, "_send", failing)

    @contextmanager
    def failing(self, at: int) -> Iterator[None]:
        """Fail at this message of a with block; 0 for none."""
        self.count, self.at = 0, at
        try:
            yield
        finally:
            self.at = 0


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch) -> Netlink:
    return Netlink(monkeypatch)


def sentence(name: str, *words: str, why: str) -> int:
    """The exit code of a verb, which must come with a sentence, and not with a report of a defect."""
    words = tuple(word.replace("NAME", name) for word in words)
    done = typed(*words)
    said = f"{' '.join(words)} with {why}: exit code {done.returncode}\n{done.stderr}"
    assert done.returncode in range(4) and "Traceback" not in said, said
    assert done.returncode == 0 or done.stderr.strip(), said
    return done.returncode


def up_and_down(name: str, why: str, leftovers: Leftovers, broken: Any) -> None:
    """`up` while something is broken leaves nothing, or a lab with which the next `up` goes on.

    It leaves one where its own removal failed, too.
    """
    with broken:
        code = sentence(name, "up", *SMALL, "--name", "NAME", why=why)
    sentence(name, "status", why=f"after {why}")
    if code and leftovers(name):
        assert sentence(name, "up", *SMALL, "--name", "NAME", "--repair", why=f"an up with {why} before") == 0
    typed("down", name)
    assert leftovers(name) == [], why


def test_netlink_that_fails_in_the_middle_of_up_leaves_nothing(
    name: str, netlink: Netlink, leftovers: Leftovers, long_form: bool
) -> None:
    with netlink.failing(0):
        assert sentence(name, "up", *SMALL, "--name", "NAME", why="nothing") == 0
        whole = netlink.count
    typed("down", name)
    assert whole > 10
    for at in range(1, whole + 1, EVERY) if long_form else (1, whole // 3, whole * 2 // 3):
        up_and_down(name, f"message {at} of {whole} refused", leftovers, netlink.failing(at))


def test_a_lab_whose_last_reading_fails_is_removed(
    name: str, netlink: Netlink, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = health.settled

    def failing(*words: Any) -> Any:
        with netlink.failing(1):
            return settled(*words)

    monkeypatch.setattr(health, "settled", failing)
    assert sentence(name, "up", *SMALL, "--name", "NAME", why="its last reading refused") == 3
    assert leftovers(name) == []


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "whole"])
def long_form(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.long
def test_netlink_that_fails_in_the_middle_of_a_verb_leaves_a_lab_that_can_be_repaired(
    name: str, netlink: Netlink, leftovers: Leftovers
) -> None:
    assert typed("up", "tiny", "--name", name).returncode == 0
    for words in VERBS:
        with netlink.failing(0):
            sentence(name, *words, why="nothing")
            whole = netlink.count
        for at in range(1, whole + 1, max(EVERY, whole // 12)):
            with netlink.failing(at):
                sentence(name, *words, why=f"message {at} of {whole} refused")
        sentence(name, "fault", "clear", "--lab", "NAME", why="faults")
        assert sentence(name, "up", "--repair", "--name", "NAME", why="a fault of netlink before") == 0
    with netlink.failing(2):
        typed("down", name)
    typed("down", name)
    assert leftovers(name) == []


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """This process and its children may open so many files beside those that are open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
def test_too_few_open_files_are_reported(name: str, leftovers: Leftovers) -> None:
    for more in (0, 1, 2, 3, 5, 8, 12, 20, 40):
        up_and_down(name, f"{more} files", leftovers, few_files(more))
    assert typed("up", "tiny", "--name", name).returncode == 0
    for words in VERBS:
        for more in (0, 1, 3, 6, 10, 20):
            with few_files(more):
                sentence(name, *words, why=f"{more} files")
        sentence(name, "fault", "clear", "--lab", "NAME", why="faults")
        assert sentence(name, "up", "--repair", "--name", "NAME", why="few files before") == 0
    for more in (0, 2, 5, 9):
        with few_files(more):
            sentence(name, "down", "NAME", why=f"{more} files")
    typed("down", name)
    assert leftovers(name) == []
