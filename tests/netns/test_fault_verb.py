"""`./inv fault down`, `up`, `drain` and `undrain`: the effect is there when the command ends, and `down` ends it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heddle.base import state
from heddle.kernel.fib import read_fib
from heddle.lab import lifecycle as life
from heddle.lab.facts import known_facts, parts
from heddle.lab.faults import orders
from heddle.lab.lab import Lab
from heddle.lab.linkstate import SECONDS, State, state_of
from heddle.lab.status import status
from tests.conftest import Borrow
from tests.typed import typed

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def tiny(borrow: Borrow) -> Lab:
    return borrow("tiny")


@pytest.fixture(autouse=True)
def restored(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "tiny" in request.fixturenames:
        orders.end_all(request.getfixturevalue("tiny"))


def fault(lab: Lab, *words: str, ends: int = 0) -> dict[str, Any]:
    done = typed("fault", *words, "--lab", lab.name, "--format", "json")
    assert done.returncode == ends, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def hops(lab: Lab, switch: str, rack: int) -> set[str]:
    routes = read_fib(lab.handle(switch)).routes.get(lab.fabric.prefixes[rack], ())
    return {hop.port for hop in routes if not hop.dead}


def test_a_link_goes_down_and_up_by_either_end_and_status_names_the_command(tiny: Lab) -> None:
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    data = fault(tiny, "down", "rtsw1:eth1")
    assert (data["action"], data["names"], data["down"], data["drained"]) == (
        "down",
        ["rtsw1:eth1"],
        ["rtsw1:eth1"],
        [],
    )
    assert hops(tiny, "rtsw1", 2) == {"eth2"}, "the routes were there when the command ended"
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
    assert hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}


def test_a_switch_is_drained_in_one_step_with_others_and_still_listed(tiny: Lab) -> None:
    data = fault(tiny, "drain", "ctsw1")
    assert data["drained"] == ["ctsw1"]
    assert hops(tiny, "rtsw1", 2) == {"eth2"}
    assert "ctsw1 is drained (BGP graceful-shutdown)" in typed("fault", "--lab", tiny.name).stdout
    assert f"./inv fault undrain ctsw1 --lab {tiny.name} ends it" in str(
        known_facts(tiny, tiny.snapshot(parts(tiny)))[0].problem
    )
    assert fault(tiny, "drain", "ctsw*")["drained"] == ["ctsw1", "ctsw2"]
    assert fault(tiny, "undrain", "ctsw1,ctsw2")["drained"] == []
    assert hops(tiny, "rtsw1", 2) == {"eth1", "eth2"}


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("down", "fault down needs a name\n  hint: ./inv fault down rtsw1:eth1"),
        ("undrain", "fault undrain needs a name\n  hint: ./inv fault undrain ctsw1"),
        ("drain host1", "host1 is not a switch of "),
        ("drain cstw1", "did you mean ctsw1?"),
        ("down rtsw1:eth9", "rtsw1:eth9 is not a port of "),
        ("drian ctsw1", "fault drian is not a kind of fault\n  hint: did you mean ./inv fault drain ctsw1?"),
        ("slow-lnk ctsw1 --rate 10%", "fault slow-lnk is not a kind of fault"),
        ("nonsense ctsw1", "fault nonsense is not a kind of fault\n  hint: allowed: down, up, "),
        ("down rtsw1:eth1 --loss 1/2", "down and --loss exclude each other"),
        ("loss rtsw1:eth1", "fault loss needs --rate\n  hint: add --rate 1/256"),
        ("loss rtsw1:eth1 --rate 2", "--loss 2 is more than all packets"),
        ("slow-link rtsw1:eth1", "slow-link needs --rate\n  hint: add --rate 10%"),
        ("slow-link rtsw1:eth1 --duty 1/2 --rate 1", "--duty is not for slow-link\n  hint: slow-link takes --rate"),
        ("rtsw1:eth1 --period 2s", "--period is for a kind of fault\n  hint: write ./inv fault KIND PLACE --period 2s"),
        ("pfc-storm rtsw1", "rtsw1 is not a host of "),
        ("frozen", "fault frozen needs a name\n  hint: ./inv fault frozen ctsw1"),
        ("list rtsw1", "list and rtsw1 exclude each other\n  hint: write ./inv fault list"),
        ("clear rtsw9", "rtsw9 is not a port of "),
        ("bgp-down rtsw1:eth3", "rtsw1:eth3 leads to a host: there is no BGP session"),
        ("flap rtsw1:eth1 --both", "--both is not for flap, which concerns a link"),
        ("up rtsw1:eth1 --clear", "up and --clear exclude each other"),
        ("up rtsw1:eth1 --timeout 0", "--timeout 0 leaves no time to converge"),
    ],
)
def test_wrong_words_change_nothing(tiny: Lab, words: str, said: str) -> None:
    done = typed("fault", *words.split(), "--lab", tiny.name)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert state_of(tiny) == State((), ())


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


def test_down_ends_it_and_a_fabric_of_the_same_name_begins_without(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    try:
        assert typed("up", "tiny", "--name", name).returncode == 0
        assert typed("fault", "down", "rtsw1:eth1", "--lab", name).returncode == 0
        assert typed("fault", "drain", "ctsw2", "--lab", name).returncode == 0
        assert typed("down", name).returncode == 0
        again: subprocess.CompletedProcess[str] = typed("up", "tiny", "--name", name, "--format", "json")
        assert json.loads(again.stdout)["converged"] is True
        assert json.loads(typed("fault", "--lab", name, "--format", "json").stdout)["down"] == []
    finally:
        if state.lab_dir(name).exists():
            life.down(name)
