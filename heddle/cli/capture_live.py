"""`./inv capture` in a lab: a line for each packet as it passes, a file for Wireshark, and the sums at the end.

With --live a line has notes on the path of the packet's queue pair and on its queue. The path is a prediction over the
routes and hashing tables of the last reading, at most a few seconds old. A queue is read when the packet reaches this
process, milliseconds after it passed: what stands behind it, then. Over shards it is read at most every 5 ms.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.base.files import real, result_name
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.base.tables import table
from heddle.base.units import format_bytes
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_PORT
from heddle.lab.capture import Bounds, Captured, Ended, capture, find_ports, read_filter
from heddle.lab.opening import open_lab
from heddle.lab.snapshot import LabPart
from heddle.wire.dissect import Dissected, dissect
from heddle.wire.pcapng import Frame, PcapngFile

if TYPE_CHECKING:
    from heddle.fabric.wiring import Port
    from heddle.lab.lab import Lab
    from heddle.lab.queues import PortLevel
    from heddle.lab.snapshot import Snapshot
    from heddle.switch.queues.cells import LabQueues

LINES: Final = 1000  # packets that are printed where no count is given
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WHY: Final[Mapping[Ended, str]] = {
    "count": "the limit of --count",
    "time": "the time is up",
    "asked": "ended by hand",
    "lost": "ended early",
}
_REFRESH_S: Final = 2.0  # between two readings of routes and hashing, while packets pass
_SHARE: Final = 10  # a reading is that much rarer than it takes, in a large lab
_LEVEL_S: Final = 0.005  # between two readings of a port in a shard
_MOST_FLOWS: Final = 100_000


def bounds_of(count: int | None, seconds: float, file: str | None) -> Bounds:
    """When a capture ends. Lines that people read have a default count; a file takes all that passes in its time."""
    return Bounds(LINES if count is None and file is None else count, seconds)


def run_capture(
    out: Console,
    lab: str | None,
    port: str | None,
    bounds: Bounds,
    filter_: str,
    file: str | None = None,
    *,
    live: bool = False,
) -> None:
    """Capture at a lab's ports, print what passes or write it to a file, and the sums at the end.

    live: lines have notes on path and queue, and are printed beside a file, too.
    """
    if port is None:
        hint = f"name a port, as {EXAMPLE_PORT}, or a file: --read FILE"
        raise InputError(Problem("", "capture", "needs a PORT or --read FILE, and none was given", hint))
    where = open_lab(lab)
    taps = find_ports(where, port)
    expression = read_filter(filter_)
    refs = [tap.ref for tap in taps]
    with ExitStack() as stack:
        notes = stack.enter_context(LiveNotes(where)) if live else None
        kept = stack.enter_context(PcapngFile(real(file), refs, expression)) if file is not None else None
        seen = _Seen(out, kept, notes)
        stop = stack.enter_context(_until_asked())

        def listening() -> None:
            what = refs[0] if len(refs) == 1 else f"{len(refs)} ports"
            many = f"{bounds.packets:,} packets or " if bounds.packets is not None else ""
            out.say(f"capturing at {what}: {many}{bounds.seconds:g} s; Ctrl-C ends it")

        done = capture(
            taps, expression, bounds, seen.take,
            whole=file is not None, stop=stop, listening=listening, arrived=seen.arrived,
        )  # fmt: skip
        if kept is not None:
            kept.keep(done.ended_ns, done.dropped)
        for trouble in notes.troubles if notes is not None else ():
            out.say(trouble)
    path = result_name(file) if file is not None else None
    out.result(_json(where.name, refs, done, seen, path), _text(refs, done, seen, path))
    out.fail(*done.problems)


@contextmanager
def _until_asked() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or SIGTERM, SIGHUP) came: the wish to end a capture, with what it has, and no error."""
    signals: list[int] = []
    before = {each: signal.signal(each, lambda number, _: signals.append(number)) for each in _ENDS}
    try:
        yield lambda: bool(signals)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Seen:
    """What passed: lines as it comes, sums by kind, and with JSON every frame."""

    def __init__(self, out: Console, file: PcapngFile | None, notes: LiveNotes | None) -> None:
        self._out = out
        self._file = file
        self.lines = file is None or notes is not None
        self._notes = notes
        self.packets: Counter[tuple[str, bool]] = Counter()  # by kind and direction
        self.bytes: Counter[str] = Counter()
        self.frames: list[dict[str, Any]] = []

    def take(self, frames: Sequence[Frame]) -> None:
        """Count these, write them to the file, and show them."""
        if self._file is not None:
            self._file.write(frames)
        read = [(frame, dissect(frame.data, frame.wire_bytes)) for frame in frames]
        for frame, what in read:
            self.packets[what.kind, frame.outgoing] += 1
            self.bytes[what.kind] += frame.wire_bytes
        if self.lines and self._out.json:
            self.frames += [
                frame_json(frame.port, frame.seconds, _way(frame), frame.wire_bytes, what)
                | (self._notes.of(frame, what).to_json() if self._notes else {})
                for frame, what in read
            ]
        elif self.lines:
            lines = [packet_line(frame.seconds, frame.port, _way(frame), what, self._said(frame, what))
                     for frame, what in read]  # fmt: skip
            self._out.show("\n".join(lines))

    def arrived(self, frame: Frame) -> None:
        """Note what the lab knows of a frame that has just come."""
        if self._notes is not None:
            self._notes.arrived(frame, dissect(frame.data))

    def _said(self, frame: Frame, what: Dissected) -> str:
        return self._notes.of(frame, what).text() if self._notes is not None else ""

    def kinds(self) -> list[dict[str, Any]]:
        rows = [(kind, self.packets[kind, False], self.packets[kind, True]) for kind in self.bytes]
        rows.sort(key=lambda row: (-row[1] - row[2], row[0]))
        return [
            {"kind": kind, "packets": came + left, "in": came, "out": left, "bytes": self.bytes[kind]}
            for kind, came, left in rows
        ]


