"""The result of a prediction: values and their JSON. views/ has the texts and the picture.

Seconds are emulated, since all rates of a fabric file are: hardware rates divided by k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heddle.base.arrays import F64, Bools
from heddle.endpoints.runoptions import typed_options
from heddle.offline.loads import Traffic
from heddle.offline.wires import Trouble, Wires
from heddle.predict.selftest import SelfTest
from heddle.predict.statistics import Entropy, Evenness
from heddle.traffic.workload import Workload


@dataclass(frozen=True, slots=True)
class Roofline:
    """The shortest time for the demand. what: the NIC or the cut that needs it; nic_s: of the busiest NIC alone."""

    seconds: float
    what: str
    nic_s: float

    def to_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "what": self.what, "nic_seconds": self.nic_s}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """One figure over all trials."""

    mean: float
    p5: float
    p95: float

    @classmethod
    def of(cls, values: list[float]) -> Percentiles:
        """Of some trials."""
        low, high = np.quantile(values, [0.05, 0.95])
        return cls(float(np.mean(values)), float(low), float(high))

    def to_json(self) -> dict[str, float]:
        return {"mean": self.mean, "p5": self.p5, "p95": self.p95}


@dataclass(frozen=True)
class ModeResult:
    """One mode. bytes, flows: by port (flows None if flows have no fixed path). mmr: by direction, of bytes.

    trials: figure (`ratio`, or `mmr N` of a direction) -> spread over seeds; empty without trials.
    """

    mode: str
    bytes: F64
    flows: F64 | None
    seconds: float
    busiest: int
    ratio: float | None
    mmr: Mapping[int, float | None]
    trials: Mapping[str, Percentiles]

    def to_json(self, wires: Wires) -> dict[str, Any]:
        mmr = {wires.direction_name(d): value for d, value in self.mmr.items()}
        data = {
            "mode": self.mode, "completion_seconds": self.seconds, "over_roofline": self.ratio,
            "busiest_link": wires.ports[self.busiest] if self.seconds else None, "mmr": mmr,
        }  # fmt: skip
        if self.trials:
            data["trials"] = {
                "over_roofline": self.trials["ratio"].to_json() if "ratio" in self.trials else None,
                "mmr": {
                    wires.direction_name(d): self.trials[f"mmr {d}"].to_json()
                    for d in self.mmr
                    if f"mmr {d}" in self.trials
                },
            }
        return data


@dataclass(frozen=True, slots=True)
class MovedFlows:
    """Flows of the first mode with a new path, by hash-threshold and with resilient groups.

    flows: with a path before and after; moved: those with a new path; lost: moved ones whose old path is not usable.
    """

    flows: int
    moved: Mapping[str, int]
    lost: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        rows = {
            key: {"moved": self.moved[key], "had_to": self.lost[key], "share": self.share(key)} for key in self.moved
        }
        return {"flows": self.flows, **rows}

    def share(self, key: str) -> float:
        """The share of flows that moved."""
        return self.moved[key] / self.flows if self.flows else 0.0


@dataclass(frozen=True)
class Prediction:
    """The whole result of `./inv predict`. modes: the fabric's own, or the requested one, first.

    ranked (ports,): ranks are below the port's link. idle: how many QPs carry nothing, and why; empty where all do.
    shares: of several jobs, the bytes of each by port in the first mode.
    """

    workload: Workload
    wires: Wires
    jobs: tuple[Traffic, ...]
    trouble: Trouble
    modes: tuple[ModeResult, ...]
    roofline: Roofline
    evenness: Mapping[int, Evenness]
    entropy: Entropy
    unreachable: int
    named: tuple[str, ...]
    moved: MovedFlows | None
    trials: int
    checked: SelfTest | None
    notes: tuple[str, ...]
    ranked: Bools
    idle: str = ""
    shares: tuple[F64, ...] = ()

    @property
    def flows(self) -> int:
        """The number of flows of all jobs."""
        return sum(job.connections.flows for job in self.jobs)

    @property
    def k(self) -> int:
        """The divisor of hardware rates."""
        return self.wires.fabric.policy.k

    def to_json(self) -> dict[str, Any]:
        first, fabric = self.modes[0], self.wires.fabric
        head = first.to_json(self.wires)
        return {
            "fabric": fabric.name,
            "emulated": {"k": self.k},
            "workload": {
                "name": self.workload.name, "flows": self.flows, "bytes": sum(job.bytes for job in self.jobs),
                "jobs": [
                    {
                        "name": each.job.name, "ranks": len(each.endpoints), "flows": each.connections.flows,
                        "bytes": each.bytes, "size": max(each.job.options.sizes),
                        "options": typed_options(each.job.options),
                        "class": fabric.policy.queues.class_of_dscp[each.job.options.dscp],
                    }
                    for each in self.jobs
                ],
            },
            "down": list(self.trouble.down),
            "drained": list(self.trouble.drained),
            "completion": {
                "seconds": first.seconds, "over_roofline": first.ratio, "busiest_link": head["busiest_link"],
            },
            "roofline": self.roofline.to_json(),
            "mmr": {self.wires.direction_name(d): value for d, value in first.mmr.items()},
            "modes": [mode.to_json(self.wires) for mode in self.modes],
            "trials": self.trials,
            "evenness": {self.wires.direction_name(d): found.to_json() for d, found in self.evenness.items()},
            "entropy": self.entropy.to_json(),
            "unreachable": {"flows": self.unreachable, "some": list(self.named)},
            "moved": self.moved.to_json() if self.moved else None,
            "checked": self.checked.to_json() if self.checked else None,
            "notes": [*([self.idle] if self.idle else []), *self.notes],
            "links": self.links(),
        }  # fmt: skip

    def links(self) -> list[dict[str, Any]]:
        """One row per live port, with its load in the first mode.

        seconds: bytes * 8 / rate. utilisation: seconds / seconds of the busiest port. ranked: ranks are below the link,
        so it counts for the MMR. jobs: of several jobs, the bytes of each.
        """
        first, wires = self.modes[0], self.wires
        flows = first.flows if first.flows is not None else np.full(len(wires.ports), np.nan)
        seconds = first.bytes * 8 / wires.rate
        use = seconds / first.seconds if first.seconds else np.zeros(len(seconds))
        names = [wires.direction_name(d) for d in range(int(wires.direction.max()) + 1)]
        of_jobs = [
            {"jobs": {job.job.name: round(share) for job, share in zip(self.jobs, row, strict=True)}}
            for row in zip(*(each.tolist() for each in self.shares), strict=True)
        ] or [{}] * len(wires.ports)  # fmt: skip
        return [
            {
                "port": port, "to": wires.ports[other], "direction": names[direction], "rate_bps": int(rate),
                "bytes": round(carried), "flows": None if first.flows is None else round(count), "seconds": time,
                "utilisation": round(share, 6), "ranked": ranked, **jobs,
            }
            for port, other, direction, rate, carried, count, time, share, ranked, jobs in zip(
                wires.ports, wires.other.tolist(), wires.direction.tolist(), wires.rate.tolist(),
                first.bytes.tolist(), flows.tolist(), seconds.tolist(), use.tolist(), self.ranked.tolist(), of_jobs,
                strict=True,
            )
            if port not in self.trouble.dead
        ]  # fmt: skip

    def csv(self) -> str:
        """One line per port, with its load in every mode."""
        wires = self.wires
        head = ["port", "to", "direction", "rate_bps"]
        columns: list[list[str]] = []
        for mode in self.modes:
            word = mode.mode.replace(" ", "-")
            head.append(f"{word}_bytes")
            columns.append([str(round(value)) for value in mode.bytes.tolist()])
            if mode.flows is not None:
                head.append(f"{word}_flows")
                columns.append([str(round(value)) for value in mode.flows.tolist()])
        names = [wires.direction_name(d) for d in range(int(wires.direction.max()) + 1)]
        lines = [",".join(head)]
        for row, port in enumerate(wires.ports):
            if port not in self.trouble.dead:
                left = [port, wires.ports[wires.other[row]], names[wires.direction[row]], str(int(wires.rate[row]))]
                lines.append(",".join([*left, *(column[row] for column in columns)]))
        return "\n".join(lines) + "\n"
