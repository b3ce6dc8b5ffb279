"""What `run` does before its first packet, and what its NICs answer on the wire: each is called, not only right."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.host.capacity import PacketBudget
from heddle.lab.lab import Lab
from heddle.lab.rehash import restore_hashing, set_hashing
from heddle.lab.snapshot import LabPart
from heddle.proof import collect
from heddle.runs import run as runs
from heddle.runs.run import run
from heddle.runs.store import History
from heddle.traffic.options import RunOptions
from tests.conftest import FabricLab
from tests.marks import deep

pytestmark = pytest.mark.root

SHORT = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)


class Heard(Silent):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


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
def test_a_run_above_the_packet_budget_starts_with_a_warning(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch, wanted: int, carried: int, packets: int, *, warned: bool
) -> None:
    """Unless all of its packets are fewer than the budget of one second."""
    monkeypatch.setattr(runs, "budget_of", lambda plan, transport: PacketBudget(wanted, carried))
    monkeypatch.setattr(runs, "total_packets", lambda plan: packets)
    heard = Heard()
    result = run(tiny, SHORT, heard)
    said = f"{wanted} packets/s at line rate, and this machine carries about {carried}: the host CPU may become"
    assert [text.startswith(said) for text in heard.warnings] == [True] * warned
    assert result.to_json()["machine"]["over_budget"] is (wanted > carried)


def test_a_run_over_switches_that_spray_is_warned_before_and_keeps_the_warning(tiny: Lab) -> None:
    heard = Heard()
    set_hashing(tiny, "spray")
    try:
        result = run(tiny, SHORT, heard)
    finally:
        restore_hashing(tiny)
    (warning,) = heard.warnings
    assert warning.startswith("4 switches spray packets, but transport rc ")
    assert result.warnings == (warning,)


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


@pytest.mark.parametrize("fastpath", ["auto", deep("off")])
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
