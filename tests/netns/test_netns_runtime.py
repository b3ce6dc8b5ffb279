"""The namespace runtime on topologies written by hand: what goes wrong is named by node, link and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.base.process import Journal
from heddle.runtimes.registry import get_runtime

Create = Callable[[str], None]

PAIR = """
name: x
topology:
  nodes:
    n1: {kind: linux, exec: ["ip addr add 10.1.0.0/31 dev eth1"]}
    n2: {kind: linux, exec: ["ip addr add 10.1.0.1/31 dev eth1", "sh -c 'echo up > /proc/self/comm'"]}
  links:
    - endpoints: ["n1:eth1", "n2:eth1"]
      mtu: 4200
"""


@pytest.fixture
def create(lab_name: Callable[[], str], tmp_path: Path) -> Iterator[Create]:
    """Create a topology's namespaces; they are gone after the test."""
    name = lab_name()
    runtime = get_runtime("netns")

    def make(text: str) -> None:
        path = tmp_path / "x.clab.yml"
        path.write_text(text)
        runtime.create(name, path, Journal(), Silent())
        runtime.start(name, path, Journal(), Silent())

    yield make
    runtime.destroy(name, Silent())
    assert not runtime.exists(name)


def test_a_topology_without_frr_runs(create: Create) -> None:
    create(PAIR)


ADDRESS = "10.1.0.300/31"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            PAIR + '    - endpoints: ["n1:eth1", "n2:eth2"]\n',
            r"n1:eth1 to n2:eth2  ip link add eth1 netns .*File exists",
        ),
        (PAIR.replace("10.1.0.0/31", ADDRESS), rf"n1  ip addr add {ADDRESS} dev eth1 failed: .*{ADDRESS}"),
        (
            PAIR.replace("n1: {", 'n1: {sysctls: {net.ipv4.nonsense: "1"}, '),
            r"n1  net\.ipv4\.nonsense=1 cannot be set",
        ),
        (
            PAIR.replace("n1: {", 'n1: {binds: ["file:/opt/nosuch/file"], '),
            r"n1  bind /opt/nosuch/file cannot be provided",
        ),
        (
            PAIR.replace("echo up > /proc/self/comm", "echo no luck; exit 4"),
            r"n2  sh -c .* failed with exit code 4: no luck",
        ),
    ],
    ids=["a link", "an address", "a sysctl", "a bind", "a command"],
)
def test_what_cannot_be_done_is_named(create: Create, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=problem):
        create(text)
