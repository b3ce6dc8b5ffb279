"""Carry the state of ports over cut links, one process a shard: `python -m heddle.shards.carrier`.

In:  a CarrierConfig on standard input; beats of the other shards.
Out: stubs that are up exactly while the far port is set up and its shard answers, so a port loses its carrier as with a
     cable; a file with the round trip to each shard.

Beats are frames through the tunnel of the cut links: a tunnel that is dead carries none. They tell the other shards
which of the own cut ports are set down: at once when one changes, and every 0.2 s. A shard that is silent for 1.5 s
counts as dead, also one that was never heard. The state of the stub itself is never sent, so two ends cannot wait for
each other. Each fifth beat has the size of the links' largest frame: some networks lose fragments.

A beat is authenticated by the lab's key (HMAC-SHA-256, RFC 2104), names a link of the two shards in its direction,
is newer than the last one of that process, and returns a moment of the receiver's clock that is not old. Another
process of a shard is believed when it has heard this one: what was recorded before this one started has not. Anything
else is dropped.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import math
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import HeddleError
from heddle.base.untrusted import parsed
from heddle.kernel.namespace import inside, setns
from heddle.kernel.netlink import RouteSocket, interfaces
from heddle.kernel.uapi import CLONE_NEWNET, IFF_UP

BEAT_S: Final = 0.2
SILENT_S: Final = 1.5
_REPORT_S: Final = 1.0
_PAUSE_S: Final = 0.002
_TRIES: Final = 10
_MAC: Final = 32  # bytes of the authentication code in front of a beat's data
_HEADER: Final = 14  # bytes of Ethernet's
_WHOLE_EACH: Final = 5
_WHOLE_S: Final = 5.0
_LINKS: Final = 0x1  # RTMGRP_LINK
_MOST: Final = 1 << 16
_MOST_BOOT: Final = 64  # characters


@dataclass(frozen=True, slots=True)
class CarrierEnd:
    """A cut port of this shard. space: of its node. stub, number: of it; far, remote: the other end's.

    number, far: in the whole fabric. row: the id of the far port in this shard.
    """

    space: str
    port: str
    stub: str
    number: int
    far: int
    row: int
    remote: str


@dataclass(frozen=True, slots=True)
class CarrierConfig:
    """lab, and its key in hexadecimal. cables: the namespace of the stubs. report: the file for round trips.

    tunnel: the device in `cables`; beat: the EtherType of beats. frame: bytes of the largest frame, without its header.
    """

    lab: str
    key: str
    cables: str
    report: str
    tunnel: str
    beat: int
    frame: int
    ends: tuple[CarrierEnd, ...]

    @classmethod
    def from_json(cls, text: str) -> CarrierConfig:
        """From the text that the process reads."""
        data = json.loads(text)
        return cls(**{**data, "ends": tuple(CarrierEnd(**row) for row in data["ends"])})


@dataclass(slots=True)
class FarShard:
    """Another shard, as heard. heard_s: when last; at first, since when it is waited for. links: those to it, as
    (number of its port, number of ours). down: numbers of its ports that are set down.

    boot, number: of its process, and of its last beat. seen: the process that was heard last; it is to be believed
    when it has heard this one. sent_ns: its clock then, to be returned. rtt: ns; 0: none of ours has come back yet.
    whole_s: the same of beats of the largest size, which heard_s leaves out.
    """

    heard_s: float
    links: frozenset[tuple[int, int]] = frozenset()
    down: frozenset[int] = frozenset()
    boot: str = ""
    number: int = -1
    seen: str = ""
    old: set[str] = field(default_factory=set)
    sent_ns: int = 0
    got_ns: int = 0
    rtt_ns: int = 0
    most_ns: int = 0
    whole_s: float = -_WHOLE_S

    def alive(self, now: float) -> bool:
        """Whether it counts as there."""
        return now - self.heard_s < SILENT_S

    def hear(self, data: Mapping[str, Any], now: float, own: str) -> bool:
        """Take a beat that is authentic. own: the process that has received it.

        False for one that is wrong, not from there, old, or of a process that has not heard this one.
        """
        got = time.monotonic_ns()
        try:
            numbers = (*(data[key] for key in ("number", "echo_ns", "sent_ns", "held_ns")), *data["down"])
            number, echo, sent_ns, held, *down = map(_count, numbers)
            boot, seen, whole = str(data["boot"])[:_MOST_BOOT], data["seen"], data.get("whole")
            near, far = map(_count, data["link"])
        except (ValueError, KeyError, TypeError):
            return False
        known, rtt = (near, far) in self.links, got - echo - held if echo else 0
        if not known or boot in self.old or (boot == self.boot and number <= self.number):
            return False
        if boot != self.boot:
            self.seen, self.sent_ns, self.got_ns = boot, sent_ns, got
            if seen != own:
                return False
            self.old |= {self.boot} - {""}
        if rtt > SILENT_S * 1e9:
            return False
        self.seen, self.boot, self.number, self.down = boot, boot, number, frozenset(down)
        self.sent_ns, self.got_ns = sent_ns, got
        if whole:  # a filter by port may let fragments through: only the others show that the tunnel works
            self.whole_s = now
            return True
        self.heard_s = now
        if echo and seen == own:
            self.rtt_ns = max(1, rtt)
            self.most_ns = max(self.most_ns, self.rtt_ns)
        return True


def _count(value: Any) -> int:
    """A number of a datagram; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"is no number: {type(value).__name__}")
    return value


