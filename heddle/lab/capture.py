"""Captures at ports of a running lab: tcpdump in each port's namespace, and their packets in the order of time.

In:  a lab, ports as `rtsw1:eth1`, a filter, and bounds: seconds, and packets where there is a limit.
Out: Frames, handed on as they come; then Captured: how many, for how long, why it ended, what the kernel dropped.
Only the port's namespace is used, so a capture is the same in every runtime. tcpdump stands in the namespace: `down`
ends it with the lab, and it dies with this process. A port behind a delay line has a second tcpdump, at the line.
In a lab in shards it runs in the port's shard, and its times are translated to this machine's clock.
What a capture sees of queues and BPF programs: docs/capture.md.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from heddle.base.problems import InputError, MachineError, Problem, Problems, did_you_mean, nearest, trouble
from heddle.base.process import run
from heddle.fabric.wiring import Port
from heddle.kernel.namespace import inside
from heddle.lab.spread import only, spread
from heddle.wire.pcapng import SNAP_BYTES, Frame, PcapReader

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

FILTERS: Final[Mapping[str, str]] = {"all": "", "roce": "udp dst port 4791", "bgp": "tcp port 179"}
_EXAMPLE: Final = "or an expression as tcpdump takes it: --filter 'udp port 4791 and host 10.0.1.2'"
_MOST_PACKETS: Final = 10_000_000
MOST_SECONDS: Final = 86_400.0
_RING_KIB: Final = 32_768  # for packets that wait for tcpdump, all ports together
_LINK_HEADERS: Final = 64  # Ethernet and what may be between it and IP
_HEAD_BYTES: Final = 192  # all headers that a line is made of; the rest is not copied
_MERGE_NS: Final = 50_000_000  # a packet of one port waits so long for earlier ones of another
_FAR_MERGE_NS: Final = 500_000_000  # the same, of ports in shards
_MOST_WAITING: Final = 1_000_000  # frames: more are handed on early, as when times of a shard are in the future
_LOOK_S: Final = 0.1  # how soon Ctrl-C, and a namespace that is gone, are seen
_START_S: Final = 10.0
_END_S: Final = 3.0  # for tcpdump to hand on what it has and to say what was dropped
_GONE_S: Final = 2.0  # between the end of tcpdump and that of its namespace when a lab goes down
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)

Ended = Literal["count", "time", "asked", "lost"]
Sink = Callable[[Sequence[Frame]], None]
Stop = Callable[[], bool]
Arrived = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a capture ends, whichever is first. packets: None is any number. InputError for bounds that are none."""

    packets: int | None
    seconds: float

    def __post_init__(self) -> None:
        problems = Problems()
        if self.packets is not None and not 0 < self.packets <= _MOST_PACKETS:
            why = "is no number of packets to capture"
            problems.add(where="", what=f"--count {self.packets}", why=why, hint=f"from 1 to {_MOST_PACKETS}")
        if not 0 < self.seconds <= MOST_SECONDS:
            why, hint = "is no time to capture for", f"more than 0, and at most {MOST_SECONDS:g} (a day)"
            problems.add(where="", what=f"--seconds {self.seconds:g}", why=why, hint=hint)
        problems.raise_if_any()


@dataclass(frozen=True, slots=True)
class Captured:
    """How a capture went. dropped: packets that the kernel had no room for, by port; without an entry it is not known.

    bytes: on the wire, without FCS. ended: by `count` or `time`, because it was `asked` to, or it `lost` a port, which
    `problems` then names.
    """

    packets: int
    bytes: int
    seconds: float
    ended: Ended
    ended_ns: int
    dropped: Mapping[str, int]
    problems: tuple[Problem, ...] = ()


def read_filter(text: str) -> str:
    """The pcap-filter expression that a name (roce, bgp, all) stands for, or the expression itself when it is one.

    InputError with tcpdump's words when it is not.
    """
    if text in FILTERS:
        return FILTERS[text]
    done = run(["tcpdump", "-y", "EN10MB", "-d", "--", text], check=False, timeout=20)
    if done.code != 0:
        reason = _complaint(done.err) or f"tcpdump ends with {done.code}"
        near = nearest(text, FILTERS)
        hint = f"did you mean {near}?" if near else f"{', '.join(sorted(FILTERS))}; {_EXAMPLE}"
        raise InputError(Problem("", f"--filter {text}", f"is no filter: {reason}", hint))
    return text


