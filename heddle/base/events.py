"""Progress reports of engines. An engine reports facts; a progress bar, a log or nothing listens.

An observer overrides the methods that it needs. `Silent` ignores all reports; the rich and the plain one are in the
room of the command line.
"""

from __future__ import annotations


class Observer:
    """Listens to a long piece of work. Here, all reports are ignored."""

    def begin(self, step: str, total: int | None = None) -> None:
        """A step began; `total` is its number of units, if known."""

    def advance(self, step: str, done: int) -> None:
        """`done` units of `step` are done (absolute, not a difference)."""

    def waiting(self, step: str, reason: str) -> None:
        """`step` waits; `reason` says in one line what is missing."""

    def end(self, step: str, note: str = "") -> None:
        """A step succeeded; `note` is a remark about it."""

    def drop(self, step: str) -> None:
        """A step ended, and other output shows that: no line about it."""

    def say(self, text: str) -> None:
        """Show one line of information."""

    def warn(self, text: str) -> None:
        """Show something that the user may not expect, but that is not an error."""


class Silent(Observer):
    """An observer that ignores all reports."""
