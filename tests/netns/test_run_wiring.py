"""What `run` does before its first packet, what its NICs answer, and what it reports of a busy machine."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.host.capacity import PacketBudget
from heddle.lab import queues
from heddle.lab.lab import Lab
from heddle.lab.rehash import restore_hashing, set_hashing
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.proof import collect
from heddle.runs import run as runs
from heddle.runs.parts.part import MARK
from heddle.runs.run import run
from heddle.runs.store import History
from heddle.traffic.options import RunOptions
from heddle_plugins.engineering.diagnosis import diagnosis
from tests import incidents
from tests.alteredworker import altered
from tests.conftest import FabricLab
from tests.listener import Listener
from tests.machine import patience
from tests.marks import long
from tests.netns.collectives import in_order, proven, ran, total

SHORT = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)


def test_a_run_that_the_counters_have_no_room_for_is_refused_before_its_first_packet(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packets() -> int:
        counters = tiny.snapshot(LabPart.COUNTERS).counters
        return sum(row.packets for table in counters.values() for row in table.flows)

    kept = len(History.of(tiny).runs())
    before = packets()
    monkeypatch.setattr(collect, "room", lambda fabric: 10)
    with pytest.raises(InputError, match=r"needs [\d,]+ rows of the switches' counters, but \w+ has 10"):
        run(tiny, SHORT, Silent())
    assert (packets(), len(History.of(tiny).runs())) == (before, kept)


@pytest.mark.parametrize(
    ("wanted", "carried", "packets", "warned"), [(9, 8, 9, True), (9, 8, 8, False), (8, 8, 9, False)]
)
def test_a_run_above_the_packet_budget_is_warned_of_before_it_starts(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch, wanted: int, carried: int, packets: int, *, warned: bool
) -> None:
    """Unless all of its packets are fewer than the budget of one second. Here another limit refuses the run then."""
    monkeypatch.setattr(runs, "budget_of", lambda plan, transport: PacketBudget(wanted, carried))
    monkeypatch.setattr(runs, "total_packets", lambda plan: packets)
    monkeypatch.setattr(collect, "room", lambda fabric: 10)
    heard = Listener()
    with pytest.raises(InputError, match="rows of the switches' counters"):
        run(tiny, SHORT, heard)
    said = f"{wanted} packets/s at line rate, and this machine carries about {carried}: the host CPU may become"
    assert [text.startswith(said) for text in heard.warnings] == [True] * warned


def test_a_run_over_switches_that_spray_is_warned_before_and_keeps_the_warning(tiny: Lab) -> None:
    heard = Listener()
    set_hashing(tiny, "spray")
    try:
        result = run(tiny, SHORT, heard)
    finally:
        restore_hashing(tiny)
    (warning,) = heard.warnings
    assert warning.startswith("4 switches spray packets, but transport rc ")
    assert result.warnings == (warning,)


@pytest.mark.deep
@pytest.mark.parametrize("patient", [True, False])
def test_a_run_begins_with_empty_queues_or_says_that_they_were_not(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch, *, patient: bool
) -> None:
    """Probes that a small MTU has lost count as waiting until the agent removes them, a second or two later."""
    with incidents.small_mtu(tiny, random.Random(1)).around(), monkeypatch.context() as hasty:
        hasty.setattr(diagnosis, "wait_empty", lambda lab: [])
        diagnosis.probe_paths(tiny, Silent())
        assert tiny.snapshot(LabPart.QUEUES).queues.cells["depth"].any()
    if not patient:
        monkeypatch.setattr(queues, "EMPTY_S", 0.0)
    readings: list[bool] = []
    collected = collect.collect_before

    def reading(lab: Lab, more: LabPart) -> Snapshot:
        readings.append(bool(lab.snapshot(LabPart.QUEUES).queues.cells["depth"].any()))
        return collected(lab, more)

    monkeypatch.setattr(runs, "collect_before", reading)
    heard = Listener()
    result = run(tiny, SHORT, heard)
    assert readings == [not patient]
    said = [text for text in heard.warnings if "not empty before this run: losses of these earlier packets" in text]
    assert len(said) == (not patient) and {*said} <= {*result.warnings}
    assert queues.wait_empty(tiny, 10.0) == []


def acks_per_packet(lab: Lab, options: RunOptions) -> float:
    """Packets that the switches counted for queue pairs in the direction of answers, for each data packet."""
    result = run(lab, options, Silent())
    keys = {row.sent.flow.key for row in result.flows}
    to_hosts = {port.peer_ref for host in lab.fabric.hosts for port in host.ports}
    data = answers = 0
    for switch, table in lab.snapshot(LabPart.COUNTERS).counters.items():
        for row in table.flows:
            if f"{switch}:{row.port}" in to_hosts:
                data += row.packets * (row.key in keys)
                answers += row.packets * (row.key not in keys)
    assert data == sum(row.sent.packets for row in result.flows)
    return answers / data


@pytest.mark.deep
@pytest.mark.parametrize("fastpath", ["auto", long("off")])
def test_one_acknowledgement_answers_several_packets_of_sixteen_queue_pairs(
    fabric_lab: FabricLab, fastpath: Literal["auto", "off"]
) -> None:
    """Steps of 64 KB, each on one QP: 16 packets. A QP has a window of 4, so every third requests an acknowledgement.

    The last one does, too, which makes 6 for 16 packets at most, however late a busy machine sends them.
    """
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, link={"host": "25mbit", "fabric": "25mbit"})
    options = replace(SHORT, sizes=(4 << 16,), iters=4, qps=16, qp_mode="round-robin", fastpath=fastpath)
    share = acks_per_packet(lab, options)
    assert 1 / 16 <= share <= 6 / 16, share


def sent(lab: Lab, name: str) -> dict[str, tuple[int, int, tuple[str, ...]]]:
    """A run without errors, late packets and retransmissions: of each flow its packets, bytes and ports."""
    with altered(name):
        result = in_order(ran(lab, qps=4, placement="cyclic", fastpath="on"))
    assert (total(result, "retransmitted"), total(result, "timeouts")) == (0, 0)
    return {str(proof.flow): (proof.sent.packets, proof.sent.bytes, proof.measured) for proof in proven(lab).flows}


@pytest.mark.deep
def test_results_do_not_depend_on_the_time_between_the_passes_of_nics(tiny: Lab) -> None:
    assert sent(tiny, "no time between passes") == sent(tiny, "passes six frames apart") == sent(tiny, "")


BURN_S = patience(30)  # at most: a burner ends by itself
_BURN = f"import sys, time, os; os.sched_setaffinity(0, {{int(sys.argv[1])}}); end = time.monotonic() + {BURN_S}\n"
_BURN += "print('on', flush=True)\nwhile time.monotonic() < end: pass"


@pytest.fixture(scope="module")
def slow_lab(fabric_lab: FabricLab) -> Lab:
    """Four hosts whose links carry 10 Mb/s: 300 packets a second each."""
    return fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, link={"host": "10mbit", "fabric": "10mbit"})


@contextmanager
def burning() -> Iterator[None]:
    """Each processor has a process of its own that never rests."""
    burners = [
        subprocess.Popen([sys.executable, "-c", _BURN, str(cpu)], stdout=subprocess.PIPE)
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        for burner in burners:
            assert burner.stdout is not None and burner.stdout.readline() == b"on\n"
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()


def test_a_run_beside_busy_processes_is_unreliable(slow_lab: Lab) -> None:
    with burning():  # half a second of an all-reduce, after an iteration of 8 bytes
        result = ran(slow_lab, sizes=(8, 1 << 18), warmup=0, iters=1)
    processors = [cause for cause in result.doubts if cause.cause == "processor"]
    assert processors
    assert 1 << 18 in {cause.size for cause in processors}
    assert {cause.number for cause in processors} <= os.sched_getaffinity(0)
    table = result.table().splitlines()
    marked = [at for at, line in enumerate(table) if line.startswith(MARK)]
    rows = [at for at, line in enumerate(table) if line[:1] != "#"]
    assert marked[0] == rows[-1] + 1
    assert "do not trust bandwidth or depths" in table[marked[0]]
    # A cause that is sure comes first: on a slow machine a worker waited for a processor, too.
    first = next((cause for cause in result.doubts if cause.sure), processors[0])
    assert any(table[at].endswith(first.text) for at in marked[1:])
    assert any(f"processor {processors[0].number}: " in table[at] for at in marked[1:])
    document = json.loads(json.dumps(result.to_json()))
    assert document["machine"]["limited"] is True
    assert "processor" in {each["cause"] for each in document["unreliable"]}
