"""The keys of an offline plan: the options of `./inv run` that decide sender, receiver and bytes, or a traffic matrix.

In:  plain data of a YAML file (see planfile.py). Out: PlanSpec, frozen.
Other options of a run (iterations, window, timeout) do not affect a prediction and are not keys here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heddle.base.problems import InputError, did_you_mean, nearest
from heddle.endpoints.transports import TRANSPORTS
from heddle.spec.keys import Size, at
from heddle.traffic.collectives import find_pattern, usual_algorithm
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.options import MAX_ENTROPY, MAX_QPS, SPRAYING, TRANSPORT, SourcePorts, parse_source_ports

MOST_BYTES: Final = 1 << 40  # of a rank or a pair
# Named matrices, and the number that each of them takes.
NAMED: Final[Mapping[str, str]] = {
    "all-to-all": "",
    "permutation": "[:SEED]",
    "shift": ":N",
    "incast": ":N",
}
_NUMBERED: Final = re.compile(r"([a-z-]+)(?::([0-9]{1,9}))?")


class PlanSpec(BaseModel):
    """One plan. size: bytes of a rank's array for a collective, of each pair of ranks for a named matrix."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    collective: str | None = None
    algorithm: str = ""  # empty: the collective's default
    matrix: str | None = None
    ranks: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    size: Annotated[Size, Field(ge=1, le=MOST_BYTES)] = 1 << 20
    qps: int = Field(default=1, ge=1, le=MAX_QPS)
    qp_mode: Literal["split", "round-robin"] = "split"
    sport: str = "qpn"
    chunk: Annotated[Size, Field(ge=4096, le=1 << 24)] = 1 << 17
    placement: str = "block"
    split: str = AUTO  # into communicators; see heddle/traffic/communicators.py
    transport: str = TRANSPORT
    entropy: int = Field(default=1, ge=1, le=MAX_ENTROPY)

    @property
    def pattern(self) -> tuple[str, str]:
        """Collective and algorithm, with their defaults."""
        collective = self.collective or "all-reduce"
        return collective, self.algorithm or usual_algorithm(collective)

    @property
    def source_ports(self) -> SourcePorts:
        """How NICs choose UDP source ports."""
        return parse_source_ports(self.sport)

    @property
    def file(self) -> str | None:
        """The file of the matrix as written; None for a named matrix."""
        return self.matrix if self.matrix is not None and self.matrix.lower().endswith(".csv") else None

    @property
    def named(self) -> tuple[str, int | None]:
        """A named matrix and its number: ("shift", 4). Only if `matrix` is not a file."""
        found = _NUMBERED.fullmatch(self.matrix or "")
        assert found is not None  # noqa: S101  (the validator checked this)
        return found[1], int(found[2]) if found[2] else None

    @model_validator(mode="after")
    def _one_thing(self) -> PlanSpec:
        if self.matrix is not None and self.collective is not None:
            raise at("matrix", "does not go together with collective", "keep one of the two")
        if self.matrix is not None and "algorithm" in self.model_fields_set:
            raise at("algorithm", "is for a collective, not for a matrix", "remove it")
        if self.file is not None and "size" in self.model_fields_set:
            raise at("size", "is already in the file of the matrix", "remove it")
        parsed = {}
        for key, parser in (("sport", parse_source_ports), ("split", parse_split)):
            try:
                parsed[key] = parser(getattr(self, key))
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                raise at(key, why, hint) from None
        object.__setattr__(self, "split", parsed["split"])
        if self.file is not None and self.split != AUTO:
            raise at("split", "is for a collective or a named matrix", "remove it: the file names both ends")
        self._check_transport()
        if self.chunk % 128:
            raise at("chunk", "is not a multiple of 128 bytes", "try 128K, the chunk of NCCL")
        if self.matrix is not None:
            self._check_matrix()
        else:
            self._check_collective()
        return self

    def _check_transport(self) -> None:
        kind = TRANSPORTS.get(self.transport)
        legal = sorted(name for name, each in TRANSPORTS.items() if each.stack is None)
        if kind is None:
            raise at("transport", "is not a transport", did_you_mean(self.transport, legal))
        if kind.stack is not None:  # its messages are SENDs, and its packets those of the kernel
            hint = f"use one of {', '.join(legal)}; sport: rxe predicts its source ports"
            raise at("transport", "is not predicted offline, because the kernel builds its packets", hint)
        if self.entropy > 1 and self.transport != SPRAYING:
            why = f"is not for transport {self.transport}, which needs packets in order"
            raise at("entropy", why, f"add transport: {SPRAYING}, or use more qps")

    def _check_collective(self) -> None:
        try:
            find_pattern(*self.pattern)
        except InputError as error:  # as for a run, where these are flags
            problem = error.problems[0]
            raise at(problem.what.removeprefix("--").partition(" ")[0], problem.why, problem.hint) from None

    def _check_matrix(self) -> None:
        if self.file is not None:
            return
        found = _NUMBERED.fullmatch(self.matrix or "")
        if found is None or found[1] not in NAMED:
            word = (self.matrix or "").partition(":")[0]
            near = nearest(word, NAMED)
            hint = f"did you mean {near}?" if near else f"allowed: {', '.join(NAMED)}, or a file that ends in .csv"
            raise at("matrix", "is neither a named matrix nor a .csv file", hint)
        name, number = found[1], found[2]
        if NAMED[name] == "" and number is not None:
            raise at("matrix", "takes no number", f"write {name}")
        if NAMED[name] == ":N" and not (number and int(number)):
            raise at("matrix", "needs a number of at least 1", f"write {name}:4")
