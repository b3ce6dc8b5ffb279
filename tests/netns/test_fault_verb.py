"""The verb `fault`: links and switches, and packets. The effect is there when the command ends, and `down` ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from heddle.lab import lifecycle as life
from heddle.lab.facts import known_facts, parts
from heddle.lab.faults import orders, packets
from heddle.lab.lab import Lab
from heddle.lab.linkstate import SECONDS, State, state_of
from heddle.lab.status import status
from heddle.switch.links import portfaults
from tests.netns.live import document, fault, next_hops
from tests.typed import typed


@pytest.fixture(autouse=True)
def restored(tiny: Lab) -> Iterator[None]:
    yield
    orders.end_all(tiny)


def test_a_link_goes_down_and_up_by_either_end_and_status_names_the_command(tiny: Lab) -> None:
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    data = fault(tiny, "down", "rtsw1:eth1")
    wanted = {"action": "down", "names": ["rtsw1:eth1"], "down": ["rtsw1:eth1"], "drained": []}
    assert wanted.items() <= data.items()
    assert next_hops(tiny, "rtsw1", 2) == {"eth2"}, "the routes were there when the command ended"
    (row,) = status(tiny.name)
    assert not row.converged and row.faults == ("rtsw1:eth1  the link is down on purpose",)
    hint = f"./inv fault up rtsw1:eth1 --lab {tiny.name} sets it up"
    assert hint in str(known_facts(tiny, tiny.snapshot(parts(tiny)))[0].problem)
    listed = typed("fault", "--lab", tiny.name).stdout
    assert listed.startswith("rtsw1:eth1 is down\n\nno fault of packets is set on any link")
    done = typed("fault", "up", peer, "--lab", tiny.name)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{peer} is up; BGP and all kernels followed in ")
    assert done.stdout.endswith("now: no link is down, and no switch is drained\n")
    assert next_hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}


def test_a_switch_is_drained_in_one_step_with_others_and_still_listed(tiny: Lab) -> None:
    data = fault(tiny, "drain", "ctsw1")
    assert data["drained"] == ["ctsw1"]
    assert next_hops(tiny, "rtsw1", 2) == {"eth2"}
    assert "ctsw1 is drained" in typed("fault", "--lab", tiny.name).stdout
    assert f"./inv fault undrain ctsw1 --lab {tiny.name} ends it" in str(
        known_facts(tiny, tiny.snapshot(parts(tiny)))[0].problem
    )
    assert fault(tiny, "drain", "ctsw*")["drained"] == ["ctsw1", "ctsw2"]
    assert fault(tiny, "undrain", "ctsw1,ctsw2")["drained"] == []
    assert next_hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}


def test_all_links_of_a_switch_and_the_link_of_a_host_go_down(tiny: Lab) -> None:
    assert fault(tiny, "down", "ctsw1", "host1")["down"] == ["rtsw1:eth3", "ctsw1:eth1", "ctsw1:eth2"]
    assert fault(tiny, "up", "host1", "ctsw1:eth1")["down"] == ["ctsw1:eth2"]


def test_what_does_not_follow_in_time_is_undone_and_ends_with_1(tiny: Lab) -> None:
    (problem, *_) = fault(tiny, "down", "rtsw1:eth1", "--timeout", "0.000001", ends=1)["error"]["problems"]
    assert "1e-06 s" in str(problem)
    assert state_of(tiny) == State((), ())
    fault(tiny, "drain", "ctsw1", "--timeout", "0.000001", ends=1)
    assert state_of(tiny) == State((), ())


def test_a_link_that_is_down_inside_its_host_is_not_reported_as_up(tiny: Lab) -> None:
    tiny.output("host1", ["ip", "link", "set", "eth1", "down"])
    try:
        (problem,) = fault(tiny, "up", "host1", ends=1)["error"]["problems"]
        assert (problem["where"], problem["what"], problem["why"]) == ("host1:eth1", "the link", "is still down")
    finally:
        life.repair_lab(tiny.name)  # a host loses its routes with its port


def test_shells_offer_actions_then_ports_or_switches(tiny: Lab) -> None:
    import tasks
    from heddle.cli.completion import candidates

    def offered(*words: str) -> list[str]:
        return candidates(["./inv", "fault", "--lab", tiny.name, *words], {"fault": tasks.fault.verb}, [])

    assert {"down", "up", "drain", "undrain", "rtsw1"} <= set(offered(""))
    assert offered("drain", "") == ["rtsw1", "rtsw2", "ctsw1", "ctsw2"]
    assert "rtsw1:eth1" in offered("down", "rtsw1")


def test_the_time_to_wait_is_written_once() -> None:
    import tasks

    (timeout,) = (each for each in tasks.fault.verb.parameters if each.word == "timeout")
    assert timeout.option.help.endswith(f"(default: {SECONDS:g})")


@pytest.mark.deep
def test_down_ends_it_and_a_fabric_of_the_same_name_begins_without(name: str) -> None:
    for words in ("up tiny --name", "fault down rtsw1:eth1 --lab", "fault drain ctsw2 --lab", "down"):
        assert typed(*words.split(), name).returncode == 0
    assert document("up", "tiny", "--name", name)["converged"] is True
    assert document("fault", "--lab", name)["down"] == []


def rows_after(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """Faults of packets that the verb lists afterwards."""
    data = fault(lab, *words)
    assert (data["lab"], data["k"]) == (lab.name, lab.fabric.policy.k)
    return list(data["faults"])


def test_a_fault_is_set_on_one_direction_listed_with_counters_replaced_and_cleared(tiny: Lab) -> None:
    assert rows_after(tiny) == []
    (row,) = rows_after(tiny, "rtsw1:eth1", "--loss", "1/256", "--duplicate", "0.5%")
    counts = row.pop("counts")
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    assert row == {"port": "rtsw1:eth1", "peer": peer, "by": "fault", "fault": {"loss": 1 / 256, "duplicate": 0.005}}
    assert set(counts) == {"packets", "lost", "corrupted", "duplicated", "delayed", "waiting"}
    assert [each["fault"] for each in rows_after(tiny, "rtsw1:eth1", "--corrupt", "1/100")] == [{"corrupt": 0.01}]
    assert rows_after(tiny, "--clear") == []
    assert packets.read_faults(tiny) == []


def test_both_sets_and_clears_the_two_directions_of_a_link_and_no_other(tiny: Lab) -> None:
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    rows_after(tiny, "rtsw2:eth1", "--loss", "1/100")
    rows_after(tiny, "rtsw1:eth1", "--both", "--loss", "1/256")
    assert {row["port"] for row in rows_after(tiny)} == {"rtsw1:eth1", peer, "rtsw2:eth1"}
    rows_after(tiny, peer, "--both", "--clear")
    assert [row["port"] for row in rows_after(tiny)] == ["rtsw2:eth1"]


def test_ports_are_names_nodes_and_patterns_and_a_list_shows_those_named(tiny: Lab) -> None:
    rows = rows_after(tiny, "ctsw*:eth1,host2", "--loss", "1/256")
    assert [row["port"] for row in rows] == ["ctsw1:eth1", "ctsw2:eth1", "host2:eth1"]
    assert [row["port"] for row in rows_after(tiny, "ctsw1")] == ["ctsw1:eth1"]
    assert rows_after(tiny, "rtsw1") == []
    assert [row["port"] for row in rows_after(tiny, "ctsw*", "--clear")] == ["host2:eth1"]
    done = typed("fault", "host2", "--clear", "--lab", tiny.name)
    assert "cleared the faults of 1 port\n" in done.stderr
    assert done.stdout.startswith("no fault of packets is set on any link; set one as in ./inv fault ")


@pytest.mark.skipif(not portfaults.missing(), reason="this kernel has sch_netem")
def test_without_netem_a_delay_ends_with_exit_code_3_and_the_place_that_has_it(tiny: Lab) -> None:
    done = typed("fault", "rtsw1:eth1", "--delay", "10us", "--lab", tiny.name)
    assert (done.returncode, done.stdout) == (3, "")
    assert "a delay on a link is not possible: this kernel has no sch_netem" in done.stderr
    assert "--on vm" in done.stderr
    assert rows_after(tiny) == []