def capture(
    taps: Sequence[Tapped],
    expression: str,
    bounds: Bounds,
    sink: Sink,
    *,
    whole: bool = False,
    stop: Stop = lambda: False,
    listening: Callable[[], None] = lambda: None,
    arrived: Arrived = lambda frame: None,
) -> Captured:
    """Capture at these ports until a bound is reached, `stop` says so, or a port is lost.

    sink: gets the frames, a few at a time, in the order of their time. whole: keep all bytes of a frame, else those
    that its headers are in. listening: called when every port is listened at, which is when the time begins to run.
    arrived: gets each frame as soon as tcpdump hands it on, before frames of several ports are put in order.
    MachineError when tcpdump cannot be started.
    """
    with ExitStack() as stack:
        children = []
        for tap in taps:
            # A ring holds as many packets as such lengths fit in it, whatever their own lengths are.
            snap = min(SNAP_BYTES, tap.mtu + _LINK_HEADERS) if whole else _HEAD_BYTES
            for interface, some in tap.places(expression):
                children.append(_Child(tap, interface, some, snap, _RING_KIB // len(taps)))
                stack.callback(children[-1].close)
        _await_start(children)
        work = _Work(children, bounds, sink, stop, arrived)
        listening()
        return work.run()


class _Child:
    """tcpdump at one interface, its packets on a pipe: the port itself, or the end of its delay line."""

    def __init__(self, tap: Tapped, interface: str, expression: str, snap_bytes: int, ring_kib: int) -> None:
        self.tap, self.interface = tap, interface
        self._reader = PcapReader()
        self._errors = os.memfd_create("tcpdump", os.MFD_CLOEXEC)
        # As root still: becoming another user would take away the signal that ends it when we are killed.
        argv = [
            *tap.enter,
            *("tcpdump", "-i", interface, "-n", "-w", "-", "-U", "--immediate-mode", "--nano", "-Z", "root"),
            *("-s", str(snap_bytes), "-B", str(ring_kib), "--", *([expression] if expression else [])),
        ]
        try:
            self.proc = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if tap.shard else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C reaches us, and we end it
            )
        except OSError as error:
            os.close(self._errors)
            raise trouble(error, argv[0]) from None
        assert self.proc.stdout is not None  # noqa: S101  (a pipe was asked for)
        self.out = self.proc.stdout.fileno()

    @property
    def started(self) -> bool:
        return self._reader.started

    @property
    def errors(self) -> str:
        return os.pread(self._errors, 1 << 16, 0).decode(errors="replace")

    def read(self) -> list[tuple[int, int, bytes]] | None:
        """The records that have come; None when there is nothing more to come. MachineError for what is no capture."""
        piece = os.read(self.out, 1 << 18)
        try:
            return list(self._reader.feed(piece)) if piece else None
        except ValueError as error:
            raise MachineError(Problem("", f"the capture at {self.tap.ref}", f"cannot be read: {error}")) from None

    def end(self) -> None:
        """Ask it to end: it hands on what it has, and says what was dropped."""
        if self.proc.stdin is not None:
            self.proc.stdin.close()
            return
        with suppress(ProcessLookupError):
            self.proc.send_signal(signal.SIGINT)

    @property
    def dropped(self) -> int | None:
        """Packets that the kernel had no room for, as it says at its end; None when it could not say."""
        found = _DROPPED.search(self.errors)
        return int(found[1]) if found else None

    def close(self) -> None:
        if self.proc.stdin is not None:  # what ends it in its shard
            self.proc.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.proc.wait(_GONE_S)
        with suppress(ProcessLookupError):
            self.proc.kill()
        self.proc.wait()
        if self.proc.stdout is not None:
            self.proc.stdout.close()
        os.close(self._errors)


def _await_start(children: Sequence[_Child]) -> None:
    """Return when all listen; MachineError when one does not."""
    deadline = time.monotonic() + _START_S
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.out, selectors.EVENT_READ, child)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(key.data.tap.ref for key in selector.get_map().values())
                why, hint = f"does not listen after {_START_S:g} s", "names in a filter are looked up: write addresses"
                raise MachineError(Problem("", f"tcpdump at {late}", why, hint))
            for key, _ in ready:
                # What comes before all of them listen is not of this capture.
                if key.data.read() is None:
                    code = key.data.proc.wait()
                    why = f"cannot capture: {_complaint(key.data.errors) or f'it ended with {code}'}"
                    raise MachineError(Problem("", f"tcpdump at {key.data.tap.ref}", why))
                if key.data.started:
                    selector.unregister(key.fd)


