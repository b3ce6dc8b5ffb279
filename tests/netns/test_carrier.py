"""The process that carries the state of ports over cut links, as a bad network and an attacker meet it.

One real process at one shard's end; the test is the other shard.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import RouteSocket, interfaces
from heddle.kernel.uapi import IFF_UP
from heddle.shards.carrier import BEAT_S, PORT, SILENT_S, CarrierConfig, CarrierEnd, opened, sealed
from tests.machine import until
from tests.netns.claimed import claimed, namespace_of
from tests.objects.shared import ROOT

pytestmark = pytest.mark.root

HERE, THERE = "10.78.0.1", "10.78.0.2"
NEAR, FAR = 7, 3  # ids of the ports of the cut link
STUB: Final = "p7"


@dataclass
class OtherShard:
    """Beats as a shard does. heard: what has come, oldest first. quiet: it sends nothing."""

    sock: socket.socket
    key: bytes
    lab: str
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0
    quiet: bool = False
    heard: list[bytes] = field(default_factory=list)
    heard_ns: int = 0
    sent: list[bytes] = field(default_factory=list)
    ended: bool = False

    def data(self, **changes: Any) -> dict[str, Any]:
        last = opened(self.key, self.heard[-1]) if self.heard else None
        self.number += 1
        return {
            "lab": self.lab, "boot": self.boot, "number": self.number, "down": [], "link": (FAR, NEAR),
            "seen": last["boot"] if last else "", "sent_ns": time.monotonic_ns(),
            "echo_ns": last["sent_ns"] if last else 0, "held_ns": time.monotonic_ns() - self.heard_ns, **changes,
        }  # fmt: skip

    def send(self, datagram: bytes) -> None:
        self.sent.append(datagram)
        self.sock.sendto(datagram, (HERE, PORT))

    def beat(self) -> None:
        last = 0.0
        while not self.ended:
            try:
                self.heard.append(self.sock.recv(1 << 16))
                self.heard_ns = time.monotonic_ns()
            except TimeoutError:
                pass
            except OSError:
                return
            if not self.quiet and time.monotonic() - last > BEAT_S:
                last = time.monotonic()
                self.send(sealed(self.key, self.data()))


@dataclass
class CarrierBench:
    """The process in its namespaces. changes: the states of the stub since the start, as the kernel tells them."""

    spaces: dict[str, Path]
    config: CarrierConfig
    other: OtherShard

    def start(self) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", f"--net={self.spaces['under']}", sys.executable, "-P", "-m", "heddle.shards.carrier"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, input=self.config.to_json(), text=True, env=env, capture_output=True, check=False)

    @property
    def process(self) -> int:
        return int(Path(f"{self.config.report}.lock").read_text())

    def up(self) -> bool:
        with RouteSocket(self.spaces["cables"]) as netlink:
            return any(each.name == STUB and each.flags & IFF_UP for each in interfaces(netlink))

    def alive(self) -> bool:
        row = json.loads(Path(self.config.report).read_text())[THERE]
        return bool(row["alive"] and row["rtt_ns"])

    @contextmanager
    def steady(self) -> Iterator[None]:
        """The stub does not go down in a with block."""
        argv = ["nsenter", f"--net={self.spaces['cables']}", "ip", "monitor", "link"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as monitor:
            time.sleep(0.2)
            yield
            monitor.terminate()
            lines = [line for line in monitor.communicate()[0].splitlines() if STUB in line]
            assert all(",UP" in line for line in lines), lines
        assert self.up()


@pytest.fixture
def carrier(tmp_path: Path) -> Iterator[CarrierBench]:
    with claimed() as name, ExitStack() as stack:
        spaces = {each: namespace_of(name, each) for each in ("node", "cables", "under", "there")}
        for space in spaces.values():
            run(["ip", "netns", "add", space.name])
            stack.callback(run, ["ip", "netns", "del", space.name], check=False)
        for near, far in (("node eth1", f"cables {STUB}"), ("under eth0", "there eth0")):
            (one, port), (two, peer) = near.split(), far.split()
            ends = f"{port} netns {spaces[one].name} type veth peer name {peer} netns {spaces[two].name}"
            run(["ip", "link", "add", *ends.split()])
            for where, device in ((one, port), (two, peer)):
                run(["ip", "-n", spaces[where].name, "link", "set", device, "up"])
        for where, address in (("under", HERE), ("there", THERE)):
            run(["ip", "-n", spaces[where].name, "addr", "add", f"{address}/24", "dev", "eth0"])
        with inside(spaces["there"]):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((THERE, PORT))
        sock.settimeout(0.05)
        key = secrets.token_hex(32)
        end = CarrierEnd(str(spaces["node"]), "eth1", STUB, NEAR, FAR, THERE)
        config = CarrierConfig(name, key, str(spaces["cables"]), str(tmp_path / "report"), (end,))
        made = CarrierBench(spaces, config, OtherShard(sock, bytes.fromhex(key), name, quiet=True))
        beats = threading.Thread(target=made.other.beat)
        beats.start()
        try:
            done = made.start()
            assert done.returncode == 0, done.stderr
            yield made
        finally:
            made.other.ended = True
            beats.join()
            os.kill(made.process, signal.SIGKILL)


def test_a_port_has_a_carrier_while_the_other_shard_is_heard_and_no_longer(carrier: CarrierBench) -> None:
    assert until(lambda: not carrier.up()) < 10 * SILENT_S, "never heard"
    carrier.other.quiet = False
    until(carrier.up)
    until(carrier.alive)
    carrier.other.quiet = True
    until(lambda: not carrier.up())
    carrier.other.boot, carrier.other.number, carrier.other.quiet = "started again", 0, False
    until(carrier.up)
    assert carrier.start().returncode == 0, "it works already"
    Path(f"{carrier.config.report}.lock").rename(f"{carrier.config.report}.other")  # as of another lab
    refused = carrier.start()
    Path(f"{carrier.config.report}.other").rename(f"{carrier.config.report}.lock")
    assert (refused.returncode, "in use" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


def test_what_an_attacker_sends_changes_nothing(carrier: CarrierBench) -> None:
    other = carrier.other
    other.quiet = False
    until(carrier.alive)
    former, own = list(other.sent), list(other.heard)
    os.kill(carrier.process, signal.SIGKILL)
    other.boot, other.number = "started again", 0  # both, so that what was recorded is of former processes
    assert carrier.start().returncode == 0
    until(carrier.alive)
    down = {"down": [FAR]}
    with carrier.steady():
        for _ in range(5):
            for recorded in (*former, *other.sent[:-1], *own, *other.heard):
                other.sock.sendto(recorded, (HERE, PORT))
            for forged in (
                sealed(bytes(32), other.data(**down)),
                sealed(other.key, other.data(lab="another", **down)),
                sealed(other.key, other.data(link=(NEAR, FAR), **down)),
                sealed(other.key, other.data(boot="recorded", seen="before", **down)),
                sealed(other.key, {"lab": other.lab}), sealed(other.key, other.data(down="x")), b"", bytes(40),
            ):  # fmt: skip
                other.sock.sendto(forged, (HERE, PORT))
            time.sleep(0.4)
    assert carrier.alive()
    other.send(sealed(other.key, other.data(**down)))
    until(lambda: not carrier.up())


def test_a_process_that_is_stopped_for_seconds_or_started_again_lets_no_carrier_go(carrier: CarrierBench) -> None:
    carrier.other.quiet = False
    until(carrier.alive)
    with carrier.steady():
        os.kill(carrier.process, signal.SIGSTOP)
        time.sleep(2 * SILENT_S)
        os.kill(carrier.process, signal.SIGCONT)
        time.sleep(2 * BEAT_S)
        os.kill(carrier.process, signal.SIGKILL)
        assert carrier.start().returncode == 0
        time.sleep(2 * BEAT_S)
        until(carrier.alive)
