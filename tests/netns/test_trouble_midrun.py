"""What disappears or changes in mid-run ends the run with its reason, or labels it; then no path is proven."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from heddle.base import owners, process
from heddle.base.events import Silent
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError
from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.outages import link_down
from heddle.lab.rehash import restore_hashing, set_hashing
from heddle.lab.status import status
from heddle.runs.parts.machine import MachineUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History, paths_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan
from heddle.views.pathstext import paths_text
from tests.machine import patience, until
from tests.marks import deep, long
from tests.netns.collectives import proven, run_and, workers
from tests.netns.live import failed, in_node

LIMIT_S = patience(4.0)  # of a run, from the start of its workers
SOON_S = patience(45.0)  # far less than the ten minutes after which a run counts as hung
QP = r"rank \d on host\d:eth1: QP 0x[0-9a-f]+ (to|from) rank \d on host\d:eth1: "
UNACKNOWLEDGED = QP + r"no acknowledgement after 2 retries of 0\.268 s \(last good PSN 0x[0-9a-f]+\)"
CTS = QP + r"(its clear-to-send \(CTS\) packets: )?no acknowledgement after 2 retries of 0\.268 s \(last good PSN 0x"
WAITS = r"waits for \d+ of 192 messages, .* from rank \d on host\d:eth1 \(QP 0x[0-9a-f]+: last good PSN 0x[0-9a-f]+\)"


@pytest.fixture
def own(name: str) -> Lab:
    """A lab that a test may damage."""
    return life.up(load_fabric("tiny", name=name)).lab


@pytest.fixture
def whole(tiny: Lab) -> Iterator[Lab]:
    """The module's lab, with the hashing of its file. It is repaired after the test."""
    restore_hashing(tiny)
    yield tiny
    life.repair_lab(tiny.name)


def ended(lab: Lab, change: Callable[[], object], **more: Any) -> HeddleError:
    """The error of a run in which something changes; it ends soon, and leaves no worker."""
    options: dict[str, Any] = {"sizes": (16 << 20,), "iters": 1, "warmup": 0, "timeout": 16, "retries": 2}
    began = time.monotonic()
    with pytest.raises(HeddleError) as caught:
        run_and(lab, RunOptions(**{**options, **more}), change)
    assert time.monotonic() - began < SOON_S
    assert workers() == []
    return caught.value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fastpath": "on"}, UNACKNOWLEDGED),
        long({"fastpath": "off"}, UNACKNOWLEDGED),
        deep({"transport": "srd", "own": {"entropy": 4}}, UNACKNOWLEDGED),
        deep({"admission": True}, CTS),
        ({"transport": "uc"}, rf"rank \d on host\d:eth1: {WAITS}, but no packet moves any more"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_link_of_a_host_that_goes_down_ends_the_run(
    tiny: Lab, options: dict[str, Any], why: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "up"]))
    error = ended(tiny, lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "down"]), **options)
    assert isinstance(error, CheckError)
    error_has(error, why)
    hint = "use --transport rc, or ./inv queues" if "transport" in options and options["transport"] == "uc" else "run ."
    assert error.problems[0].hint.startswith(hint)


def test_a_link_that_is_down_before_a_run_is_named(tiny: Lab, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "up"]))
    tiny.output("rtsw2", ["ip", "link", "set", "eth3", "down"])
    with pytest.raises(CheckError, match="rank 2 on host3:eth1: its link is down at host3:eth1 or at rtsw2:eth3\n"):
        run(tiny, RunOptions(sizes=(1 << 16,), iters=1, warmup=0), Silent())
    assert workers() == []


@pytest.mark.deep
def test_a_worker_that_is_stopped_for_a_while_makes_the_run_unreliable(tiny: Lab) -> None:
    def stop() -> None:
        worker = workers()[0]
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(worker, signal.SIGCONT)

    result = run_and(tiny, RunOptions(sizes=(4 << 20,), iters=6, warmup=0, timeout=20), stop)
    assert result.wrong == 0
    stopped = [cause for cause in result.doubts if cause.cause == "stopped"]
    assert [cause.number for cause in stopped] == [0]
    (phase,) = result[MachineUse].phases
    assert 1.5 < phase.workers[0].stopped * phase.workers[0].seconds < 2.5
    assert phase.workers[1].stopped == 0
    assert f"UNRELIABLE: 4 MiB: {stopped[0].text}" in result.table()


@pytest.mark.parametrize(("sent", "transport"), [(signal.SIGKILL, "rc"), long(signal.SIGTERM, "uc")])
def test_a_worker_that_ends_by_a_signal_ends_the_run(tiny: Lab, sent: signal.Signals, transport: str) -> None:
    error = ended(tiny, lambda: os.kill(workers()[0], sent), transport=transport)
    assert isinstance(error, MachineError)
    assert str(error).startswith(f"the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 was ended by {sent.name}\n")
    assert len(error.problems) == 2, "the other worker still knows what it waits for"
    error_has(error, rf"rank [13] on host\d:eth1: {WAITS}$")