class _Work:
    """One capture under way."""

    def __init__(self, children: Sequence[_Child], bounds: Bounds, sink: Sink, stop: Stop, arrived: Arrived) -> None:
        self._children, self._bounds, self._sink, self._stop, self._on_arrival = children, bounds, sink, stop, arrived
        self._waiting: list[tuple[int, int, Frame]] = []  # a heap: time, order of arrival
        self._arrived = 0
        self._packets = self._bytes = 0
        self._began = time.monotonic()
        self._began_ns = time.time_ns()
        self._last_ns = self._began_ns + round(bounds.seconds * 1e9)
        self._lost: list[_Child] = []

    def run(self) -> Captured:
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                selector.register(child.out, selectors.EVENT_READ, child)
            ended = self._until_end(selector)
            seconds = min(time.monotonic() - self._began, self._bounds.seconds)
            self._last_ns = min(self._last_ns, time.time_ns())
            for child in self._children:
                child.end()
            deadline = time.monotonic() + _END_S
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                self._take(selector, left)
        self._hand_on(self._last_ns)
        problems = tuple(_loss(child) for child in self._lost[:1]) if ended == "lost" else ()
        known: dict[str, int] = {}
        for child in self._children:
            if child.dropped is not None:
                known[child.tap.ref] = known.get(child.tap.ref, 0) + child.dropped
        return Captured(self._packets, self._bytes, seconds, ended, self._last_ns, known, problems)

    def _until_end(self, selector: selectors.BaseSelector) -> Ended:
        deadline = self._began + self._bounds.seconds
        # Packets of one port come in order; those of several have to be put in order.
        far = any(child.tap.shard for child in self._children)
        wait_ns = (_FAR_MERGE_NS if far else _MERGE_NS) if len(self._children) > 1 else 0
        while True:
            if self._stop():
                return "asked"
            left = deadline - time.monotonic()
            if left <= 0:
                return "time"
            self._lost += self._take(selector, min(left, _LOOK_S))
            self._hand_on(time.time_ns() - wait_ns if wait_ns else self._last_ns)
            if self._bounds.packets is not None and self._packets >= self._bounds.packets:
                return "count"
            if not self._lost:
                # A namespace lives while tcpdump stands in it; without its name its lab is gone all the same.
                self._lost = [child for child in self._children if not child.tap.exists()]
            if self._lost:
                return "lost"

    def _take(self, selector: selectors.BaseSelector, seconds: float) -> list[_Child]:
        """Take in what has come within so many seconds; returns those that have ended."""
        ended = []
        for key, _ in selector.select(seconds):
            child: _Child = key.data
            records = child.read()
            if records is None:
                selector.unregister(key.fd)
                ended.append(child)
                continue
            for frame in self._frames(child.tap, records):
                self._on_arrival(frame)
                heapq.heappush(self._waiting, (frame.time_ns, self._arrived, frame))
                self._arrived += 1
        return ended

    def _frames(self, tap: Tapped, records: Sequence[tuple[int, int, bytes]]) -> Iterator[Frame]:
        for there_ns, wire_bytes, data in records:
            time_ns = there_ns - tap.ahead_ns
            if self._began_ns <= time_ns <= self._last_ns:
                since = (time_ns - self._began_ns) / 1e9
                yield Frame(tap.ref, time_ns, since, tap.sent(data), wire_bytes, data)

    def _hand_on(self, until_ns: int) -> None:
        """Give the sink what is not later than that, as far as the bound allows."""
        frames: list[Frame] = []
        room = None if self._bounds.packets is None else self._bounds.packets - self._packets
        while self._waiting and (room is None or len(frames) < room):
            if self._waiting[0][0] > until_ns and len(self._waiting) <= _MOST_WAITING:
                break
            frames.append(heapq.heappop(self._waiting)[2])
        if frames:
            self._packets += len(frames)
            self._bytes += sum(frame.wire_bytes for frame in frames)
            self._sink(frames)


