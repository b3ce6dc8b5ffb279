"""The process that carries the state of ports over cut links, as a bad network and an attacker meet it.

One real process at one shard's end; the test is the other shard. A veth pair is the tunnel between them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.process import run
from heddle.kernel.netlink import RouteSocket, interfaces
from heddle.kernel.uapi import IFF_UP
from heddle.shards.carrier import (
    BEAT_S,
    SILENT_S,
    CarrierConfig,
    CarrierEnd,
    beat_header,
    opened,
    sealed,
)
from heddle.switch.links.cuts import BEAT, TUNNEL
from tests.machine import until
from tests.netns.claimed import claimed, namespace_of
from tests.netns.sockets import packet_socket
from tests.objects.shared import ROOT

THERE = "fd00:78::2"  # of the other shard: a name of it, for the process
NEAR, FAR = 7, 3  # numbers of the ports of the cut link
ROW = 12  # the id that the far port has here, by which the tunnel finds it
FRAME: Final = 4200
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

    def send(self, content: bytes) -> None:
        self.sent.append(content)
        self.passed(content)

    def passed(self, content: bytes) -> None:
        """Send a beat with this content, and do not keep it."""
        self.sock.send(beat_header(NEAR, FAR, BEAT) + content)

    def beat(self) -> None:
        last = 0.0
        while not self.ended:
            try:
                frame = self.sock.recv(1 << 16)
                if int.from_bytes(frame[2:6]) == ROW:
                    self.heard.append(frame[14:])
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
        argv = [sys.executable, "-P", "-m", "heddle.shards.carrier"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            argv, input=json.dumps(asdict(self.config)), text=True, env=env, capture_output=True, check=False
        )

    @property
    def process(self) -> int:
        return int(Path(f"{self.config.report}.lock").read_text())

    def up(self) -> bool:
        with RouteSocket(self.spaces["cables"]) as netlink:
            return any(each.name == STUB and each.flags & IFF_UP for each in interfaces(netlink))

    def trip(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.config.report).read_text())["trips"][THERE]
        return found

    def alive(self) -> bool:
        return bool(self.trip()["alive"] and self.trip()["rtt_ns"])

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
        spaces = {each: namespace_of(name, each) for each in ("node", "cables", "there")}
        for space in spaces.values():
            run(["ip", "netns", "add", space.name])
            stack.callback(run, ["ip", "netns", "del", space.name], check=False)
        for near, far in (("node eth1", f"cables {STUB}"), (f"cables {TUNNEL}", "there eth0")):
            (one, port), (two, peer) = near.split(), far.split()
            far_end = f"{peer} netns {spaces[two].name} mtu 65000"
            ends = f"{port} netns {spaces[one].name} mtu 65000 type veth peer name {far_end}"
            run(["ip", "link", "add", *ends.split()])
            for where, device in ((one, port), (two, peer)):
                run(["ip", "-n", spaces[where].name, "link", "set", device, "up"])
        sock = stack.enter_context(packet_socket(spaces["there"], "eth0", BEAT, seconds=0.05))
        key = secrets.token_hex(32)
        end = CarrierEnd(str(spaces["node"]), "eth1", STUB, NEAR, FAR, ROW, THERE)
        config = CarrierConfig(
            name, key, str(spaces["cables"]), str(tmp_path / "report"), TUNNEL, BEAT, FRAME, (end,)
        )  # fmt: skip
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


@pytest.mark.long("10 seconds and more")
def test_a_network_that_loses_large_frames_is_known_and_ports_keep_their_carrier(carrier: CarrierBench) -> None:
    other = carrier.other
    other.quiet = False
    until(carrier.alive)
    assert not carrier.trip()["whole"], "none has come"
    until(lambda: any(len(each) == FRAME for each in other.heard))
    until(lambda: opened(other.key, other.heard[-1]) is not None)
    other.send(sealed(other.key, other.data(whole=True), FRAME))
    until(lambda: carrier.trip()["whole"])
    until(lambda: not carrier.trip()["whole"])
    assert carrier.up() and carrier.alive()
    other.quiet = True
    until(lambda: not carrier.up())
    for _ in range(20):  # of each frame only the fragments come: no port is in them
        other.send(sealed(other.key, other.data(whole=True), FRAME))
        time.sleep(BEAT_S)
        assert not carrier.up()
    os.kill(carrier.process, signal.SIGKILL)  # one that starts then does not take it for a tunnel that works
    assert carrier.start().returncode == 0
    for _ in range(5):
        other.send(sealed(other.key, other.data(whole=True), FRAME))
        time.sleep(BEAT_S)
        assert not carrier.alive()


def test_beats_go_on_while_ports_are_set(
    carrier: CarrierBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, slow = carrier.other, tmp_path / "slow" / "ip"  # as with thousands of ports, or a busy kernel
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep {2 * SILENT_S}\nexec {shutil.which("ip")} "$@"\n')
    slow.chmod(0o755)
    os.kill(carrier.process, signal.SIGKILL)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert carrier.start().returncode == 0
    until(lambda: not carrier.up())
    other.quiet = False
    until(carrier.up)
    beats, boot = [opened(other.key, each) for each in other.heard], _last(other)
    sent = [each["sent_ns"] for each in beats if each is not None and each["boot"] == boot]
    longest_s = max(two - one for one, two in pairwise(sent)) / 1e9
    assert len(sent) > 2 * SILENT_S / BEAT_S and longest_s < SILENT_S, longest_s


def _last(other: OtherShard) -> str:
    """The process that was heard last."""
    data = opened(other.key, other.heard[-1])
    assert data is not None
    return str(data["boot"])


VALUES: Final[tuple[dict[str, Any], ...]] = (
    {"number": float("inf")}, {"number": float("nan")}, {"down": [float("inf")]}, {"down": 1}, {"link": "ab"},
    {"link": [{}, 1]}, {"link": [[FAR], NEAR]}, {"link": None}, {"sent_ns": 10**4000}, {"echo_ns": -(10**30)},
    {"held_ns": "x"}, {"boot": None, "number": None}, {"lab": {}},
)  # fmt: skip
WRONG: Final[tuple[bytes, ...]] = (
    b"", bytes(40), b"[" * 30_000, b"[]", b"null", b"\xff\xfe", b'"text"',
    *(
        json.dumps({"lab": "LAB", "boot": "b", "number": 1, "down": [], "link": [FAR, NEAR], "seen": "", "sent_ns": 1,
                    "echo_ns": 0, "held_ns": 0, **each}).encode()
        for each in VALUES
    ),
)  # fmt: skip


def test_no_content_that_a_member_of_the_lab_seals_ends_the_process(carrier: CarrierBench) -> None:
    other = carrier.other
    other.quiet = False
    until(carrier.alive)
    process = carrier.process
    for each in WRONG:
        body = each.replace(b"LAB", other.lab.encode())
        other.passed(hmac.digest(other.key, body, hashlib.sha256) + body)
    other.sock.send(beat_header(NEAR, FAR, BEAT))
    heard = len(other.heard)
    until(lambda: len(other.heard) > heard + 10)
    assert carrier.process == process and Path(f"/proc/{process}").exists()
    other.boot, other.number = "started again", 0
    until(carrier.alive)
    assert carrier.up()


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
                other.passed(recorded)
            for forged in (
                sealed(bytes(32), other.data(**down)),
                sealed(other.key, other.data(lab="another", **down)),
                sealed(other.key, other.data(link=(NEAR, FAR), **down)),
                sealed(other.key, other.data(boot="recorded", seen="before", **down)),
                sealed(other.key, {"lab": other.lab}), sealed(other.key, other.data(down="x")), b"", bytes(40),
            ):  # fmt: skip
                other.passed(forged)
            time.sleep(0.4)
    assert carrier.alive()
    other.send(sealed(other.key, other.data(**down)))
    until(lambda: not carrier.up())


@pytest.mark.deep
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
