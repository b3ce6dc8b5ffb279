"""What is no RoCEv2 goes as the kernel's own hash says, in every mode; a socket's hash that it brings is ignored."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack

import pytest

from heddle.base.process import run
from heddle.fabric.policy import HashOptions
from heddle.kernel.namespace import inside
from heddle.lab import rehash
from heddle.switch.hashing.hashing import hashing_of
from tests.machine import patience
from tests.marks import deep
from tests.netns.static_fabric import static_fabric

pytestmark = pytest.mark.root

UPLINKS = ("eth1", "eth2", "eth3", "eth4")
PORT, FLOWS = 9, 32
ETH_P_ALL, OUTGOING = 3, 4


@pytest.mark.parametrize("mode", ["e-ecmp", deep("flow")])
def test_connected_udp_goes_where_the_kernel_says_for_its_5_tuple(mode: str) -> None:
    options = HashOptions(policy="l4") if mode == "flow" else HashOptions()
    with static_fabric("flow") as lab, ExitStack() as stack:
        row = hashing_of(lab.fabric, lab.fabric.by_name["rtsw1"], mode, options)
        rehash.change(lab.name, [(lab.handle("rtsw1"), row)])
        here = next(host for host in lab.fabric.hosts if host.group("rack") == 1)
        there = next(host for host in lab.fabric.hosts if host.group("rack") == 2).ports[0].address
        own = here.ports[0].address
        assert own is not None and there is not None
        ears = {}
        with inside(lab.handle("rtsw1").netns):
            for port in UPLINKS:
                ears[port] = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                ears[port].bind((port, ETH_P_ALL))
                ears[port].settimeout(0)
        sports = []
        with inside(lab.handle(here.name).netns):
            for _ in range(FLOWS):
                sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sender.connect((str(there.ip), PORT))  # gives the socket a random sk_txhash
                sender.send(b"no RoCEv2")
                sports.append(sender.getsockname()[1])
        asked = [
            "ip", "-n", lab.handle("rtsw1").netns.name, "route", "get", str(there.ip), "from", str(own.ip),
            "iif", here.ports[0].peer_port, "ipproto", "17", "dport", str(PORT), "sport",
        ]  # fmt: skip
        said = {sport: re.findall(r"dev (eth\d)", run([*asked, str(sport)]).out)[0] for sport in sports}
        left: dict[int, str] = {}
        end = time.monotonic() + patience(10)
        while len(left) < FLOWS and time.monotonic() < end:
            left |= _left(ears)
            time.sleep(0.01)
        assert left == said and len(set(said.values())) > 1


def _left(ears: dict[str, socket.socket]) -> dict[int, str]:
    """UDP source port -> the port that a packet to PORT left by."""
    found: dict[int, str] = {}
    for port, ear in ears.items():
        while True:
            try:
                frame, address = ear.recvfrom(2048)
            except BlockingIOError:
                break
            if address[2] == OUTGOING and frame[12:14] == b"\x08\x00" and frame[36:38] == PORT.to_bytes(2, "big"):
                found[int.from_bytes(frame[34:36], "big")] = port
    return found
