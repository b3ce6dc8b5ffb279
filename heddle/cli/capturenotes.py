"""What a lab knows of a packet that a capture sees: the path of its queue pair, and the queue where it passed.

In:  frames as they arrive, in a running lab.
Out: Notes. The path is a prediction over the routes and hashing tables of the last reading, at most a few seconds old.
A queue is read when the packet reaches this process, milliseconds after it passed: what stands behind it, then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.base.problems import HeddleError
from heddle.base.units import format_bytes
from heddle.lab.snapshot import LabPart
from heddle.wire.dissect import Dissected
from heddle.wire.pcapng import Frame

if TYPE_CHECKING:
    from heddle.fabric.model import Port
    from heddle.lab.lab import Lab
    from heddle.lab.snapshot import Snapshot
    from heddle.switch.queues.cells import LabQueues

_REFRESH_S: Final = 2.0  # between two readings of routes and hashing, while packets pass
_SHARE: Final = 10  # a reading is that much rarer than it takes, in a large lab
_MOST_FLOWS: Final = 100_000


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
            word = "queue" if self.outgoing else "held"
            words.append(f"{word}[{self.traffic_class}] {format_bytes(self.queue)}")
        words += ["PAUSED"] if self.paused else []
        words += [f"path {' '.join(self.path)}"] if self.path else []
        words += ["OFF ITS PATH"] if self.on_path is False else []
        return "  ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Keys beside those of the packet."""
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
        from heddle.switch.queues.classes import class_plan

        self._lab = lab
        self._stack = ExitStack()
        self._nics: Mapping[str, Port] = {
            str(port.address.ip): port for host in lab.fabric.hosts for port in host.ports if port.address is not None
        }
        self._peers = {port.ref: port.peer_ref for node in lab.fabric.nodes for port in node.ports}
        self._dscp = class_plan(lab.fabric.policy.queues).dscp
        self._paths: dict[tuple[str, str, int, int], tuple[str, ...]] = {}
        self._noted: dict[int, Notes] = {}
        self.troubles: list[str] = []
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
        from heddle.switch.queues.portids import row

        tos = frame.data[what.ip_at + 1]
        if frame.data[what.ip_at] >> 4 == 6:
            tos = int.from_bytes(frame.data[what.ip_at : what.ip_at + 2], "big") >> 4 & 0xFF
        number = self._dscp[tos >> 2]
        node, _, port = frame.port.partition(":")
        if self._queues is None or (node, port) not in self._queues.ids:
            return Notes(traffic_class=number, outgoing=frame.outgoing)
        at = row(self._queues.ids[node, port], number)
        cell, key = (self._queues.cells, "depth") if frame.outgoing else (self._queues.ingress, "occupancy")
        closed = bool(self._queues.agent[at]["closed_since_ns"])
        return Notes((), None, number, int(cell[at][key]), closed, frame.outgoing)

    def _crosses(self, path: tuple[str, ...], frame: Frame, what: Dissected) -> bool:
        from heddle.predict.spread import ports_of

        egress = frame.port if frame.outgoing else self._peers.get(frame.port, "")
        return egress in {self._nics[what.src].ref, *(port for word in path for port in ports_of(word))}

    def _path(self, what: Dissected) -> tuple[str, ...]:
        """The predicted path of a packet's flow; empty when it is not of the fabric, or not known."""
        key = what.src, what.dst, int(what.fields["sport"]), int(what.fields["qpn"])
        if not self._trusted or what.src not in self._nics or what.dst not in self._nics:
            return ()
        if time.monotonic() >= self._next:
            self._read_lab()
        if key not in self._paths and self._now is not None:
            if len(self._paths) >= _MOST_FLOWS:
                self._paths.clear()
            self._paths[key] = self._predicted(self._now, *key)
        return self._paths.get(key, ())

    def _read_lab(self) -> None:
        began = time.monotonic()
        self._paths.clear()
        try:
            self._now = self._lab.snapshot(LabPart.FIBS | LabPart.HASHING)
        except HeddleError as error:  # the lab goes down
            self._give_up(error)
        now = time.monotonic()
        self._next = now + max(_REFRESH_S, _SHARE * (now - began))

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
