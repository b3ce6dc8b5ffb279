"""A part of a lab's nodes for each CPU: what comes back, and what a part does that fails."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.wiring import Node
from heddle.lab import spread

NODES = load_fabric("demo").fabric.nodes


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_LEAST_PORTS", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


def test_parts_are_done_by_copies_of_the_process_and_their_results_are_in_the_order_of_the_nodes() -> None:
    found = spread.in_processes(lambda part: (os.getpid(), [node.name for node in part]), NODES)
    assert len({pid for pid, _ in found}) == len(found) == 3
    assert [name for _, names in found for name in names] == [node.name for node in NODES]
    assert min(sum(len(node.ports) for node in NODES if node.name in names) for _, names in found) > 10


@pytest.mark.parametrize("end", ["raise", "kill"])
def test_a_part_that_fails_is_done_again_here_and_its_error_is_raised(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, fork, copies = os.getpid(), os.fork, list[int]()

    def noted() -> int:
        copies.append(pid := fork())
        return pid

    monkeypatch.setattr(os, "fork", noted)

    def work(part: Sequence[Node]) -> str:
        if part[-1] != NODES[-1]:
            return ""
        if end == "kill" and os.getpid() != here:
            os.kill(os.getpid(), 9)
        raise InputError(Problem(part[-1].name, "the kernel", "cannot be read"))

    with pytest.raises(InputError, match="cannot be read") as caught:
        spread.in_processes(work, NODES)
    assert caught.value.problems[0].where == NODES[-1].name
    assert len(copies) == 2
    for pid in copies:  # none is left as a zombie
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
