"""The verb `fault` as people type it: set, both directions, list, replace, clear; and what it refuses, word by word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from heddle.lab import impairments
from heddle.lab.lab import Lab
from heddle.switch.links import delaylines
from tests.typed import typed

pytestmark = pytest.mark.root

WRONG: Final = (
    "--loss 1/256",
    "--both --loss 1/256",
    "--both",
    "rtsw1:eth1 --clear --loss 1/256",
    "rtsw1:eth1 --loss 2 --corrupt often --duplicate 1/0 --delay 5 --jitter fast --reorder -1%",
    "rtsw1:eth1 --loss 0",
    "rtsw1:eth1 --delay 20ms",
    "rtsw1:eth1 --reorder 1%",
    "rtsw1:eth1 --delay 1us --jitter 5us",
    "rtsw1:eth1,rtsw1:eth9,ctws1 --loss 1%",
    "leaf*:eth1 --loss 1%",
    "rtsw1:eth9 --clear",
    "rtsw1:eth9 --both --loss 1%",
    "rtsw1:eth9",
)


@pytest.fixture(autouse=True)
def cleared(tiny: Lab) -> Iterator[None]:
    yield
    impairments.clear_faults(tiny)


def fault(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """The rows that the verb lists afterwards."""
    done = typed("fault", *words, "--lab", lab.name, "--format", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["lab"], data["k"]) == (lab.name, lab.fabric.policy.k)
    return list(data["faults"])


def test_a_fault_is_set_on_one_direction_listed_with_counters_replaced_and_cleared(tiny: Lab) -> None:
    assert fault(tiny) == []
    (row,) = fault(tiny, "rtsw1:eth1", "--loss", "1/256", "--duplicate", "0.5%")
    counts = row.pop("counts")
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    assert row == {"port": "rtsw1:eth1", "peer": peer, "by": "fault", "fault": {"loss": 1 / 256, "duplicate": 0.005}}
    assert set(counts) == {"packets", "lost", "corrupted", "duplicated", "delayed", "waiting"}
    assert [each["fault"] for each in fault(tiny, "rtsw1:eth1", "--corrupt", "1/100")] == [{"corrupt": 0.01}]
    assert fault(tiny, "--clear") == []
    assert impairments.read_faults(tiny) == []


def test_both_sets_and_clears_the_two_directions_of_a_link_and_no_other(tiny: Lab) -> None:
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    fault(tiny, "rtsw2:eth1", "--loss", "1/100")
    fault(tiny, "rtsw1:eth1", "--both", "--loss", "1/256")
    assert {row["port"] for row in fault(tiny)} == {"rtsw1:eth1", peer, "rtsw2:eth1"}
    fault(tiny, peer, "--both", "--clear")
    assert [row["port"] for row in fault(tiny)] == ["rtsw2:eth1"]


def test_ports_are_names_nodes_and_patterns_and_a_list_shows_those_named(tiny: Lab) -> None:
    rows = fault(tiny, "ctsw*:eth1,host2", "--loss", "1/256")
    assert [row["port"] for row in rows] == ["ctsw1:eth1", "ctsw2:eth1", "host2:eth1"]
    assert [row["port"] for row in fault(tiny, "ctsw1")] == ["ctsw1:eth1"]
    assert fault(tiny, "rtsw1") == []
    assert [row["port"] for row in fault(tiny, "ctsw*", "--clear")] == ["host2:eth1"]
    done = typed("fault", "host2", "--clear", "--lab", tiny.name)
    assert "cleared the faults of 1 port\n" in done.stderr
    assert done.stdout.startswith("no fault is set on any link; set one as in ./inv fault ")


def test_wrong_words_are_explained_and_nothing_is_set(tiny: Lab, golden: Callable[[str, str], None]) -> None:
    said = []
    for words in WRONG:
        done = typed("fault", *words.split(), "--lab", tiny.name)
        assert (done.returncode, done.stdout) == (2, "")
        said.append(f"./inv fault {words}\n{done.stderr}".replace(tiny.name, "tiny"))
    assert impairments.read_faults(tiny) == []
    golden("runs/fault_verb.log", "\n".join(said))


@pytest.mark.skipif(not delaylines.missing(), reason="this kernel has sch_netem")
def test_without_netem_a_delay_ends_with_exit_code_3_and_the_place_that_has_it(tiny: Lab) -> None:
    done = typed("fault", "rtsw1:eth1", "--delay", "10us", "--lab", tiny.name)
    assert (done.returncode, done.stdout) == (3, "")
    assert "a delay on a link is not possible: this kernel has no sch_netem" in done.stderr
    assert "--place vm" in done.stderr
    assert fault(tiny) == []
