"""What engines say while they work. Engines yield facts; a progress bar, a log or nothing at all listens.

An observer is any object with these methods. `Silent` is the one that listens to nothing; the rich and the plain
one live with the command line.
"""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Listens to a long piece of work."""

    def begin(self, step: str, total: int | None = None) -> None:
        """A step began; `total` is how many units it has, when that is known."""

    def advance(self, step: str, done: int) -> None:
        """`done` units of `step` are done (absolute, not a difference)."""

    def waiting(self, step: str, reason: str) -> None:
        """`step` waits; `reason` is what is missing now, in one line."""

    def end(self, step: str, note: str = "") -> None:
        """A step ended well; `note` is what is worth knowing of it."""

    def drop(self, step: str) -> None:
        """A step ended, and other output shows that: no line about it."""

    def say(self, text: str) -> None:
        """Something worth a line."""

    def warn(self, text: str) -> None:
        """Something that went differently from what the user may expect, but is no error."""


class Silent:
    """An observer that listens to nothing."""

    def begin(self, step: str, total: int | None = None) -> None:
        """Ignore."""

    def advance(self, step: str, done: int) -> None:
        """Ignore."""

    def waiting(self, step: str, reason: str) -> None:
        """Ignore."""

    def end(self, step: str, note: str = "") -> None:
        """Ignore."""

    def drop(self, step: str) -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""

    def warn(self, text: str) -> None:
        """Ignore."""
