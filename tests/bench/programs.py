"""The step of a training program over TCP, predicted and measured: traffic/programs/train.py on three fabrics.

Predicted: the time of a step without its all-reduce, measured with all ranks on one host, and the ring bound: each NIC
sends 2 (n - 1) / n gradients at its rate, less the headers. MachineError where no Python has PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.endpoints.programruns import ProgramOptions, Seat
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.run import run_program
from tests.pythons import python_with

from . import Figure

_LAB: Final = "benchpr"
_TRAIN: Final = Path(__file__).parents[2] / "traffic/programs/train.py"
_RANKS: Final = 4
_STEPS: Final = ("--steps", "12")
_FABRICS: Final = {
    "tiny, 100 Mb/s": ("tiny", ()),
    "tiny, 50 Mb/s, e-ecmp": ("tiny", ("link.host=50mbit", "link.fabric=50mbit", "routing.ecmp=e-ecmp")),
    "rail, 50 Mb/s": ("rail", ("nics_per_host=1",)),
}
_HEADERS: Final = 52  # IPv4, and TCP with time stamps
_FRAME: Final = 14  # Ethernet; rates count no preamble and no FCS


def predicted_step_s(compute_s: float, gradient_bytes: int, ranks: int, rate_bps: int, mtu: int) -> float:
    """Seconds of a step: computing, then a ring all-reduce whose every link has one flow in each direction."""
    useful = (mtu - _HEADERS) / (mtu + _FRAME)
    return compute_s + 2 * (ranks - 1) / ranks * gradient_bytes * 8 / (rate_bps * useful)


def figures(observer: Observer) -> Iterator[Figure]:
    """Measured step over predicted step, and whether the losses are those of one host."""
    python = python_with("torch")
    if python is None:
        raise MachineError(Problem("", "PyTorch", "is not installed", "run apt-get install python3-torch"))
    for name, (fabric, overrides) in _FABRICS.items():
        labs.up(load_fabric(fabric, name=_LAB, overrides=overrides), observer=observer, rollback=True)
        try:
            lab = open_lab(_LAB)
            alone = _trained(lab, ProgramOptions(_RANKS, per_host=_RANKS), python, observer)
            found = _trained(lab, ProgramOptions(_RANKS, per_host=1), python, observer)
            nic = lab.fabric.nics[0]
            wanted = predicted_step_s(
                alone["compute_s"], alone["gradient_bytes"], _RANKS, nic.rate_bps, lab.fabric.policy.mtu
            )
            yield Figure(f"{name}: a step, predicted", 1e3 * wanted, "ms")
            ratio = found["step_s"] / wanted
            yield Figure(f"{name}: measured / predicted", ratio, "", "", "0.9 to 1.1", 0.9 <= ratio <= 1.1)
            same = float(found["losses"] == alone["losses"])
            yield Figure(f"{name}: losses as on one host", same, "", "", "1", bool(same))
        finally:
            labs.down(_LAB, observer)


def _trained(lab: Lab, options: ProgramOptions, python: str, observer: Observer) -> dict[str, Any]:
    """The figures that rank 0 prints in the end."""
    lines: list[str] = []

    def show(seat: Seat, stream: str, line: str) -> None:
        if seat.rank == 0 or stream == "err":
            lines.append(line)

    result = run_program(lab, options, [python, str(_TRAIN), *_STEPS], observer, show)
    if result.end.code:
        raise MachineError(Problem("", "train.py", f"failed: {'; '.join([*result.faults, *lines[-3:]])}"))
    found: dict[str, Any] = json.loads(lines[-1])
    return found