def _way(frame: Frame) -> str:
    return "out" if frame.outgoing else "in"


def packet_line(seconds: float, port: str, direction: str, what: Dissected, notes: str = "") -> str:
    """A packet on one line. direction: out, in, or empty where it is not known; notes: what else is known of it."""
    ends = f"{what.src} -> {what.dst}"
    head = f"{port:<11} {direction:<3} " if port or direction else ""
    text = "  ".join(word for word in (what.text, what.tunnel and f"in {what.tunnel}", notes) if word)
    return f"{seconds:10.6f}  {head}{ends:<38}  {what.kind:<9}  {text}".rstrip()


def frame_json(port: str, seconds: float, direction: str, wire_bytes: int, what: Dissected) -> dict[str, Any]:
    """A packet as data."""
    return {
        "port": port,
        "time_s": round(seconds, 9),
        "direction": direction,
        "src": what.src,
        "dst": what.dst,
        "bytes": wire_bytes,
        "kind": what.kind,
        "text": what.text,
        **({"tunnel": what.tunnel} if what.tunnel else {}),
        **what.fields,
    }


def _dropped(done: Captured, refs: Sequence[str]) -> int | None:
    """Packets that the kernel had no room for, at all ports; None when not all could say."""
    return sum(done.dropped.values()) if all(ref in done.dropped for ref in refs) else None


def _json(lab: str, refs: list[str], done: Captured, seen: _Seen, file: str | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "lab": lab,
        "ports": refs,
        "packets": done.packets,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
        "ended": done.ended,
        "dropped": _dropped(done, refs),
        "kinds": seen.kinds(),
    }
    return data | ({"frames": seen.frames} if seen.lines else {}) | {"file": file}


def _text(refs: Sequence[str], done: Captured, seen: _Seen, file: str | None) -> str:
    rows = [[str(row["kind"]), *(f"{row[key]:,}" for key in ("packets", "in", "out", "bytes"))] for row in seen.kinds()]
    shown = ["", table(("kind", "packets", "in", "out", "bytes"), rows), ""] if rows else []
    where = refs[0] if len(refs) == 1 else f"{len(refs)} ports"
    many = f"{done.packets:,} packets, {done.bytes:,} bytes at {where} in {done.seconds:.1f} s ({_WHY[done.ended]})"
    dropped = _dropped(done, refs)
    lost = "how many more the kernel dropped is not known" if dropped is None else f"the kernel dropped {dropped:,}"
    shown.append(f"{many}; {lost}")
    if not done.packets:
        shown.append("nothing passed: packets that wait in a port's queue have not; see docs/capture.md")
    if file is not None:
        shown.append(f"wrote {file}; tshark -r {shlex.quote(file)} reads it")
    return "\n".join(shown)


@dataclass(frozen=True, slots=True)
class Notes:
    """What is known of one packet.

    path: egress ports from the first switch on; empty if it is not known. on_path: whether the packet's port is on it.
    queue: bytes of its class that wait to leave by its port; of a packet that comes in, those that came by its port and
    have not left the switch. paused: the class may not leave by its port now. None: not known.
    """

    path: tuple[str, ...] = ()
    on_path: bool | None = None
    traffic_class: int | None = None
    queue: int | None = None
    paused: bool | None = None
    outgoing: bool = True

    def text(self) -> str:
        """For the end of a packet's line."""
        words = []
        if self.queue is not None:
            word = "queue" if self.outgoing else "ingress"
            words.append(f"{word}[{self.traffic_class}] {format_bytes(self.queue)}")
        words += ["PAUSED"] if self.paused else []
        words += [f"path {' '.join(self.path)}"] if self.path else []
        words += ["OFF ITS PATH"] if self.on_path is False else []
        return "  ".join(words)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": list(self.path), "on_path": self.on_path, "class": self.traffic_class,
            "queue_bytes": self.queue, "paused": self.paused,
        }  # fmt: skip


