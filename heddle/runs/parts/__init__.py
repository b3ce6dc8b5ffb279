"""The parts of a run: what each mechanism did in it. A new part is a file here and a line of PARTS.

Its key in run.json and in the run's document, its lines of the table, and its cards and parameters in the
report follow from PARTS. runs/figures.py names its figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from heddle.runs.files import reason_of, typed
from heddle.runs.parts.admission import AdmissionUse
from heddle.runs.parts.congestion import CongestionUse
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import RunPart
from heddle.runs.parts.queues import QueueUse
from heddle.runs.parts.slowest import Slowest
from heddle.runs.parts.tunnels import TunnelsUse

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun

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


# The parts of a run by name, as a field that is stored; none for a mechanism that it did not use.
Parts = Annotated[Mapping[str, RunPart], PlainSerializer(_dumped), PlainValidator(_loaded)]