@pytest.mark.long("10 seconds and more")
def test_a_worker_that_does_not_move_ends_the_run_at_its_limit(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "max_seconds", LIMIT_S)
    error = ended(tiny, lambda: os.kill(workers()[0], signal.SIGSTOP), transport="uc")
    assert isinstance(error, CheckError)
    first, silent, waits = error.problems
    assert str(first).startswith(f"the run did not end within {LIMIT_S:g} s\n")
    assert str(silent) == "the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 did not answer within 2 s"
    error_has(CheckError(waits), rf"rank [13] on host\d:eth1: {WAITS}$")


@pytest.mark.deep
def test_a_port_that_is_removed_ends_the_run(own: Lab) -> None:
    error = ended(own, lambda: own.output("host3", ["ip", "link", "del", "eth1"]))
    assert isinstance(error, CheckError)
    error_has(error, rf"rank 2 on host3:eth1: its port is gone: .*; it {WAITS}|{UNACKNOWLEDGED}")


@pytest.mark.deep
@pytest.mark.parametrize("fastpath", ["on", long("off")])
def test_a_port_whose_mtu_becomes_small_ends_the_run(whole: Lab, fastpath: str) -> None:
    change = ["ip", "link", "set", "eth1", "mtu", "1500"]
    error = ended(whole, lambda: whole.output("host3", change), fastpath=fastpath)
    assert isinstance(error, CheckError)
    error_has(error, "rank 2 on host3:eth1: its port has a smaller MTU than its packets")
    assert "is gone" not in str(error)


@pytest.mark.deep
def test_a_run_outlives_the_name_of_a_host_namespace_and_the_next_one_names_the_host(own: Lab) -> None:
    """The sockets of the NICs keep the namespace until the run ends. Then the kernel removes it."""
    name = own.handle("host3").netns.name
    options = RunOptions(sizes=(16 << 20,), iters=1, warmup=0)
    assert run_and(own, options, lambda: process.run(["ip", "netns", "del", name])).wrong == 0
    assert workers() == []
    with pytest.raises(HeddleError, match="host3"):
        run(own, options, Silent())


@pytest.mark.deep
def test_a_leaf_whose_bgpd_ends_ends_the_run(whole: Lab) -> None:
    """Its peers withdraw the routes to its hosts; the transport must not wait for them."""
    error = ended(whole, lambda: os.kill(int(whole.output("rtsw2", ["cat", "/run/frr/bgpd.pid"])), signal.SIGKILL))
    error_has(error, UNACKNOWLEDGED)


def error_has(error: HeddleError, pattern: str) -> None:
    assert re.search(pattern, str(error), re.MULTILINE), str(error)


LONG_RUN = RunOptions(qps=4, sizes=(1 << 21,), iters=4, warmup=0, placement="cyclic")  # two seconds at line rate


def test_a_mode_is_switched_in_the_middle_of_a_run_and_its_paths_are_not_called_proven(tiny: Lab) -> None:
    set_hashing(tiny, "flow")
    result = run_and(tiny, LONG_RUN, lambda: set_hashing(tiny, "e-ecmp"))
    assert result.wrong == 0
    proof = paths_of(tiny)
    assert not proof.agree
    assert proof.notes[0].startswith("hashing was changed during the run, so no path follows one rule: rtsw1, rtsw2")
    assert paths_text(proof).startswith("NOT PROVEN")


@pytest.mark.deep
def test_there_and_back_is_noticed_too(tiny: Lab) -> None:
    """Under spray all that e-ecmp does lies within the ways that there are."""
    set_hashing(tiny, "spray")

    def there_and_back() -> None:
        set_hashing(tiny, "e-ecmp", switches=["rtsw1"])
        set_hashing(tiny, "spray", switches=["rtsw1"])

    assert run_and(tiny, LONG_RUN, there_and_back).wrong == 0
    proof = paths_of(tiny)
    assert not any(row.why for row in proof.flows)
    assert not proof.agree
    assert proof.notes[0].endswith(": rtsw1")
    assert paths_text(proof).startswith("NOT PROVEN: the paths of 16 QPs")
    assert run(tiny, RunOptions(sizes=(4096,), iters=1), Silent()).wrong == 0
    proven(tiny)


def test_a_lab_whose_hashing_is_being_switched_is_not_taken_down_under_it(tiny: Lab) -> None:
    busy = pytest.raises(InputError, match="is being worked on by another Heddle")
    with owners.lock(tiny.name, owners.CHANGES), busy:
        life.down(tiny.name)
    assert open_lab(tiny.name).fabric == tiny.fabric


SHORT = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)
LONG = RunOptions(sizes=(4 << 20,), iters=4, warmup=0)  # two seconds at line rate


def labelled(own: Lab, result: RunRecord) -> dict[str, Any]:
    """The result's `fabric_state`; it is also in the table, in the warnings and in the record."""
    data = result.to_json()
    state: dict[str, Any] = data["fabric_state"]
    assert (state["state"] == "converged") == (data["warnings"] == []) == ("#fabric" not in result.table())
    record = History.of(own).open("last").record
    assert record.fabric_state == result.fabric_state
    return state