class LiveNotes:
    """Notes on the RoCEv2 packets of a lab, for the length of a with block.

    troubles: why notes are missing, if they are: the lab has no queues of Heddle, or a hash that is not modelled.
    """

    def __init__(self, lab: Lab) -> None:
        from heddle.predict.selftest import verdict

        self._lab = lab
        self._stack = ExitStack()
        self._nics: Mapping[str, Port] = lab.fabric.nic_at
        self._peers = {port.ref: port.peer_ref for node in lab.fabric.nodes for port in node.ports}
        self._dscp = lab.fabric.policy.queues.class_of_dscp
        self._paths: dict[tuple[str, str, int, int], tuple[str, ...]] = {}
        self._noted: dict[int, Notes] = {}
        self.troubles: list[str] = []
        self._levels: dict[tuple[str, str], tuple[float, list[PortLevel]]] = {}  # in shards, with the time of reading
        self._queueless = False
        self._queues = self._opened()
        self._now: Snapshot | None = None
        self._next = 0.0
        self._trusted = not verdict().differs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _opened(self) -> LabQueues | None:
        from heddle.switch.queues.cells import LabQueues

        if not self._lab.runtime.here:
            return None
        try:
            return self._stack.enter_context(LabQueues.pinned(self._lab.fabric))
        except HeddleError as error:
            self.troubles.append(f"no queue notes: {error.problems[0].what} {error.problems[0].why}")
            return None

    def arrived(self, frame: Frame, what: Dissected) -> None:
        """Note what is true now. `of` gives it back when the frame's line is printed."""
        if what.ip_at and len(self._noted) < _MOST_FLOWS:
            self._noted[id(frame)] = self._queue(frame, what)

    def of(self, frame: Frame, what: Dissected) -> Notes:
        """The notes on a frame, once; empty ones for what is not RoCEv2."""
        found = self._noted.pop(id(frame), None)
        if found is None:
            return Notes()
        path = self._path(what)
        return replace(found, path=path, on_path=self._crosses(path, frame, what) if path else None)

    def _queue(self, frame: Frame, what: Dissected) -> Notes:
        tos = frame.data[what.ip_at + 1]
        if frame.data[what.ip_at] >> 4 == 6:
            tos = int.from_bytes(frame.data[what.ip_at : what.ip_at + 2], "big") >> 4 & 0xFF
        number = self._dscp[tos >> 2]
        node, _, port = frame.port.partition(":")
        level = self._level(node, port, number) if frame.port in self._peers else None
        if level is None:
            return Notes(traffic_class=number, outgoing=frame.outgoing)
        queue = level.depth if frame.outgoing else level.occupancy
        return Notes((), None, number, queue, level.paused, frame.outgoing)

    def _level(self, node: str, port: str, number: int) -> PortLevel | None:
        """The queue of a class now; in a shard it is read at most every few milliseconds. None: not known."""
        from heddle.lab.queues import PortLevel, port_levels

        if self._queues is not None:
            return PortLevel.of(self._queues, node, port, number)
        if self._lab.runtime.here or self._queueless:
            return None
        read_at, levels = self._levels.get((node, port), (0.0, []))
        if time.monotonic() > read_at + _LEVEL_S:
            try:
                levels = port_levels(self._lab, node, port)
            except HeddleError as error:
                self._queueless = True
                self.troubles.append(f"no queue notes: {error.problems[0].what} {error.problems[0].why}")
                return None
            self._levels[node, port] = time.monotonic(), levels
        return levels[number]

    def _crosses(self, path: tuple[str, ...], frame: Frame, what: Dissected) -> bool:
        from heddle.predict.walk import ports_of

        egress = frame.port if frame.outgoing else self._peers.get(frame.port, "")
        return egress in {self._nics[what.src].ref, *(port for word in path for port in ports_of(word))}

    def _path(self, what: Dissected) -> tuple[str, ...]:
        """The predicted path of a packet's flow; empty when it is not of the fabric, or not known."""
        key = what.src, what.dst, int(what.fields["sport"]), int(what.fields["qpn"])
        if not self._trusted or what.src not in self._nics or what.dst not in self._nics:
            return ()
        if time.monotonic() >= self._next:
            began = time.monotonic()
            self._paths.clear()
            try:
                self._now = self._lab.snapshot(LabPart.FIBS | LabPart.HASHING)
            except HeddleError as error:  # the lab goes down
                self._give_up(error)
            now = time.monotonic()
            self._next = now + max(_REFRESH_S, _SHARE * (now - began))
        if key not in self._paths and self._now is not None:
            if len(self._paths) >= _MOST_FLOWS:
                self._paths.clear()
            self._paths[key] = self._predicted(self._now, *key)
        return self._paths.get(key, ())

    def _predicted(self, now: Snapshot, src: str, dst: str, sport: int, qpn: int) -> tuple[str, ...]:
        from heddle.predict.predict import predict
        from heddle.traffic.flow import Flow

        start, end = self._nics[src], self._nics[dst]
        flow = Flow(start.node, end.node, src, dst, sport, qpn, start.peer_ref)
        try:
            (path,) = predict(self._lab.fabric, now.fibs, now.hashing, [flow])
        except HeddleError as error:
            self._give_up(error)
            return ()
        return path

    def _give_up(self, error: HeddleError) -> None:
        self._trusted = False
        self.troubles.append(f"no path notes: {error.problems[0].what} {error.problems[0].why}")