def _loss(child: _Child) -> Problem:
    """Why a port could not be listened at any longer."""
    tap = child.tap
    what = f"the capture at {tap.ref}"
    deadline = time.monotonic() + _GONE_S
    while tap.exists() and not tap.shard and time.monotonic() < deadline:  # ports go before it, too
        time.sleep(0.05)
    if tap.shard:
        reason = _complaint(child.errors)
        why = f"ended early: its listener in shard {tap.shard} {f'says: {reason}' if reason else 'has ended'}"
        return Problem("", what, why, "./inv status says whether the shard runs")
    if not tap.exists():
        return Problem("", what, "ended early: its node is gone, most likely with its lab", "./inv status shows labs")
    if not tap.has(child.interface):
        if child.interface != tap.name:
            why = "ended early: the delay line of its link is gone: ./inv fault has changed the link"
            return Problem("", what, why, "start the capture again")
        return Problem("", what, "ended early: the port is gone", "./inv validate says what else is wrong")
    code = child.proc.poll()
    reason = "" if code == 0 else _complaint(child.errors)
    why = f"ended early: tcpdump {f'says: {reason}' if reason else 'was ended by another process'}"
    return Problem("", what, why)


def _complaint(text: str) -> str:
    """tcpdump's complaint, without its name before it and without its statistics."""
    lines = [line.removeprefix("tcpdump: ") for line in text.splitlines() if line.startswith("tcpdump: ")]
    return "; ".join(line for line in lines if not line.startswith(("listening on", "verbose output")))


_MOST_PORTS: Final = 64  # a process each
_SIOCGIFMTU: Final = 0x8921  # linux/sockios.h
_SIOCGIFHWADDR: Final = 0x8927
_OUTLET: Final = re.compile(r"back[0-9]+")  # DelayLine.outlet


@dataclass(frozen=True, slots=True)
class Tapped:
    """A port to capture at. mac: what its own frames come from, which tells those that leave from those that come.

    mtu: bytes of its largest IP packet; no frame is longer than that and its headers, since offloads are off.
    outlet: the interface at the end of the delay line that leads to the port; empty without one. far: for a port in a
    bridge, which sends frames from any MAC, the MAC at the other end; else empty. shard: empty on this machine; enter:
    the start of a command that runs in the port's namespace; ahead_ns: how far the clock there is ahead of ours.
    """

    ref: str
    netns: Path
    name: str
    mac: bytes
    mtu: int
    outlet: str = ""
    far: bytes = b""
    shard: str = ""
    enter: tuple[str, ...] = ()
    ahead_ns: int = 0

    def exists(self) -> bool:
        """Whether its namespace is there. Of one in a shard, the end of the listener tells."""
        return bool(self.shard) or self.netns.exists()

    def sent(self, frame: bytes) -> bool:
        """Whether the port sent a frame that was seen at it."""
        return frame[6:12] != self.far if self.far else frame[6:12] == self.mac

    def places(self, expression: str) -> Iterator[tuple[str, str]]:
        """Where to listen, each with its pcap-filter expression, so that each packet is seen once."""
        if not self.outlet:
            yield self.name, expression
            return
        # By address, as all directions of a capture. Pause frames pass no delay line.
        own = f"ether src {self.mac.hex(':')} or ether proto 0x8808"
        yield self.name, f"({own}) and ({expression})" if expression else own
        yield self.outlet, expression

    def has(self, interface: str) -> bool:
        """Whether the interface is there; a namespace that goes away just now has none. Not for one in a shard."""
        try:
            with inside(self.netns):
                return interface in (name for _, name in socket.if_nameindex())
        except (MachineError, OSError):
            return False


