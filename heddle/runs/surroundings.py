"""What surrounded a run: `fabric.json` in the run's directory, so that the run can be read without its lab.

In:  a running lab. Out: Surroundings: its fabric, the fabric file and what was changed live, versions, the machine, and
the self-test of the prediction on the kernel that forwarded. UnreadableError with the reason where there is none.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue, NonNegativeInt, TypeAdapter

from heddle.base import state
from heddle.base.problems import InputError, first_lines
from heddle.base.version import VERSION
from heddle.fabric.model import Fabric
from heddle.fabric.policydata import fabric_from_json, fabric_to_json
from heddle.host.preflight import frr_release
from heddle.lab.thresholds import own_settings
from heddle.predict.selftest import SelfTest, verdict
from heddle.runs.files import read_object, typed, undamaged

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.runtimes.registry import Runtime

SURROUNDINGS: Final = "fabric.json"
_FORMAT: Final = 1
_SELFTEST: Final = TypeAdapter(SelfTest)
# Key of the file -> the type of its value; those of the machine are one group.
_PLAIN: Final[Mapping[str, TypeAdapter[Any]]] = {
    "runtime": TypeAdapter(str), "versions": TypeAdapter(dict[str, str]), "spec": TypeAdapter(dict[str, JsonValue]),
    "hashing": TypeAdapter(dict[str, dict[str, JsonValue]]),
    "queues": TypeAdapter(dict[str, dict[str, JsonValue]]),
}  # fmt: skip
_MACHINE: Final[Mapping[str, TypeAdapter[Any]]] = {
    "processors": TypeAdapter(NonNegativeInt), "processor": TypeAdapter(str), "memory": TypeAdapter(NonNegativeInt),
}  # fmt: skip
_CPUINFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of one run. spec: the fabric file, empty for an imported topology. hashing: switch -> rule that was set live.

    queues: node -> path below `queues` -> value that was set live. versions: part -> version. processor: its name.
    memory: bytes.
    """

    fabric: Fabric
    runtime: str
    selftest: SelfTest
    spec: Mapping[str, Any] = field(default_factory=dict)
    hashing: Mapping[str, Any] = field(default_factory=dict)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    processors: int = 0
    processor: str = ""
    memory: int = 0

    @classmethod
    def of(cls, lab: Lab) -> Surroundings:
        """Of a lab that runs, now."""
        record = state.read_record(lab.name)
        return cls(
            fabric=lab.fabric,
            runtime=lab.runtime.name,
            selftest=verdict(),
            spec=dict(record.spec) if record else {},
            hashing=dict(record.hashing) if record else {},
            queues=own_settings(lab),
            versions=_versions(lab.runtime),
            processors=os.cpu_count() or 0,
            processor=_processor(),
            memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )


def write_surroundings(directory: Path, found: Surroundings) -> None:
    """Write fabric.json, as a whole or not at all."""
    data = {name: getattr(found, name) for name in _PLAIN}
    data |= {"format": _FORMAT, "machine": {name: getattr(found, name) for name in _MACHINE}}
    data |= {"selftest": found.selftest.to_json(), "fabric": fabric_to_json(found.fabric)}
    state.write_json(directory / SURROUNDINGS, data)


def read_surroundings(directory: Path) -> Surroundings:
    """Read fabric.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / SURROUNDINGS, _FORMAT)
    with undamaged(SURROUNDINGS):
        plain = {name: typed(kind, data[name]) for name, kind in _PLAIN.items()}
        machine = {name: typed(kind, data["machine"][name]) for name, kind in _MACHINE.items()}
        selftest = typed(_SELFTEST, data["selftest"])
        fabric = fabric_from_json(data["fabric"])
        try:
            _ = fabric.next_hop_groups  # now, where the file can be named: most readers of a run use them later
        except InputError as error:
            raise ValueError("; ".join(first_lines(error.problems))) from None
        return Surroundings(fabric, selftest=selftest, **plain, **machine)


def _versions(runtime: Runtime) -> dict[str, str]:
    """Heddle, Python, the kernel, and the FRR of switches that are namespaces; containers have that of their image."""
    found = {"Heddle": VERSION, "Linux": platform.release(), "Python": platform.python_version()}
    if runtime.daemons_here and (frr := frr_release()):
        found["FRR"] = ".".join(str(part) for part in frr)
    return found


def _processor() -> str:
    """The name of the first processor, as the kernel reports it; else the architecture."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(named, platform.machine())
