"""What a collective is made of: transfers, and the protocol that every pattern keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Transfer:
    """One step of one rank. Ranges are element indices [lo, hi); an empty range is not sent at all."""

    step: int
    send_to: int
    send: tuple[int, int]
    recv_from: int
    recv: tuple[int, int]
    reduce: bool  # True: what arrives is added to the buffer; False: it replaces it


class Pattern(Protocol):
    """A collective by one algorithm."""

    collective: str
    algorithm: str

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """What `rank` does for an array of `count` elements."""

    def busbw_factor(self, ranks: int) -> float:
        """busbw / algbw, as nccl-tests derives it (doc/PERFORMANCE.md)."""

    def peers(self, ranks: int) -> list[tuple[int, int]]:
        """All (sender, receiver) pairs that carry data."""

    def alike(self, ranks: int, count: int, pairs: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """A label for each of these pairs: equal where as many transfers of each length go from the one to the other.

        It spares whoever counts bytes the programs of all ranks. count: elements of a rank's array.
        """
