"""`./inv capture`: a line for each packet as it passes, a file for Wireshark, and what there was in the end."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import real, result_name
from heddle.base.problems import InputError, Problem
from heddle.base.tables import table
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_PORT
from heddle.lab.capture import Bounds, Captured, Ended, capture, read_filter
from heddle.lab.opening import open_lab
from heddle.lab.tapped import find_ports
from heddle.wire.dissect import Dissected, dissect
from heddle.wire.pcapng import Frame, PcapngFile

if TYPE_CHECKING:
    from heddle.cli.capturenotes import LiveNotes
    from heddle.lab.lab import Lab

LINES: Final = 1000  # packets that are printed where no count is given
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WHY: Final[Mapping[Ended, str]] = {
    "count": "the limit of --count",
    "time": "the time is up",
    "asked": "ended by hand",
    "lost": "ended early",
}


def bounds_of(count: int | None, seconds: float, file: str | None) -> Bounds:
    """When a capture ends. Lines that people read have a default count; a file takes all that passes in its time."""
    return Bounds(LINES if count is None and file is None else count, seconds)


def needs_port(port: str | None) -> str:
    """The port; InputError when none was typed."""
    if port is None:
        hint = f"name a port, as {EXAMPLE_PORT}, or a file: --read FILE"
        raise InputError(Problem("", "capture", "needs a PORT or --read FILE, and none was given", hint))
    return port


def run_capture(
    out: Console,
    lab: str | None,
    port: str,
    bounds: Bounds,
    filter_: str,
    file: str | None = None,
    *,
    live: bool = False,
) -> None:
    """Capture at a lab's ports, print what passes or write it to a file, and the sums at the end.

    live: lines have notes on path and queue, and are printed beside a file, too.
    """
    where = open_lab(lab)
    taps = find_ports(where, port)
    expression = read_filter(filter_)
    refs = [tap.ref for tap in taps]
    with ExitStack() as stack:
        notes = stack.enter_context(_notes_of(where)) if live else None
        seen = _Seen(out, lines=file is None or live, notes=notes)
        sink: Callable[[Sequence[Frame]], None] = seen.take
        kept = stack.enter_context(PcapngFile(real(file), refs, expression)) if file is not None else None
        if kept is not None:
            sink = _both(kept.write, seen.take)
        stop = stack.enter_context(_until_told())

        def listening() -> None:
            what = refs[0] if len(refs) == 1 else f"{len(refs)} ports"
            many = f"{bounds.packets:,} packets or " if bounds.packets is not None else ""
            out.say(f"capturing at {what}: {many}{bounds.seconds:g} s; Ctrl-C ends it")

        done = capture(
            taps, expression, bounds, sink,
            whole=file is not None, stop=stop, listening=listening, arrived=seen.arrived,
        )  # fmt: skip
        if kept is not None:
            kept.keep(done.ended_ns, done.dropped)
        for trouble in notes.troubles if notes is not None else ():
            out.say(trouble)
    path = result_name(file) if file is not None else None
    out.result(_json(where.name, refs, done, seen, path), _text(refs, done, seen, path))
    out.fail(*done.problems)


def _notes_of(lab: Lab) -> LiveNotes:
    from heddle.cli.capturenotes import LiveNotes

    return LiveNotes(lab)


def _both(first: Callable[[Sequence[Frame]], None], then: Callable[[Sequence[Frame]], None]) -> Any:
    def give(frames: Sequence[Frame]) -> None:
        first(frames)
        then(frames)

    return give


@contextmanager
def _until_told() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or SIGTERM, SIGHUP) came: the wish to end a capture, with what it has, and no error."""
    told: list[int] = []
    before = {each: signal.signal(each, lambda number, _: told.append(number)) for each in _ENDS}
    try:
        yield lambda: bool(told)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Seen:
    """What passed: lines as it comes, sums by kind, and with JSON every frame."""

    def __init__(self, out: Console, *, lines: bool, notes: LiveNotes | None = None) -> None:
        self._out = out
        self.lines = lines
        self._notes = notes
        self.packets: Counter[tuple[str, bool]] = Counter()  # by kind and direction
        self.bytes: Counter[str] = Counter()
        self.frames: list[dict[str, Any]] = []

    def take(self, frames: Sequence[Frame]) -> None:
        """Count these, and show them unless they go to a file."""
        read = [(frame, dissect(frame.data)) for frame in frames]
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
        """Packets and bytes of each kind, most packets first."""
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
    text = f"{what.text}  {notes}" if notes else what.text
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
