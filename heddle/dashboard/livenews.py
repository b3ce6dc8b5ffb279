"""Events on the live page: what has changed from one reading to the next, in sentences.

In:  readings of one lab, in order, with their figures.
Out: NewsItem. Links and sessions are reported one by one, and several of them as one line. Pauses, marks and drops come
by the thousand, so a line tells when they begin and another one, with their number, when there were none for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from heddle.base.arrays import I64
from heddle.dashboard.livefigures import PortFigures
from heddle.dashboard.livesource import LiveReading
from heddle.lab.daemons import ESTABLISHED

if TYPE_CHECKING:
    from heddle.fabric.model import Port

Kind = Literal["link", "bgp", "pause", "mark", "drop", "run", "lab", "action"]
_QUIET_S: Final = 2.0  # without a pause, a mark or a drop: then the episode has ended
_NAMED: Final = 4  # links or sessions in one line


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One line. when: UNIX time, s. good: something came back. port: what a click on it shows; may be empty."""

    when: float
    kind: Kind
    text: str
    good: bool = False
    port: str = ""

    def to_json(self) -> dict[str, Any]:
        """An entry of `news`."""
        return {name: getattr(self, name) for name in self.__slots__}


class _Episode:
    """Many small events of one kind as two lines: when they begin, and how many there were."""

    def __init__(self, kind: Kind, one: str, many: str) -> None:
        self._kind, self._one, self._many = kind, one, many
        self._began = self._last = 0.0
        self._by_port: I64 | None = None

    def more(self, when: float, counts: I64, ports: Sequence[Port]) -> Iterator[NewsItem]:
        """counts: of this interval, by port id."""
        if counts.any():
            self._last = when
            if self._by_port is None:
                self._began, self._by_port = when, counts.copy()
                first = ports[int(counts.argmax()) - 1].ref
                yield NewsItem(when, self._kind, f"{self._many} began at {first}", port=first)
            else:
                self._by_port = self._by_port + counts
        elif self._by_port is not None and when - self._last >= _QUIET_S:
            total, at = int(self._by_port.sum()), np.count_nonzero(self._by_port)
            most = ports[int(self._by_port.argmax()) - 1].ref
            word = self._one if total == 1 else self._many
            span = max(0.0, self._last - self._began)
            where = f"at {most}" if at == 1 else f"at {at} ports, most at {most}"
            self._by_port = None
            yield NewsItem(when, self._kind, f"{word} ended: {total} in {span:.1f} s {where}", good=True, port=most)


class NewsDesk:
    """Compares each reading of one lab with the one before."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports
        self._episodes = (
            _Episode("pause", "pause frame", "pause frames"),
            _Episode("mark", "ECN mark", "ECN marks"),
            _Episode("drop", "dropped packet", "dropped packets"),
        )

    def compare(self, before: LiveReading | None, after: LiveReading, figures: PortFigures) -> list[NewsItem]:
        """The events between two readings; without one before, none."""
        if before is None:
            return []
        found = [*self._links(before, after), *self._sessions(before, after)]
        for episode, counts in zip(self._episodes, (figures.pauses, figures.marks, figures.drops), strict=True):
            found += episode.more(after.when, counts, self._ports)
        return found

    def _links(self, before: LiveReading, after: LiveReading) -> Iterator[NewsItem]:
        was, now = (self._dead(each) for each in (before, after))
        for refs, word, good in ((now - was, "down", False), (was - now, "up", True)):
            if refs:
                yield _several(after.when, "link", sorted(refs), f"{{}} {word}", good)

    def _dead(self, reading: LiveReading) -> set[str]:
        """A port for each link that carries nothing: the end where it was taken down, or the first in port order."""
        down = reading.slow.down
        found = set()
        for port in self._ports:
            mine, other = down.get(port.ref), down.get(port.peer_ref)
            if mine:
                found.add(port.ref)  # it was taken down here
            elif mine is False and not other and (other is None or port.ref < port.peer_ref):
                found.add(port.ref)  # only the carrier is gone, at both ends or at a host's switch
        return found

    def _sessions(self, before: LiveReading, after: LiveReading) -> Iterator[NewsItem]:
        lost: list[str] = []
        back: list[str] = []
        silent: list[str] = []
        for switch, now in after.slow.sessions.items():
            was = before.slow.sessions.get(switch)
            if now is was:
                continue
            if now is None:
                silent += [switch] if was is not None else []
                continue
            for peer, state in now.items():
                old = (was or {}).get(peer)
                if old is not None and (old == ESTABLISHED) != (state == ESTABLISHED):
                    (back if state == ESTABLISHED else lost).append(f"{switch}:{peer}")
        for refs, text, good in ((lost, "BGP lost at {}", False), (back, "BGP established at {}", True)):
            if refs:
                yield _several(after.when, "bgp", sorted(refs), text, good)
        for switch in silent:
            yield NewsItem(after.when, "bgp", f"bgpd of {switch} does not answer")


def _several(when: float, kind: Kind, refs: Sequence[str], text: str, good: bool) -> NewsItem:
    more = f" and {len(refs) - _NAMED} more" if len(refs) > _NAMED else ""
    return NewsItem(when, kind, text.format(", ".join(refs[:_NAMED]) + more), good, refs[0])