def sealed(key: bytes, data: Mapping[str, Any], size: int = 0) -> bytes:
    """The content of a beat; with spaces at its end where it is shorter than `size` bytes."""
    body = json.dumps(data).encode().ljust(size - _MAC)
    return hmac.digest(key, body, hashlib.sha256) + body


def opened(key: bytes, content: bytes) -> dict[str, Any] | None:
    """Its data; None for one that is not authentic, or wrong."""
    code, body = content[:_MAC], content[_MAC:]
    if not hmac.compare_digest(code, hmac.digest(key, body, hashlib.sha256)):
        return None
    try:
        found = parsed(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def beat_header(to: int, by: int, ethertype: int) -> bytes:
    """The Ethernet header of a beat, with ends of local addresses. to: the id of the far port in the sender's shard, by
    which the tunnel finds the other one. by: the number of the sender's port.
    """
    return struct.pack("!HIHIH", 0x0200, to, 0x0200, by, ethertype)


def _number_of(space: str) -> int:
    """The inode of a namespace; 0 for one that is gone."""
    try:
        return Path(space).stat().st_ino
    except OSError:
        return 0


class PortCarrier:
    """The process. sock: whole frames of the tunnel, of the type of beats."""

    def __init__(self, config: CarrierConfig, sock: socket.socket) -> None:
        self._config, self._sock, self._key = config, sock, bytes.fromhex(config.key)
        self._boot, self._number, self._beats = secrets.token_hex(8), 0, 0
        links: dict[str, set[tuple[int, int]]] = {}
        for end in config.ends:
            links.setdefault(end.remote, set()).add((end.far, end.number))
        self._far = {address: FarShard(time.monotonic(), frozenset(each)) for address, each in links.items()}
        self._rows = {end.far: end.row for end in config.ends}
        self._reported: dict[str, tuple[bool, bool]] = {}
        self._stubs = self._read_stubs()
        self._down: frozenset[int] = frozenset()
        self._of_space: dict[str, list[CarrierEnd]] = {}
        for end in config.ends:
            self._of_space.setdefault(end.space, []).append(end)
        self._due = math.inf  # no beat before the ports were read
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ, None)
        self._cables = Path(config.cables).stat().st_ino
        self._events: dict[str, tuple[socket.socket, int]] = {}  # by namespace, with its number
        for space in self._of_space:
            with inside(Path(space)):
                events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            events.setblocking(False)
            events.bind((0, _LINKS))
            self._events[space] = events, Path(space).stat().st_ino
            self._selector.register(events, selectors.EVENT_READ, space)

    def work(self) -> None:
        """Until the namespace of the stubs is gone: `down` removes it."""
        self._look(self._of_space)
        self._due = reported = 0.0
        while _number_of(self._config.cables) == self._cables:
            now = time.monotonic()
            if now >= self._due:
                self._let_go()
            self._keep_beating()
            if now - reported >= _REPORT_S or self._changed(now):
                self._report(now)
                reported = now
            changed = list[str]()
            for key, _ in self._selector.select(max(0.0, self._due - time.monotonic())):
                if key.data is None:
                    self._hear()
                else:
                    self._drain(key.fileobj)  # type: ignore[arg-type]
                    changed.append(key.data)
            if changed and self._look(changed):
                self._due = 0.0
                self._keep_beating()
            self._set_stubs(now)

    def _keep_beating(self) -> None:
        """Send beats when they are due. Called within work that takes long in a large lab: no shard may seem silent."""
        if time.monotonic() >= self._due:
            self._tell()
            self._due = time.monotonic() + BEAT_S

    def _let_go(self) -> None:
        """Close the sockets of nodes that are gone: they would keep their namespaces, and so their links."""
        for space, (events, number) in [*self._events.items()]:
            if _number_of(space) != number:
                self._selector.unregister(events)
                events.close()
                del self._events[space]
                self._look([space])

    @staticmethod
    def _drain(events: socket.socket) -> None:
        with suppress(OSError):  # ENOBUFS: more events than the socket holds; all states are read anyway
            while events.recv(_MOST):
                pass

    def _look(self, spaces: Iterable[str]) -> bool:
        """Read which own ports are set down in some nodes; whether that has changed."""
        down = set(self._down)
        for space in spaces:
            up: set[str] = set()
            # A node that is gone has no port that is up.
            with suppress(OSError, HeddleError), RouteSocket(Path(space)) as netlink:
                up = {each.name for each in interfaces(netlink) if each.flags & IFF_UP}
            for end in self._of_space[space]:
                (down.discard if end.port in up else down.add)(end.number)
            self._keep_beating()
        changed, self._down = down != self._down, frozenset(down)
        return changed

    def _read_stubs(self) -> dict[str, bool]:
        with RouteSocket(Path(self._config.cables)) as netlink:  # an earlier process may have left some down
            up = {each.name for each in interfaces(netlink) if each.flags & IFF_UP}
        return {end.stub: end.stub in up for end in self._config.ends}

    def _tell(self) -> None:
        for address in self._far:
            self._tell_one(address)
        self._beats += 1

    def _tell_one(self, address: str) -> None:
        far = self._far[address]
        ports = {number for _, number in far.links}
        theirs, ours = min(far.links)
        self._number += 1
        whole = self._beats % _WHOLE_EACH == 0
        data = {
            "lab": self._config.lab, "boot": self._boot, "number": self._number, "down": sorted(self._down & ports),
            "link": (ours, theirs), "seen": far.seen, "sent_ns": time.monotonic_ns(), "echo_ns": far.sent_ns,
            "held_ns": time.monotonic_ns() - far.got_ns if far.got_ns else 0, "whole": whole,
        }  # fmt: skip
        content = sealed(self._key, data, self._config.frame if whole else 0)
        with suppress(OSError):  # no route, or no buffer: the next one follows
            self._sock.send(beat_header(self._rows[theirs], ours, self._config.beat) + content)

    def _hear(self) -> None:
        while True:
            try:
                data = opened(self._key, self._sock.recv(_MOST)[_HEADER:])
            except OSError:
                return
            if data is None or data.get("lab") != self._config.lab:
                continue
            for address, far in self._far.items():
                # Of a process that has not heard this one, or not lately: answered at once.
                if data.get("link") in [list(each) for each in far.links]:
                    far.hear(data, time.monotonic(), self._boot)
                    if far.seen != far.boot:
                        self._tell_one(address)

    def _set_stubs(self, now: float) -> None:
        """Set stubs as the far ports are.

        now: before the datagrams were read, so that shards do not count as silent while this process was stopped.
        """
        lines = []
        for end in self._config.ends:
            far = self._far[end.remote]
            wanted = far.alive(now) and end.far not in far.down
            if wanted != self._stubs[end.stub]:
                self._stubs[end.stub] = wanted
                lines.append(f"link set dev {end.stub} {'up' if wanted else 'down'}\n")
        if lines:
            with os.fdopen(os.memfd_create("links"), "w+b") as file:
                file.write("".join(lines).encode())
                file.seek(0)
                with subprocess.Popen(["ip", "-force", "-batch", "-"], stdin=file) as done:
                    while done.poll() is None:
                        self._keep_beating()
                        self._hear()
                        time.sleep(_PAUSE_S)
            if done.returncode:
                with suppress(OSError, HeddleError):
                    self._stubs = self._read_stubs()

    def _changed(self, now: float) -> bool:
        """Whether a shard has come or gone since the last report."""
        found = {address: (far.alive(now), far.rtt_ns > 0) for address, far in self._far.items()}
        changed, self._reported = found != self._reported, found
        return changed

    def _report(self, now: float) -> None:
        rows = {
            address: {
                "alive": far.alive(now), "rtt_ns": far.rtt_ns, "most_ns": far.most_ns,
                "whole": now - far.whole_s < _WHOLE_S,
            }
            for address, far in self._far.items()
        }  # fmt: skip
        path = Path(self._config.report)
        with suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps({"beats": self._beats, "trips": rows}), encoding="utf-8")
            path.with_suffix(".new").replace(path)


def main() -> int:
    """Read the configuration, and go on in the namespace of the stubs, in the background."""
    config = CarrierConfig.from_json(sys.stdin.read())
    lock = os.open(f"{config.report}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process in the background keeps it
            break
        except BlockingIOError:
            if not left:
                return 0  # one works already
            time.sleep(0.02)  # or someone looks whether one works
    setns(os.open(config.cables, os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNET)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((config.tunnel, config.beat))
    sock.setblocking(False)
    carrier = PortCarrier(config, sock)
    if os.fork():
        return 0
    os.setsid()
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    carrier.work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
