"""An observer for tests: it keeps what is said, and does something when a step begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from heddle.base.events import Silent


@dataclass
class Listener(Silent):
    """said, warnings, reasons: lines in their order. begun: names of steps; ended: their last lines.

    at: what to do when a step begins.
    """

    at: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def begin(self, step: str, total: int | None = None) -> None:
        """Keep the step's name, then act."""
        self.begun.append(step)
        self.at.get(step, lambda: None)()

    def end(self, step: str, text: str = "") -> None:
        """Keep the step's last line."""
        self.ended.append(text)

    def say(self, text: str) -> None:
        """Keep it."""
        self.said.append(text)

    def warn(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)

    def waiting(self, step: str, reason: str) -> None:
        """Keep the reason."""
        self.reasons.append(reason)