@pytest.mark.long
def test_the_label_of_a_run_is_the_state_of_the_fabric(whole: Lab) -> None:
    """Converged; with a link down; converged again; with a link that goes down during the run; with a dead bgpd."""
    state = labelled(whole, run(whole, SHORT, Silent()))
    assert (state["state"], state["before"]["converged"], state["after"]["converged"]) == ("converged", True, True)
    with link_down(whole, "rtsw1:eth1"):
        (row,) = status(whole.name)
        assert not row.converged
        result = run(whole, SHORT, Silent())
    state = labelled(whole, result)
    assert (state["state"], state["before"]["faults"]) == ("degraded", list(row.faults))
    assert "rtsw1:eth1" in result.warnings[0]
    assert labelled(whole, run(whole, SHORT, Silent()))["state"] == "converged", "the label goes with the fault"

    # By hand: a fault of Heddle's waits for the lock that the run holds.
    def break_two() -> None:
        whole.output("ctsw2", ["tc", "qdisc", "del", "dev", "eth1", "root"])
        whole.output("rtsw1", ["ip", "link", "set", "eth1", "down"])

    result = run_and(whole, LONG, break_two)
    repair(whole, Silent())
    state = labelled(whole, result)
    assert state["before"]["converged"] and not state["after"]["converged"] and state["changed"]
    missing = "rtsw1:eth1  the link is down; ctsw2:eth1  the root qdisc is missing"
    assert result.warnings[0].startswith(f"the fabric changed during the run, and is degraded now: {missing}")

    whole.wait()
    os.kill(int(whole.output("ctsw1", ["cat", "/run/frr/bgpd.pid"])), signal.SIGKILL)
    until(lambda: not status(whole.name)[0].converged)
    result = run(whole, SHORT, Silent())
    assert labelled(whole, result)["state"] == "degraded"
    assert "ctsw1  bgpd does not answer" in result.warnings[0]
    assert "#fabric   : degraded before this run (ctsw1  bgpd does not answer)" in result.table()


def test_a_wrong_route_that_stays_is_found_though_all_paths_agree(whole: Lab) -> None:
    """Prediction, kernel and packets follow it, before the run and after it. Only the fabric does not have it."""
    address = whole.fabric.by_name["host3"].ports[0].address
    assert address is not None
    stray = f"{address.ip}/32"
    in_node(whole, "rtsw1", f"ip route add {stray} via 169.254.0.1 dev eth2 onlink")
    said = f"{stray} over eth2 is not a route of the fabric and overrides 10.0.1.0/24"
    (block,) = re.findall(r"egress_block (\d+)", in_node(whole, "ctsw1", "tc qdisc show dev eth1"))
    for node, words in (
        ("rtsw1", "class change dev eth3 parent 1: classid 1:1 htb rate 20mbit burst 8400b"),
        ("ctsw1", f"filter del block {block} pref 20"),  # of all its ports
    ):
        whole.output(node, ["tc", *words.split()])
    (row,) = status(whole.name)
    slow, bare = "is shaped to 20mbit, not 100mbit", "has ingress:dequeue as port "
    programs = (f"ctsw1:eth{number}  the port {bare}" for number in (1, 2))
    faults = (f"rtsw1:eth3  the port {slow}", *programs, f"rtsw1  {said}")
    assert not row.converged and all(map(str.startswith, row.faults, faults)) and len(row.faults) == 4
    (check,) = [each for each in validate(whole, ["routes"]) if each.name == "routes"]
    assert not check.ok and check.detail.startswith(f"rtsw1  {said}; run ./inv exec ")
    result = run(whole, replace(SHORT, placement="cyclic"), Silent())
    proof = paths_of(whole)
    assert proof.agree and any("10.0.1.0/24" in note for note in proof.notes), "a path uses it, and is proven"
    state = labelled(whole, result)
    assert (state["state"], state["before"]["faults"]) == ("degraded", list(row.faults))
    assert f"#fabric   : degraded before this run (rtsw1:eth3  the port {slow}; ctsw1:eth1" in result.table()
    assert state["after"]["faults"] == state["before"]["faults"]
    with pytest.raises(CheckError, match="is not a route of the fabric"):
        life.repair_lab(whole.name)
    in_node(whole, "rtsw1", f"ip route del {stray}")
    assert status(whole.name)[0].converged
    assert failed(whole, ["routes"]) == {}


def test_routes_that_do_not_use_the_fabric_are_no_fault(tiny: Lab) -> None:
    """A management network with a default route, as containers have it."""
    try:
        for words in (
            "link add other0 type veth peer name other1",
            "addr add 192.0.2.2/24 dev other0",
            "link set other0 up",
            "route append default via 192.0.2.1 dev other0 metric 4096",
        ):
            in_node(tiny, "rtsw1", f"ip {words}")
        assert status(tiny.name)[0].converged
        assert failed(tiny, ["routes"]) == {}
    finally:
        in_node(tiny, "rtsw1", "ip link del other0")