def find_ports(lab: Lab, text: str) -> list[Tapped]:
    """The ports meant by `rtsw1:eth1`, `rtsw1` (all of its ports) or several with commas; InputError says what is none.

    MachineError when a port should be there and is not.
    """
    problems = Problems()
    found: dict[str, Tapped] = {}
    for word in text.split(","):
        node, colon, name = word.strip().partition(":")
        try:
            if node:
                lab.handle(node)
            taps = _of_node(lab, node, name if colon else None)
        except InputError as error:
            problems.found += error.problems
            continue
        found |= {tap.ref: tap for tap in taps}
    problems.raise_if_any()
    if len(found) > _MOST_PORTS:
        why = f"are {len(found)} ports, and a capture takes at most {_MOST_PORTS}"
        raise InputError(Problem("", text, why, f"name those that matter: {next(iter(found))},..."))
    return [_in_shard(lab, tap) for tap in found.values()] if not lab.runtime.here else list(found.values())


def _in_shard(lab: Lab, tap: Tapped) -> Tapped:
    shards = lab.runtime.shards(lab.name)
    assert shards is not None  # noqa: S101  (the runtime is not here)
    node = tap.ref.partition(":")[0]
    shard = shards.of(node)
    ahead_ns = shards.clocks()[shard].ahead_ns + epoch_ns(lab, node) - (time.time_ns() - time.monotonic_ns())
    enter = shards.module(shard, ["heddle.shards.piped", str(tap.netns)])
    return replace(tap, shard=shard, enter=tuple(enter), ahead_ns=ahead_ns)


@spread(only, nodes=lambda node: [node])
def epoch_ns(lab: Lab, node: str) -> int:
    """When CLOCK_MONOTONIC was 0 where the node is, as UNIX time in ns."""
    return time.time_ns() - time.monotonic_ns()


@spread(only, nodes=lambda node, _: [node])
def _of_node(lab: Lab, node: str, name: str | None) -> list[Tapped]:
    if not node:
        example = lab.fabric.nodes[0].ports[0].ref
        raise InputError(Problem("", repr(f"{node}:{name}" if name else ""), "is not a port", f"write {example}"))
    netns = lab.handle(node).netns
    enter = ("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={netns}")
    wanted = [port.name for port in lab.fabric.by_name[node].ports] if node in lab.fabric.by_name else []
    with inside(netns):
        there = [each for _, each in socket.if_nameindex()]
        chosen = wanted if name is None else [name]
        macs = {each: _mac(each) for each in chosen if each in there}
        mtus = {each: _mtu(each) for each in macs}
        lines = {_mac(each): each for each in there if _OUTLET.fullmatch(each)}
    for each in chosen:
        if each in macs:
            continue
        if each not in wanted:
            hint = did_you_mean(f"{node}:{each}", [f"{node}:{port}" for port in wanted or there])
            raise InputError(Problem("", f"{node}:{each}", f"is not a port of {node}", hint))
        hint = f"./inv validate says what else is wrong; ./inv down {lab.name}, then up again, recreates it"
        raise MachineError(Problem("", f"{node}:{each}", "is not there any more", hint))
    far = {port.name: _far_mac(lab, port) for port in lab.fabric.by_name[node].ports} if wanted else {}
    return [
        Tapped(
            f"{node}:{each}", netns, each, macs[each], mtus[each], lines.get(macs[each], ""), far.get(each, b""),
            enter=enter,
        )
        for each in chosen
    ]  # fmt: skip


def _far_mac(lab: Lab, port: Port) -> bytes:
    peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    return b"" if port.bridge is None else bytes.fromhex(peer.mac.replace(":", ""))


def _mac(interface: str) -> bytes:
    """The hardware address of an interface of the namespace that this thread stands in."""
    return _asked(_SIOCGIFHWADDR, interface)[18:24]


def _mtu(interface: str) -> int:
    """The MTU of an interface of the namespace that this thread stands in."""
    return int(struct.unpack_from("=i", _asked(_SIOCGIFMTU, interface), 16)[0])


def _asked(request: int, interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("256s", interface.encode()))
