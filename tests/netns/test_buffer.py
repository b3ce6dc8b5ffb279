"""A switch's shared buffer under real load: what is dropped is counted, by cause, and nothing else is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heddle.switch.queues.cells import CAUSES
from heddle.switch.queues.classes import policies_of
from heddle.switch.queues.portids import row
from tests.netns.queue_bench import LOSSLESS
from tests.netns.queue_traffic import SIZE, Rack, rack, send_from

pytestmark = pytest.mark.root

LINKS = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"host3:eth1": "8mbit"}}


def drops(cell: Any) -> dict[str, int]:
    return {cause: int(n) for cause, n in zip(CAUSES, cell["drops"], strict=True) if n}


def change(made: Rack, **words: Any) -> None:
    """Give every class of every switch port other numbers."""
    rules = policies_of(made.lab.fabric)
    switches = {node.name for node in made.lab.fabric.switches}
    made.queues.set_policies(
        {ref: tuple(replace(each, **words) for each in rows) for ref, rows in rules.items() if ref[0] in switches}
    )


def test_two_senders_into_one_port_lose_what_the_buffer_refuses_and_every_loss_is_counted() -> None:
    with rack(link=LINKS) as made:
        change(made, alpha=0.5, shared=60_000, reserve=10_000)
        with made.listening() as found:
            send_from(made, (0, 1), 500)
            made.at_rest()
            lost = drops(made.cell())
            assert set(lost) == {"threshold"} and lost["threshold"] > 50
            found.wait(1000 - lost["threshold"])
        assert len(found.frames) == 1000 - lost["threshold"]
        assert made.cell()["drop_bytes"] == lost["threshold"] * SIZE
        # alpha 1/2 of 60,000 beyond a reserve of 10,000: depth = 0.5 (60,000 - (depth - 10,000)).
        most = 70_000 / 3
        assert most - 2 * SIZE <= made.cell()["high_water"] <= most + 2 * SIZE


@pytest.mark.deep
def test_a_lossless_class_without_pauses_fills_its_headroom_and_then_loses_by_the_missing_bytes() -> None:
    """No agent answers the pauses here, so packets are lost."""
    with rack(link=LINKS) as made:
        change(made, pfc=True, xoff=30_000, xon=20_000, headroom=15_000, ecn=False)
        send_from(made, (0, 1), 400)
        made.at_rest()
        q = made.queues
        ports = [q.ids[host.ports[0].peer_node, host.ports[0].peer_port] for host in made.lab.fabric.hosts[:2]]
        held = [q.ingress[row(port, LOSSLESS)] for port in ports]
        assert drops(made.cell()) == {"headroom": sum(int(each["drops"]) for each in held)}
        for each in held:
            assert 40_000 < each["high_water"] <= 45_000 and each["drops"] > 20
            assert each["headroom_high"] == 15_000 + SIZE
            # The most bytes that one pause has lost: all of them, unless a sender had no processor for a moment, and
            # the class resumed meanwhile.
            assert each["lost_high"] <= each["drop_bytes"] <= each["lost_high"] * each["xoffs"]
        assert any(each["xoffs"] for each in held) and not any(each["state"] for each in held)
