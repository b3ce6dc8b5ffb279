"""The parts of a run: what each mechanism did in it. A new part is a file here and a line of PARTS.

Its key in run.json and in the run's document, its lines of the table, and its cards and parameters in the
report follow from PARTS. runs/figures.py names its figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from heddle.host.capacity import Cause
from heddle.runs.files import reason_of, typed
from heddle.runs.parts.admission import AdmissionUse
from heddle.runs.parts.congestion import CongestionUse
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import RunPart, TimeSpan
from heddle.runs.parts.queues import QueueUse
from heddle.runs.parts.slowest import Slowest
from heddle.runs.parts.tunnels import TunnelsUse

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun

P = TypeVar("P", bound=RunPart)

# By the name that each has in records and documents, in the order of the table.
PARTS: Final[dict[str, type[RunPart]]] = {
    "ideal": IdealUse,
    "queues": QueueUse,
    "congestion": CongestionUse,
    "admission": AdmissionUse,
    "faults": FaultTimes,
    "effects": FaultEffects,
    "machine": MachineUse,
    "tunnels": TunnelsUse,
    "slowest": Slowest,
}
_ADAPTERS: Final[dict[type[RunPart], TypeAdapter[Any]]] = {}  # made when they are used: each takes a millisecond


def parts_of(measured: MeasuredRun) -> dict[str, RunPart]:
    """The parts that a run has, by name."""
    made = {name: kind.of_run(measured) for name, kind in PARTS.items()}
    return {name: part for name, part in made.items() if part is not None}


def _adapter(kind: type[RunPart]) -> TypeAdapter[RunPart]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _dumped(parts: Mapping[str, RunPart]) -> dict[str, Any]:
    return {
        name: _adapter(kind).dump_python(parts[name], mode="json") if name in parts else None
        for name, kind in PARTS.items()
    }


def _loaded(data: Mapping[str, Any]) -> dict[str, RunPart]:
    found = {}
    for name, kind in PARTS.items():
        if data.get(name) is not None:
            try:
                found[name] = typed(_adapter(kind), data[name])
            except ValidationError as error:
                raise ValueError(f"{name}: {reason_of(error)}") from None
    return found


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run by name; none for a mechanism that it did not use. Each is also an attribute by its name."""

    parts: Annotated[Mapping[str, RunPart], PlainSerializer(_dumped), PlainValidator(_loaded)] = field(
        default_factory=dict
    )

    if not TYPE_CHECKING:  # for tests of users; Heddle uses `part`, which has a type

        def __getattr__(self, name: str) -> Any:
            if name not in PARTS:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            return self.parts.get(name)

    def part(self, kind: type[P]) -> P | None:
        """The part of a class; None when the run did not use the mechanism."""
        return next((part for part in self.parts.values() if isinstance(part, kind)), None)

    def __getitem__(self, kind: type[P]) -> P:
        """The part of a class. KeyError when the run did not use the mechanism."""
        if (found := self.part(kind)) is None:
            raise KeyError(kind.__name__)
        return found

    @property
    def doubts(self) -> tuple[Cause, ...]:
        """Causes why figures of the run are unreliable; empty for a run that can be trusted."""
        return tuple(cause for part in self.parts.values() for cause in part.doubts())

    @property
    def times(self) -> tuple[TimeSpan, ...]:
        """Times that pictures of the run mark."""
        return tuple(span for part in self.parts.values() for span in part.times())

    @property
    def limited(self) -> bool:
        """True when the host CPU was or may have been the bottleneck."""
        return bool(self.doubts)

    @property
    def overrun(self) -> bool:
        """True when it certainly was: a worker had no idle time, or packets were lost."""
        return any(cause.sure for cause in self.doubts)

    @property
    def lost(self) -> dict[str, int] | None:
        """Cause -> lost packets; None when no part counted losses."""
        found = [losses for part in self.parts.values() if (losses := part.lost()) is not None]
        return {cause: count for losses in found for cause, count in losses.items()} if found else None
