"""What the agent waits for: events of the programs, deadlines, and descriptors. This loop is the reference."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import NamedTuple, Protocol

from heddle.switch.pfc.timers import RELOAD, Deadlines, Timers
from heddle.switch.pfc.world import Page


class Work(NamedTuple):
    """Something for the agent to do: fd is readable; or, when it is -1, a deadline of that kind and row has passed."""

    fd: int
    kind: int
    row: int


class Loop(Deadlines, Protocol):
    """Deadlines, events and descriptors of one agent."""

    def add(self, fd: int) -> None:
        """Report when this descriptor is readable."""

    def remove(self, fd: int) -> None:
        """Report it no more; do it before it is closed."""

    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that. Empty when a signal came."""

    def rules_changed(self) -> None:
        """Use the rules as they are now."""

    def forget(self, node: str) -> None:
        """Use the sockets of this node no more."""

    def close(self) -> None:
        """Close its own descriptors."""


class ReferenceLoop:
    """The loop in Python."""

    def __init__(
        self, page: Page, events: int, take: Callable[[], None], hot: Mapping[int, Callable[[int, int], None]]
    ) -> None:
        """events: their descriptor. take: handles all of them. hot: kind of deadline -> handler (index, now)."""
        self._page, self._take, self._hot = page, take, hot
        self._timers = Timers()
        self._events, self._timer = events, self._timers.fileno()
        self._epoll = select.epoll()
        self.add(self._events)
        self.add(self._timer)

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""
        self._timers.push(when, kind, index)
        if kind == RELOAD:  # from a signal handler, which may interrupt a wait: the kernel's timer ends it
            self._timers.arm()

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""
        self._timers.cancel(kind, index)

    def add(self, fd: int) -> None:
        """Report when this descriptor is readable."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Report it no more."""
        self._epoll.unregister(fd)

    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that."""
        timers, hot = self._timers, self._hot
        while True:
            now = self._page.heartbeat_ns = monotonic_ns()
            works = []
            while (due := timers.due(now)) is not None:
                _, kind, index = due
                if (handler := hot.get(kind)) is not None:
                    handler(index, now)
                else:
                    works.append(Work(-1, kind, index))
            if works:
                return works
            timers.arm()
            for fd, _ in self._epoll.poll():
                if fd == self._events:
                    self._take()
                elif fd == self._timer:
                    timers.rang()
                else:
                    works.append(Work(fd, 0, 0))
            if works:
                return works

    def rules_changed(self) -> None:
        """Nothing to do: the handlers read the rules."""

    def forget(self, node: str) -> None:
        """Nothing to do: the handlers look into World."""

    def close(self) -> None:
        """Close its own descriptors."""
        self._epoll.close()
        self._timers.close()
