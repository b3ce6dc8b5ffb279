"""What a diagnosis finds, as values: an observation, a finding, and what the check of one cause came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Confidence = Literal["established", "likely"]
Kind = Literal["node", "interface", "link"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One line of evidence. source: the reading that shows it: `counters of the run`, `kernels now`, `probes`."""

    text: str
    source: str

    def to_json(self) -> dict[str, str]:
        return {"text": self.text, "from": self.source}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause at an object. cause: a key of CAUSES. object: a node, or a port (`rtsw1:eth1`).

    what: the cause with its object as a sentence without its end, such as `rtsw1:eth1 loses packets`.
    also: other ports that the evidence cannot distinguish from the object.
    """

    cause: str
    object: str
    what: str
    confidence: Confidence
    evidence: tuple[Observation, ...]
    also: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause, "object": self.object, "what": self.what, "confidence": self.confidence,
            "evidence": [each.to_json() for each in self.evidence], "also": list(self.also),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CauseResult:
    """What the check of one cause came to: findings, or why there are none.

    ruled_out: what was read and shows that it is not the cause. unknown: what could not be read, or not everywhere.
    """

    findings: tuple[Finding, ...] = ()
    ruled_out: str = ""
    unknown: str = ""

    @classmethod
    def of(cls, findings: Sequence[Finding], ruled_out: str) -> CauseResult:
        """The findings; without any, the cause is ruled out."""
        return cls(tuple(findings), "" if findings else ruled_out)
